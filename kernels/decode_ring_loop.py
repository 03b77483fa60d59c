"""What the warps of `decode_ring` do along K: producers fill stages, consumers multiply what a stage holds.

A stage's barrier "full" tells the consumers that its bytes have come, its barrier "empty" tells the producer that all have read them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda  # isort: skip

from perfmodel.kernels.decode_blocks import for_each_block, make_flatten, make_start, multiply
from perfmodel.kernels.decode_ring import PRODUCERS, Config
from perfmodel.kernels.decode_ring_plan import BARRIER_BYTES, X_TILE_BYTES, Plan
from perfmodel.kernels.dequant_e2m1 import make_halves
from perfmodel.kernels.dequant_w4a16 import LANE_SCALES
from perfmodel.kernels.mma_w4a16 import ROWS, TILE_K
from perfmodel.kernels.ptx.barrier import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_wait,
    warp_sync,
)
from perfmodel.kernels.ptx.bulk import copy_arrive, copy_async_16_of, copy_bulk
from perfmodel.kernels.ptx.matrix import load_matrix_x4
from perfmodel.kernels.ptx.memory import load_shared_x4

U = np.uint32
U64 = np.uint64


def make_ring(plan: Plan) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Device functions: `start(base, lane)` sets up the barriers, the producers call it; `after(stage, parity)` is the next stage."""
    BARRIERS, STAGES, CONSUMERS = U(plan.barriers), U(plan.stages), U(plan.config.consumers)

    @cuda.jit(device=True, forceinline=True)
    def start(base, lane):
        if lane < STAGES:
            mbarrier_init(base + BARRIERS + lane * U(BARRIER_BYTES), U(1 + PRODUCERS))
            mbarrier_init(base + BARRIERS + lane * U(BARRIER_BYTES) + U(8), CONSUMERS)
            fence_mbarrier_init()
        warp_sync()

    @cuda.jit(device=True, forceinline=True)
    def after(stage, parity):
        stage = U(stage + U(1))
        if stage == STAGES:
            return U(0), U(parity ^ U(1))
        return stage, parity

    return start, after


def make_fill(plan: Plan, after: Callable[..., Any]) -> Callable[..., Any]:
    """Device function (base, thread, x, there, weights, strips, k, stage, parity) -> (stage, parity): a tile's weights and activations.

    All PRODUCERS threads call it. Threads share out the tokens: x is where the token of this thread begins, `there` whether it has one.
    weights: where the first of `strips` strips begins; thread 0 copies them, in bulk. Activations are copied by 16 bytes: one thread would
    have to start a bulk copy for each token, which costs it, and all warps of its scheduler, more time than the whole warpgroup needs so.
    """
    config = plan.config
    SPLITS, TILE, STRIP = U(config.splits), U(config.tile_bytes), U(plan.strip)
    X, X_STAGE, X_PITCH = U(plan.x), U(plan.x_stage), U(plan.x_pitch)
    WEIGHTS, W_STAGE, BARRIERS = U(plan.weights), U(plan.weight_stage), U(plan.barriers)
    BESIDE = U(PRODUCERS // config.columns)
    pieces = config.splits * X_TILE_BYTES // 16 * config.columns // PRODUCERS

    @cuda.jit(device=True, forceinline=True)
    def fill(base, thread, x, there, weights, strips, k, stage, parity):
        k_tiles = U((k + U(TILE_K - 1)) // U(TILE_K))
        x_bytes = U(k * U(2))
        row = U(base + X + U(thread // BESIDE) * X_PITCH + U(thread % BESIDE) * U(16))
        at = U(U(thread % BESIDE) * U(16))
        for first in range(U(0), k_tiles, SPLITS):
            full = U(base + BARRIERS + stage * U(BARRIER_BYTES))
            mbarrier_wait(full + U(8), parity)
            if thread == U(0):
                size = U(min(SPLITS, U(k_tiles - U(first))) * TILE)
                mbarrier_expect(full, strips * size)
                for strip in range(strips):
                    target = U(base + WEIGHTS + stage * W_STAGE + U(strip) * STRIP)
                    copy_bulk(target, weights + U64(strip) * U64(k_tiles) * U64(TILE) + U64(U(first) * TILE), size, full)
            if there:
                for piece in range(pieces):
                    ahead = U(U(first) * U(X_TILE_BYTES) + at + U(piece) * BESIDE * U(16))
                    size = U(16) if ahead < x_bytes else U(0)  # zeros where K has ended inside a tile, whose other weights are zeros
                    source = x + U64(ahead) if ahead < x_bytes else x
                    copy_async_16_of(row + stage * X_STAGE + U(piece) * BESIDE * U(16), source, size)
            copy_arrive(full)
            stage, parity = after(stage, parity)
        return stage, parity

    return fill


def make_consume(plan: Plan, after: Callable[..., Any]) -> Callable[..., Any]:
    """Device function (base, warp, split, lane, k, stage, parity) -> (d, stage, parity): the warp's sums over a tile's stages."""
    config = plan.config
    SPLITS, BLOCKS, STRIP, TILE = U(config.splits), U(config.blocks), U(plan.strip), U(config.tile_bytes)
    X, X_STAGE, X_PITCH = U(plan.x), U(plan.x_stage), U(plan.x_pitch)
    WEIGHTS, W_STAGE, BARRIERS = U(plan.weights), U(plan.weight_stage), U(plan.barriers)
    SCALES, LANE = U(ROWS * 32), U(LANE_SCALES[config.format][1])
    start, flatten = make_start(config.blocks, config.columns), make_flatten(config.blocks)
    load = for_each_block(config.blocks, partial(_load, config))
    half_0 = for_each_block(config.blocks, partial(_multiply, config, 0))
    half_1 = for_each_block(config.blocks, partial(_multiply, config, 1))
    load_x = _load_x(plan)

    @cuda.jit(device=True, forceinline=True)
    def consume(base, warp, split, lane, k, stage, parity):
        k_tiles = U((k + U(TILE_K - 1)) // U(TILE_K))
        sixteen = U(warp * BLOCKS)
        tile = U(base + WEIGHTS + (sixteen >> U(3)) * STRIP + split * TILE)
        codes = U(tile + (sixteen & U(7)) * U(512) + lane * U(16))
        scales = U(tile + SCALES + ((sixteen & U(7)) * U(8) + (lane >> U(2))) * LANE)
        tokens = U(base + X + split * U(X_TILE_BYTES) + (lane & U(7)) * X_PITCH + (lane >> U(3)) * U(16))
        d = start(U(0), U(0), U(0))
        for first in range(U(0), k_tiles, SPLITS):
            full = U(base + BARRIERS + stage * U(BARRIER_BYTES))
            mbarrier_wait(full, parity)
            loaded = load(codes + stage * W_STAGE, scales + stage * W_STAGE, U(0))
            x_0, x_1 = load_x(tokens + stage * X_STAGE), load_x(tokens + stage * X_STAGE + U(64))
            mbarrier_arrive(full + U(8))  # all is in registers: the stage can be filled again
            if U(first) + split < k_tiles:
                d = half_1(half_0(d, loaded, x_0), loaded, x_1)
            stage, parity = after(stage, parity)
        return flatten(d), stage, parity

    return consume


def _load_x(plan: Plan) -> Callable[..., Any]:
    """Device function: the B fragments of 32 of K, by the address of a lane's row for `ldmatrix`."""
    EIGHT = U(8 * plan.x_pitch)

    @cuda.jit(device=True, forceinline=True)
    def load_x(at):
        return (*load_matrix_x4(at), *load_matrix_x4(at + EIGHT))

    return load_x


def _load(config: Config, block: int) -> Callable[..., Any]:
    """For a block: device function (codes, scales, _) -> its words and its scales, by the lane's addresses in the first block."""
    read_scales, lane_bytes = LANE_SCALES[config.format]
    CODES, SCALES = U(512 * block), U(8 * lane_bytes * block)

    @cuda.jit(device=True, forceinline=True)
    def load(codes, scales, _unused):
        return load_shared_x4(codes + CODES), read_scales(scales + SCALES)

    return load


def _multiply(config: Config, half: int, block: int) -> Callable[..., Any]:
    """For a block: device function (d, loaded, x) -> its sums plus 32 of K, the first or the second ones of a packed tile."""
    fragments, add_products = make_halves("mul", "rotated")[config.format][half], multiply(config.columns)

    @cuda.jit(device=True, forceinline=True)
    def one(d, loaded, x):
        return add_products(d[block], fragments(loaded[block][0], loaded[block][1]), x)

    return one
