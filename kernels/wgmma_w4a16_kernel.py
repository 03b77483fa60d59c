"""The device code of `wgmma_w4a16`: bf16 fragments, one factor for an expert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.kernels.dequant_w4a16 import HALVES, LANE_SCALES
from perfmodel.kernels.epilogue import Scaling
from perfmodel.kernels.ptx.memory import load_constant_f32, load_shared_x4
from perfmodel.kernels.wgmma_config import ROW_TILE, Config, Plan
from perfmodel.kernels.wgmma_kernel import device_code
from perfmodel.kernels.wgmma_loops import Operand

U = np.uint32
U64 = np.uint64
CODE_BYTES = 32
"""Bytes of codes of a row in a packed tile."""


@cuda.jit(device=True, forceinline=True)
def alpha_of(scales, expert, _row):
    """The factor of an expert, for both rows."""
    alpha = load_constant_f32(scales[0] + U64(expert) * U64(4))
    return alpha, alpha


SCALING = Scaling(of_rows=alpha_of)


def operand(form: str) -> Operand:
    """How the fragments of a format are made."""
    read_scales, scale_bytes = LANE_SCALES[form]
    SCALES, LANE = U(ROW_TILE * CODE_BYTES), U(scale_bytes)

    @cuda.jit(device=True, forceinline=True)
    def read(tile, inside, lane):
        words = load_shared_x4(tile + inside * U(512) + lane * U(16))
        return words, read_scales(tile + SCALES + (inside * U(8) + (lane >> U(2))) * LANE)

    return Operand("bf16", read, *HALVES[form])


def make_kernel(config: Config) -> tuple[Callable[..., None], tuple[Any, ...], int]:
    """The kernel function of a configuration, its numba signature, its bytes of shared memory."""
    run = device_code(config, operand(config.format), SCALING)

    def kernel(tensor_map, weights, alphas, offsets, out, rows, factors, experts, n, k_tiles, row_tiles):
        run(tensor_map, weights, (alphas,), offsets, out, rows, factors, experts, n, k_tiles, row_tiles)

    return kernel, (types.uint64,) * 7 + (types.uint32,) * 4, Plan(config).shared_bytes
