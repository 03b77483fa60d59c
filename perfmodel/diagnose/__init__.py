"""Profiler reports read beside the model: what bounds each kernel, why, what would cure it, and what the cure would bring."""
