"""Measured runs of kernels on GPUs: their schema, the store, the suites that make them, and the model held against them."""
