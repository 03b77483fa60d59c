"""numba.cuda kernels that run on real GPUs, each with a readable reference beside it."""
