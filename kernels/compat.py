"""NumPy names that numba-cuda 0.30.4 still asks for; import this module before `numba.cuda`.

The extra `kernels` keeps NumPy below 2.5, where nothing is missing. This module is for machines whose NumPy is newer and
cannot be changed: numba-cuda 0.30.4 registers an implementation of `numpy.row_stack` as soon as a kernel takes its first
array, and NumPy 2.5 has removed that deprecated alias of `numpy.vstack`, so that every such kernel would fail to compile.
"""

from __future__ import annotations

import numpy as np

REMOVED_ALIASES = {"row_stack": "vstack", "in1d": "isin", "trapz": "trapezoid"}
"""Name removed from NumPy 2 -> the function it was an alias of, or was replaced by."""

for _old, _new in REMOVED_ALIASES.items():
    if not hasattr(np, _old):
        setattr(np, _old, getattr(np, _new))
