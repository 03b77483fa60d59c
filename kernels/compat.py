"""The one NumPy name that numba-cuda 0.30.4 still asks for. `perfmodel.kernels` imports this module, so that it comes before `numba.cuda`.

The extra `kernels` keeps NumPy below 2.5, where nothing is missing. This is for machines whose NumPy is newer and cannot be
changed: numba-cuda 0.30.4 registers an implementation of `numpy.row_stack` when a kernel takes its first array, and NumPy 2.5
has removed that deprecated alias of `numpy.vstack`: every such kernel would fail to compile.
"""

from __future__ import annotations

import numpy as np

if not hasattr(np, "row_stack"):
    setattr(np, "row_stack", np.vstack)  # noqa: B010  (mypy knows that the name is gone)
