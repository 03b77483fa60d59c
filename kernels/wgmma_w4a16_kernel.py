"""The device code of `wgmma_w4a16`: one producer thread, two or four warpgroups of consumers, a ring of stages between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.kernels.dequant_w4a16 import HALVES, LANE_SCALES
from perfmodel.kernels.epilogue import epilogue
from perfmodel.kernels.ptx.barrier import fence_mbarrier_init, mbarrier_arrive, mbarrier_expect, mbarrier_init, mbarrier_wait
from perfmodel.kernels.ptx.bulk import copy_bulk, copy_tile
from perfmodel.kernels.ptx.memory import array_address, load_constant_f32, load_shared_x4, to_shared
from perfmodel.kernels.ptx.registers import decrease_registers, increase_registers, zeros
from perfmodel.kernels.ptx.wgmma import descriptor_base, wgmma, wgmma_wait
from perfmodel.kernels.schedule import TABLE_BYTES, build_table, find_expert, first_tile, offset_of
from perfmodel.kernels.wgmma_w4a16 import ROW_TILE, SHARED_BYTES, TILE_BYTES, TILE_K, Config

U = np.uint32
U64 = np.uint64
ALIGNMENT = 1024
"""Bytes to which a swizzled tile in shared memory is aligned."""
BARRIER_BYTES = 16
"""Of a stage: the barrier "full" and, 8 bytes on, the barrier "empty"."""
WARP_BUFFER = 512
MAX_STAGES = 10


def make_kernel(config: Config) -> tuple[Callable[..., None], tuple[Any, ...], int]:
    """The kernel function of a configuration, its numba signature, its bytes of shared memory."""
    warps = 4 * config.warpgroups
    apart = ALIGNMENT + TABLE_BYTES + WARP_BUFFER * warps + BARRIER_BYTES * MAX_STAGES
    stages = min(MAX_STAGES, (SHARED_BYTES - apart) // config.stage_bytes)
    weights_at = stages * config.columns * TILE_K * 2
    buffers_at = weights_at + stages * config.weight_bytes
    barriers_at = buffers_at + WARP_BUFFER * warps
    table_at = barriers_at + BARRIER_BYTES * stages

    STAGES, STAGE_X, STAGE_W = U(stages), U(config.columns * TILE_K * 2), U(config.weight_bytes)
    WEIGHTS, BUFFERS, BARRIERS, TABLE = U(weights_at), U(buffers_at), U(barriers_at), U(table_at)
    COLUMNS, ROWS, TILES = U(config.columns), U(config.rows), U(config.rows // ROW_TILE)
    TILE = U(TILE_BYTES[config.format])
    CONSUMERS, CONSUMER_WARPS = U(128 * config.warpgroups), U(warps)
    few, many = config.registers
    main_loop = _ahead(config, stages, weights_at) if config.warpgroups == 2 else _in_step(config, stages, weights_at)
    stores = epilogue(config.columns, config.blocks, config.epilogue)
    store_0, store_1 = stores[0], stores[-1]
    two_blocks = config.blocks == 2
    fused = config.epilogue == "swiglu"
    zero = zeros(config.blocks * config.columns // 2)
    SIXTEENS, FEATURES = U(4 * config.blocks), U(64 * config.blocks)

    def kernel(tensor_map, weights, alphas, offsets, out, rows, scales, experts, n, k_tiles, row_tiles):
        shared = cuda.shared.array(0, types.uint8)
        thread = U(cuda.threadIdx.x)
        base = (to_shared(array_address(shared)) + U(ALIGNMENT - 1)) & U(0xFFFFFC00)
        barriers = base + BARRIERS
        table = base + TABLE
        if thread == U(0):
            for stage in range(stages):
                mbarrier_init(barriers + U(stage * BARRIER_BYTES), U(1))
                mbarrier_init(barriers + U(stage * BARRIER_BYTES + 8), CONSUMER_WARPS)
            fence_mbarrier_init()
        build_table(table, offsets, experts, COLUMNS)
        strips = (row_tiles + TILES - U(1)) // TILES
        last = first_tile(table, experts) * strips
        tile = U(cuda.blockIdx.x)
        step = U(cuda.gridDim.x)
        stage = U(0)
        if thread >= CONSUMERS:
            decrease_registers(few)
            if thread == CONSUMERS:
                parity = U(1)
                while tile < last:
                    token_tile = tile // strips
                    strip = tile - token_tile * strips
                    expert = find_expert(table, experts, token_tile)
                    row = offset_of(offsets, expert) + (token_tile - first_tile(table, expert)) * COLUMNS
                    first = strip * TILES
                    loaded = min(TILES, row_tiles - first)
                    source = weights + U64(expert * row_tiles + first) * U64(k_tiles) * U64(TILE)
                    for k in range(k_tiles):
                        full = barriers + stage * U(BARRIER_BYTES)
                        mbarrier_wait(full + U(8), parity)
                        mbarrier_expect(full, STAGE_X + loaded * TILE)
                        copy_tile(base + stage * STAGE_X, tensor_map, k * TILE_K, row, full)
                        target = base + WEIGHTS + stage * STAGE_W
                        for part in range(loaded):
                            copy_bulk(target + U(part) * TILE, source + U64(part) * U64(k_tiles) * U64(TILE), TILE, full)
                        source += U64(TILE)
                        stage += U(1)
                        if stage == STAGES:
                            stage = U(0)
                            parity ^= U(1)
                    tile += step
        else:
            increase_registers(many)
            parity = U(0)
            lane = thread & U(31)
            group = thread >> U(7)
            warp = (thread >> U(5)) & U(3)
            sixteen = group * SIXTEENS + warp
            buffer = base + BUFFERS + (thread >> U(5)) * U(WARP_BUFFER)
            while tile < last:
                token_tile = tile // strips
                strip = tile - token_tile * strips
                d, stage, parity = main_loop(zero(), base, barriers, sixteen, lane, stage, parity, k_tiles)
                expert = find_expert(table, experts, token_tile)
                begin = offset_of(offsets, expert)
                start = begin + (token_tile - first_tile(table, expert)) * COLUMNS
                count = min(offset_of(offsets, expert + U(1)) - start, COLUMNS)
                alpha = load_constant_f32(alphas + U64(expert) * U64(4))
                feature = strip * ROWS + group * FEATURES + warp * U(16)
                width = n if fused else n * U(2)
                store_0(d, alpha, buffer, lane, (out, width, start, count, feature, n), rows, scales)
                if two_blocks:
                    store_1(d, alpha, buffer, lane, (out, width, start, count, feature + U(64), n), rows, scales)
                tile += step

    pointers = (types.uint64,) * 7
    return kernel, (*pointers, *(types.uint32,) * 4), apart + stages * config.stage_bytes


def _fragments(config: Config, stages: int, weights_at: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Device functions (read, descriptor): words and scales of a lane for 16 rows of a stage, and the descriptor of its activations."""
    read_scales, scale_bytes = LANE_SCALES[config.format]
    TILE, STAGE_W, STAGE_X = U(TILE_BYTES[config.format]), U(config.weight_bytes), U(config.columns * TILE_K * 2)
    WEIGHTS, SCALES, LANE = U(weights_at), U(ROW_TILE * 32), U(scale_bytes)
    base_descriptor = descriptor_base()

    @cuda.jit(device=True, forceinline=True)
    def read(base, stage, sixteen, lane):
        tile = base + WEIGHTS + stage * STAGE_W + (sixteen >> U(3)) * TILE
        inside = sixteen & U(7)
        words = load_shared_x4(tile + inside * U(512) + lane * U(16))
        return words, read_scales(tile + SCALES + (inside * U(8) + (lane >> U(2))) * LANE)

    @cuda.jit(device=True, forceinline=True)
    def descriptor(base, stage):
        return base_descriptor | U64((base + stage * STAGE_X) >> U(4))

    return read, descriptor


def _ahead(config: Config, stages: int, weights_at: int) -> Callable[..., Any]:
    """Main loop that converts the next stage while the last one multiplies; for two warpgroups with many registers.

    Two stages a turn, so that the fragments in flight and the next ones have registers of their own.
    """
    read, descriptor = _fragments(config, stages, weights_at)
    half_0, half_1 = HALVES[config.format]
    multiply = wgmma(config.columns, "bf16", steps=4)
    STAGES = U(stages)

    @cuda.jit(device=True, forceinline=True)
    def advance(d, base, barriers, sixteen, lane, stage, parity):
        mbarrier_wait(barriers + stage * U(BARRIER_BYTES), parity)
        words, scales = read(base, stage, sixteen, lane)
        d = multiply(d, (*half_0(words, scales), *half_1(words, scales)), descriptor(base, stage))
        wgmma_wait(1)
        return d

    @cuda.jit(device=True, forceinline=True)
    def release(barriers, stage, lane):
        if lane == U(0):
            mbarrier_arrive(barriers + stage * U(BARRIER_BYTES) + U(8))

    @cuda.jit(device=True, forceinline=True)
    def main_loop(d, base, barriers, sixteen, lane, stage, parity, k_tiles):
        before = stage
        for k in range(0, k_tiles - U(1), 2):
            d = advance(d, base, barriers, sixteen, lane, stage, parity)
            if k > 0:
                release(barriers, before, lane)
            before = stage
            stage += U(1)
            if stage == STAGES:
                stage = U(0)
                parity ^= U(1)
            d = advance(d, base, barriers, sixteen, lane, stage, parity)
            release(barriers, before, lane)
            before = stage
            stage += U(1)
            if stage == STAGES:
                stage = U(0)
                parity ^= U(1)
        if k_tiles & U(1):
            d = advance(d, base, barriers, sixteen, lane, stage, parity)
            if k_tiles > U(1):
                release(barriers, before, lane)
            before = stage
            stage += U(1)
            if stage == STAGES:
                stage = U(0)
                parity ^= U(1)
        wgmma_wait(0)
        release(barriers, before, lane)
        return d, stage, parity

    return main_loop


def _in_step(config: Config, stages: int, weights_at: int) -> Callable[..., Any]:
    """Main loop that waits for each multiplication; for four warpgroups, of which one converts while the others multiply."""
    read, descriptor = _fragments(config, stages, weights_at)
    half_0, half_1 = HALVES[config.format]
    two_blocks = config.blocks == 2
    multiply = wgmma(config.columns, "bf16", steps=2, blocks=2) if two_blocks else wgmma(config.columns, "bf16", steps=4)
    STAGES = U(stages)

    @cuda.jit(device=True, forceinline=True)
    def main_loop(d, base, barriers, sixteen, lane, stage, parity, k_tiles):
        for _ in range(k_tiles):
            full = barriers + stage * U(BARRIER_BYTES)
            mbarrier_wait(full, parity)
            words, scales = read(base, stage, sixteen, lane)
            b = descriptor(base, stage)
            if two_blocks:
                words_1, scales_1 = read(base, stage, sixteen + U(4), lane)
                d = multiply(d, (*half_0(words, scales), *half_0(words_1, scales_1)), b)
                wgmma_wait(0)
                d = multiply(d, (*half_1(words, scales), *half_1(words_1, scales_1)), b + U64(4))
            else:
                d = multiply(d, (*half_0(words, scales), *half_1(words, scales)), b)
            wgmma_wait(0)
            if lane == U(0):
                mbarrier_arrive(full + U(8))
            stage += U(1)
            if stage == STAGES:
                stage = U(0)
                parity ^= U(1)
        return d, stage, parity

    return main_loop
