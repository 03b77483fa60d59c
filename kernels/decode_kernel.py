"""The device code of `decode`: from tile to CTA, and the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.kernels import mma_w4a16_plan
from perfmodel.kernels.decode import NUMBERS, POINTERS, Config
from perfmodel.kernels.decode_loop import make_main_loop
from perfmodel.kernels.mma_w4a16 import ROWS, SCALE_WORDS, TILE_K
from perfmodel.kernels.mma_w4a16_epilogue import make_finish
from perfmodel.kernels.mma_w4a16_plan import ALIGNMENT
from perfmodel.kernels.ptx.bulk import copy_async_4, copy_commit, copy_wait
from perfmodel.kernels.ptx.memory import (
    array_address,
    load_constant,
    load_shared_f32,
    load_shared_x4,
    store_shared_x4,
    to_shared,
)
from perfmodel.kernels.schedule import make_find_tile

U = np.uint32
U64 = np.uint64


@dataclass(frozen=True)
class Plan(mma_w4a16_plan.Plan):
    """Shared memory without stages: rows and factors of the output's tokens, partial sums, the finished rows."""

    @property
    def place(self) -> int:
        """The tile of the CTA: expert, strip of weight rows, first token, tokens."""
        return 0

    @property
    def alpha(self) -> int:
        """What the sums are multiplied by."""
        return self.place + 16

    @property
    def out_rows(self) -> int:
        """Row of the output of each token."""
        return self.alpha + 16

    @property
    def bytes(self) -> int:
        """All of it, and room to align the start."""
        return self.output + self.config.columns * self.pitch + ALIGNMENT


def make_kernel(config: Config) -> tuple[Callable[..., None], tuple[Any, ...], int]:
    """The kernel function of a configuration, its numba signature, its bytes of shared memory."""
    plan = Plan(config)
    find_tile, main_loop, finish = make_find_tile(config.columns), make_main_loop(config), make_finish(config, plan)
    note, lane_offsets, token_pointer = make_note(config, plan), make_lane_offsets(config), make_token_pointer(config)
    ROW_WARPS, TILE, PLACE, ALPHA = U(config.row_warps), U64(config.tile_bytes), U(plan.place), U(plan.alpha)

    def kernel(x, weights, alphas, offsets, out, x_rows, out_rows, factors, experts, n, k, row_tiles):
        lane = U(cuda.threadIdx.x & U(31))
        expert, strip, start, count = find_tile(U(cuda.blockIdx.x), offsets, experts, row_tiles, lane)
        if count == U(0):
            return
        shared = cuda.shared.array(0, types.uint8)
        base = U((to_shared(array_address(shared)) + U(ALIGNMENT - 1)) & U(0x100000000 - ALIGNMENT))
        split = U((cuda.threadIdx.x >> U(5)) // ROW_WARPS)
        warp = U((cuda.threadIdx.x >> U(5)) % ROW_WARPS)
        k_tiles = U((k + U(TILE_K - 1)) // U(TILE_K))
        to_codes, to_scales = lane_offsets(warp, lane)
        tiles = weights + U64(expert * row_tiles + strip) * U64(k_tiles) * TILE
        token = token_pointer(x, x_rows, start, count, k, lane)
        note(base, (expert, strip, start, count), alphas, out_rows, factors)
        d = main_loop(tiles + U64(to_codes), tiles + U64(to_scales), token, k, split)
        copy_wait(0)
        cuda.syncthreads()
        expert, strip, start, count = load_shared_x4(base + PLACE)
        finish(d, load_shared_f32(base + ALPHA), (out, n, strip, start, count), base)

    return kernel, (types.uint64,) * len(POINTERS) + (types.uint32,) * len(NUMBERS), plan.bytes


def make_lane_offsets(config: Config) -> Callable[..., Any]:
    """Device function: bytes from the start of a packed tile to a lane's codes and to its scales, of its warp's first block."""
    words = SCALE_WORDS[config.format]
    CODES, SCALES, FIRST, LANE = U(512 * config.blocks), U(32 * words * config.blocks), U(ROWS * 32), U(4 * words)

    @cuda.jit(device=True, forceinline=True)
    def lane_offsets(warp, lane):
        return U(warp * CODES + lane * U(16)), U(FIRST + warp * SCALES + (lane >> U(2)) * LANE)

    return lane_offsets


def make_token_pointer(config: Config) -> Callable[..., Any]:
    """Device function: where a lane's activations begin, in the row of its token."""
    gather = config.gather

    @cuda.jit(device=True, forceinline=True)
    def pointer(x, x_rows, start, count, k, lane):
        token = U(lane >> U(2))
        row = U(start + token) if token < count else start
        if gather:
            row = load_constant(x_rows + U64(row) * U64(4))
        return x + U64(row) * U64(k) * U64(2) + U64((lane & U(3)) * U(4))

    return pointer


def make_note(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: what the end needs to know of the tile, into shared memory, so that it takes no registers in the main loop.

    What must be loaded comes by `cp.async`: nobody waits for it here.
    """
    scatter = config.epilogue == "scatter"
    PLACE, ALPHA, OUT_ROWS, FACTORS = U(plan.place), U(plan.alpha), U(plan.out_rows), U(plan.factors)

    @cuda.jit(device=True, forceinline=True)
    def note(base, tile, alphas, out_rows, factors):
        expert, _strip, start, count = tile
        token = U(cuda.threadIdx.x)
        if token == U(0):
            store_shared_x4(base + PLACE, tile)
            copy_async_4(base + ALPHA, alphas + U64(expert) * U64(4))
        if scatter and token < count:
            row = U64(start + token) * U64(4)
            copy_async_4(base + OUT_ROWS + token * U(4), out_rows + row)
            copy_async_4(base + FACTORS + token * U(4), factors + row)
        copy_commit()

    return note
