"""Fragments of MXFP4 and NVFP4 tiles in shared memory, for Hopper."""

from __future__ import annotations

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

from numba import cuda  # isort: skip

from perfmodel.kernels.dequant_e2m1 import make_halves
from perfmodel.kernels.ptx.memory import load_shared, load_shared_x2


@cuda.jit(device=True, forceinline=True)
def load_one(address):
    """The scales of MXFP4: one word."""
    return (load_shared(address),)


LANE_SCALES = {"mxfp4-w4a16": (load_one, 4), "nvfp4-w4a16": (load_shared_x2, 8)}
"""Format -> how a lane reads its scales of a tile from shared memory, and their bytes."""
HALVES = make_halves("mul")
"""Format -> fragments 0 and 1, fragments 2 and 3."""
