"""The device code of `wgmma_w4a8`: E4M3 fragments, a factor for each weight row and one for each token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.kernels.dequant_w4a8 import half_0, half_1
from perfmodel.kernels.epilogue import Scaling
from perfmodel.kernels.ptx.memory import load_constant_f32, load_shared_x2, load_shared_x4
from perfmodel.kernels.wgmma_config import ROW_TILE, Config, Plan
from perfmodel.kernels.wgmma_kernel import device_code
from perfmodel.kernels.wgmma_loops import Operand

U = np.uint32
U64 = np.uint64
CODE_BYTES = 64
"""Bytes of codes of a row in a packed tile."""


@cuda.jit(device=True, forceinline=True)
def read(tile, inside, lane):
    """A lane's eight words of codes and two of scales, of 16 rows of a packed tile."""
    codes = tile + inside * U(16 * CODE_BYTES) + lane * U(16)
    scales = tile + U(ROW_TILE * CODE_BYTES) + (inside * U(8) + (lane >> U(2))) * U(8)
    return (*load_shared_x4(codes), *load_shared_x4(codes + U(512))), load_shared_x2(scales)


@cuda.jit(device=True, forceinline=True)
def factors_of_rows(scales, expert, row):
    """The factors of rows `row` and `row + 8` of an expert; of the last rows where the CTA's tile reaches beyond them."""
    row_scale, _, row_tiles = scales
    rows = row_tiles * U(ROW_TILE)
    address = row_scale + (U64(expert) * U64(rows) + U64(min(row, rows - U(9)))) * U64(4)
    return load_constant_f32(address), load_constant_f32(address + U64(32))


@cuda.jit(device=True, forceinline=True)
def factor_of_token(scales, token):
    """The scale of a token's activations."""
    return load_constant_f32(scales[1] + U64(token) * U64(4))


OPERAND = Operand("e4m3", read, half_0, half_1)
SCALING = Scaling(of_rows=factors_of_rows, of_token=factor_of_token)


def make_kernel(config: Config) -> tuple[Callable[..., None], tuple[Any, ...], int]:
    """The kernel function of a configuration, its numba signature, its bytes of shared memory."""
    run = device_code(config, OPERAND, SCALING)

    def kernel(tensor_map, weights, row_scale, token_scale, offsets, out, rows, factors, experts, n, k_tiles, row_tiles):
        run(
            tensor_map, weights, (row_scale, token_scale, row_tiles), offsets, out, rows, factors, experts, n, k_tiles, row_tiles
        )  # fmt: skip

    return kernel, (types.uint64,) * 8 + (types.uint32,) * 4, Plan(config).shared_bytes
