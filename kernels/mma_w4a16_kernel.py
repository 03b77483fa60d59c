"""The device code of `mma_w4a16`: from tile to tile, and the main loop along K."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.kernels.layouts import MXFP4_WINDOW
from perfmodel.kernels.mma_tile import join_sums, keep_rolled
from perfmodel.kernels.mma_w4a16 import GROUPED, NUMBERS, POINTERS, TILE_K, Config
from perfmodel.kernels.mma_w4a16_epilogue import make_finish
from perfmodel.kernels.mma_w4a16_parts import (
    make_copy_stage,
    make_lane_offsets,
    make_lane_parts,
    make_load,
    make_sources,
    make_step,
    make_step_grouped,
    make_take_tile,
)
from perfmodel.kernels.mma_w4a16_plan import ALIGNMENT, Plan
from perfmodel.kernels.ptx.bulk import copy_commit, copy_wait
from perfmodel.kernels.ptx.memory import (
    array_address,
    load_constant,
    load_constant_f32,
    load_shared,
    load_shared_x4,
    to_shared,
)
from perfmodel.kernels.ptx.registers import zeros
from perfmodel.kernels.schedule import build_table, first_tile

U = np.uint32
U64 = np.uint64
ONE = np.float32(1)
REST = np.float32(2.0**-MXFP4_WINDOW.binades)
"""What a rest counts, beside the tiles above it."""


def make_kernel(config: Config) -> tuple[Callable[..., None], tuple[Any, ...], int]:
    """The kernel function of a configuration, its numba signature, its bytes of shared memory."""
    plan = Plan(config)
    take_tile, sources = make_take_tile(config, plan), make_sources(config)
    main_loop, rest_loop, finish = _main_loop(config, plan), _rest_loop(config, plan), make_finish(config, plan)
    zero, join = zeros(config.blocks * config.columns // 2), join_sums(config.blocks * config.columns // 2)
    COLUMNS, ROW_WARPS, PLACE = U(config.columns), U(config.row_warps), U(plan.place)
    has_rest = config.rest

    def kernel(
        x, weights, group_scales, alphas, offsets, out, x_rows, out_rows, factors, rest_tiles, rest_start, rest_k_tile,
        experts, n, k, row_tiles, group_shift,
    ):  # fmt: skip
        shared = cuda.shared.array(0, types.uint8)
        base = U((to_shared(array_address(shared)) + U(ALIGNMENT - 1)) & U(0x100000000 - ALIGNMENT))
        build_table(base, offsets, experts, COLUMNS)
        split = U((cuda.threadIdx.x >> U(5)) // ROW_WARPS)
        k_tiles = U((k + U(TILE_K - 1)) // U(TILE_K))
        tile = U(cuda.blockIdx.x)
        while tile < U(first_tile(base, experts) * row_tiles):
            place, count = take_tile(base, tile, (offsets, experts, row_tiles), (x, k), (x_rows, out_rows, factors))
            codes, scales = sources(weights, group_scales, place, k_tiles, group_shift)
            if has_rest:
                rest = (rest_tiles, rest_start + U64(place) * U64(4), rest_k_tile)
                rest_sums = rest_loop(zero(), rest, k, count, base, split)
            d = main_loop(zero(), (codes, scales, U(k_tiles - U(1)), group_shift), k, count, base, split)
            expert, strip, start, count = load_shared_x4(base + PLACE)  # noted, so that they take no registers in the main loop
            alpha = load_constant_f32(alphas + U64(expert) * U64(4))
            if has_rest:  # alpha and the factor of the rest first: apart, either would leave the range of single precision
                d = join(d, rest_sums, alpha, alpha * REST)
                alpha = ONE
            copy_wait(0)  # stages beyond K were started too: sums must not meet their zeros
            finish(d, alpha, (out, n, strip, start, count), base)
            tile = U(load_shared(base + PLACE + U(16)) + U(cuda.gridDim.x))

    return kernel, (types.uint64,) * len(POINTERS) + (types.uint32,) * len(NUMBERS), plan.bytes


def _next_stage(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: wait for a stage, whose first tile is `tile`, and start to fill the one before it. Returns the stage after it.

    The barrier that says that all copies have landed also says that all warps have read the stage that is filled next.
    """
    copy_stage = make_copy_stage(config, plan)
    WORK, STAGE, STAGES, AHEAD = U(plan.work), U(plan.stage), U(config.stages), U((config.stages - 1) * config.stage_tiles)
    pending = config.stages - 2

    @cuda.jit(device=True, forceinline=True)
    def next_stage(base, k, count, k_tiles, tile, stage):
        copy_wait(pending)
        cuda.syncthreads()
        later = U(tile + AHEAD)
        free = U(stage - U(1)) if stage > U(0) else U(STAGES - U(1))
        if later < k_tiles:
            copy_stage(base, U(base + WORK + free * STAGE), k, count, later)
        copy_commit()
        return U(stage + U(1)) if U(stage + U(1)) < STAGES else U(0)

    return next_stage


def _main_loop(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: d plus the products over all of K that this warp's group has.

    Weights are loaded a tile ahead, activations `stages` - 1 stages. Two packed tiles a turn, so that those of now and the next ones have
    registers of their own.
    """
    copy_stage, next_stage, load = make_copy_stage(config, plan), _next_stage(config, plan), make_load(config)
    step = make_step_grouped(config) if config.format in GROUPED else make_step(config)
    lane_parts = make_lane_parts(config, plan)
    WORK, STAGE, TILE = U(plan.work), U(plan.stage), U(plan.tile)
    SPLITS, TURN, STAGE_TILES = U(config.splits), U(2 * config.splits), U(config.stage_tiles)
    ahead, one = config.stages - 1, config.tiles == 1

    @cuda.jit(device=True, forceinline=True)
    def main_loop(d, weights, k, count, base, split):
        k_tiles = U(weights[2] + U(1))
        for early in range(ahead):
            copy_stage(base, base + WORK + U(early) * STAGE, k, count, U(early) * STAGE_TILES)
            copy_commit()
        near = load(weights, split)
        far = load(weights, U(split + SPLITS))
        stage = U(0)
        tile = U(0)
        while tile < k_tiles:
            tile = keep_rolled(tile)
            row, piece = lane_parts()
            at = U(base + stage * STAGE + row)
            stage = next_stage(base, k, count, k_tiles, tile, stage)
            d = step(d, near, at, piece)
            near = load(weights, U(tile + TURN + split))
            if one:
                if U(tile + SPLITS) < k_tiles:
                    row, piece = lane_parts()
                    at = U(base + stage * STAGE + row)
                    stage = next_stage(base, k, count, k_tiles, U(tile + SPLITS), stage)
                    d = step(d, far, at, piece)
            else:
                d = step(d, far, U(at + SPLITS * TILE), piece)
            far = load(weights, U(tile + TURN + SPLITS + split))
            tile = U(tile + TURN)
        return d

    return main_loop


def _rest_loop(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: d plus the products of a rest (`levels`), one tile after the other, since it is rare and short."""
    copy_stage, load = make_copy_stage(config, plan), make_load(config)
    step = make_step_grouped(config) if config.format in GROUPED else make_step(config)
    lane_offsets, lane_parts = make_lane_offsets(config), make_lane_parts(config, plan)
    WORK, TILE = U(plan.work), U64(config.tile_bytes)

    @cuda.jit(device=True, forceinline=True)
    def rest_loop(d, rest, k, count, base, split):
        tiles, start, k_tile = rest
        to_codes, to_scales = lane_offsets(U(cuda.threadIdx.x))
        for i in range(load_constant(start), load_constant(start + U64(4))):
            copy_stage(base, base + WORK, k, count, load_constant(k_tile + U64(i) * U64(4)))
            copy_commit()
            copy_wait(0)
            cuda.syncthreads()
            if split == U(0):
                tile = tiles + U64(i) * TILE
                row, piece = lane_parts()
                d = step(d, load((tile + U64(to_codes), tile + U64(to_scales), U(0), U(0)), U(0)), U(base + row), piece)
            cuda.syncthreads()
        return d

    return rest_loop
