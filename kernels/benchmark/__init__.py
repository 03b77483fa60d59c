"""Measuring our kernels beside the machine's ceilings and torch's kernels, in one run: `perfmodel kernels bench` and `run`."""
