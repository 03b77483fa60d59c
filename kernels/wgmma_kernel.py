"""The device code of a grouped GEMM on wgmma: one producer thread, two or four warpgroups of consumers, a ring of stages between them.

A stage holds the activations of a tile of tokens (128 bytes of each) and the packed weights of the same K. Its barrier "full" tells the
consumers that the bytes of both have come, its barrier "empty" tells the producer that every thread is done with them. What differs from
format to format comes in from outside: `Operand` makes fragments of packed weights, `epilogue.Scaling` says what sums are multiplied by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.kernels.epilogue import Scaling, epilogue, token_loader
from perfmodel.kernels.ptx.barrier import fence_mbarrier_init, mbarrier_expect, mbarrier_init, mbarrier_wait
from perfmodel.kernels.ptx.bulk import copy_bulk, copy_tile
from perfmodel.kernels.ptx.memory import array_address, to_shared
from perfmodel.kernels.ptx.registers import decrease_registers, increase_registers, zeros
from perfmodel.kernels.schedule import build_table, find_expert, first_tile, offset_of
from perfmodel.kernels.wgmma_config import ALIGNMENT, BARRIER_BYTES, ROW_TILE, TILE_BYTES, WARP_BUFFER, Config, Plan
from perfmodel.kernels.wgmma_loops import Operand, ahead, in_step

U = np.uint32
U64 = np.uint64


def device_code(config: Config, operand: Operand, scaling: Scaling) -> Callable[..., Any]:
    """The whole kernel as a device function.

    (tensor_map, weights, scales, offsets, out, rows, routing, experts, n, k_tiles, row_tiles): see `wgmma_w4a16.build`; `scales` is a tuple
    of what `scaling` takes.
    """
    plan = Plan(config)
    stages, BARRIERS, TABLE = plan.stages, U(plan.barriers), U(plan.table)
    COLUMNS, TILES = U(config.columns), U(config.rows // ROW_TILE)
    CONSUMERS = U(128 * config.warpgroups)
    few, many = config.registers
    produce, consume = producer(plan), consumer(plan, operand, scaling)

    @cuda.jit(device=True, forceinline=True)
    def run(tensor_map, weights, scales, offsets, out, rows, routing, experts, n, k_tiles, row_tiles):
        shared = cuda.shared.array(0, types.uint8)
        thread = U(cuda.threadIdx.x)
        base = (to_shared(array_address(shared)) + U(ALIGNMENT - 1)) & U(0x100000000 - ALIGNMENT)
        barriers = base + BARRIERS
        if thread == U(0):
            for stage in range(stages):
                mbarrier_init(barriers + U(stage * BARRIER_BYTES), U(1))
                mbarrier_init(barriers + U(stage * BARRIER_BYTES + 8), CONSUMERS)
            fence_mbarrier_init()
        table = base + TABLE
        build_table(table, offsets, experts, COLUMNS)
        strips = (row_tiles + TILES - U(1)) // TILES
        last = first_tile(table, experts) * strips
        if thread >= CONSUMERS:
            decrease_registers(few)
            if thread == CONSUMERS:
                produce(base, tensor_map, weights, offsets, experts, k_tiles, row_tiles, strips, last)
        else:
            increase_registers(many)
            consume(base, scales, (out, rows, routing), offsets, experts, n, k_tiles, strips, last)

    return run


def producer(plan: Plan) -> Callable[..., Any]:
    """Device function of the one thread that fills stages, tile after tile."""
    config = plan.config
    STAGES, STAGE_X, STAGE_W, K = U(plan.stages), U(config.x_bytes), U(config.weight_bytes), U(config.tile_k)
    WEIGHTS, BARRIERS, TABLE, TILE = U(plan.weights), U(plan.barriers), U(plan.table), U(TILE_BYTES[config.format])
    COLUMNS, TILES = U(config.columns), U(config.rows // ROW_TILE)

    @cuda.jit(device=True, forceinline=True)
    def produce(base, tensor_map, weights, offsets, experts, k_tiles, row_tiles, strips, last):
        table = base + TABLE
        stage = U(0)
        parity = U(1)
        tile = U(cuda.blockIdx.x)
        while tile < last:
            token_tile = tile // strips
            first = (tile - token_tile * strips) * TILES
            expert = find_expert(table, experts, token_tile)
            row = offset_of(offsets, expert) + (token_tile - first_tile(table, expert)) * COLUMNS
            loaded = min(TILES, row_tiles - first)  # the last strip may be narrower: the rows beyond are computed and dropped
            source = weights + U64(expert * row_tiles + first) * U64(k_tiles) * U64(TILE)
            for k in range(k_tiles):
                full = base + BARRIERS + stage * U(BARRIER_BYTES)
                mbarrier_wait(full + U(8), parity)
                mbarrier_expect(full, STAGE_X + loaded * TILE)
                copy_tile(base + stage * STAGE_X, tensor_map, k * K, row, full)
                target = base + WEIGHTS + stage * STAGE_W
                for part in range(loaded):
                    copy_bulk(target + U(part) * TILE, source + U64(part) * U64(k_tiles) * U64(TILE), TILE, full)
                source += U64(TILE)
                stage += U(1)
                if stage == STAGES:
                    stage = U(0)
                    parity ^= U(1)
            tile += U(cuda.gridDim.x)

    return produce


def consumer(plan: Plan, operand: Operand, scaling: Scaling) -> Callable[..., Any]:
    """Device function of the threads that multiply and store, tile after tile."""
    config = plan.config
    BUFFERS, TABLE, COLUMNS, ROWS = U(plan.buffers), U(plan.table), U(config.columns), U(config.rows)
    SIXTEENS, FEATURES = U(4 * config.blocks), U(64 * config.blocks)
    main_loop = ahead(plan, operand) if config.ahead else in_step(plan, operand)
    of_rows, load_tokens = scaling.of_rows, token_loader(config.columns, config.epilogue, scaling)
    stores = epilogue(config.columns, config.blocks, config.epilogue, scaling)
    store_0, store_1 = stores[0], stores[-1]
    two_blocks, fused = config.blocks == 2, config.epilogue == "swiglu"
    zero = zeros(config.blocks * config.columns // 2)

    @cuda.jit(device=True, forceinline=True)
    def consume(base, scales, target, offsets, experts, n, k_tiles, strips, last):
        table = base + TABLE
        thread = U(cuda.threadIdx.x)
        lane = thread & U(31)
        group = thread >> U(7)
        warp = (thread >> U(5)) & U(3)
        sixteen = group * SIXTEENS + warp
        buffer = base + BUFFERS + (thread >> U(5)) * U(WARP_BUFFER)
        out, rows, routing = target
        width = n if fused else n * U(2)
        stage = U(0)
        parity = U(0)
        tile = U(cuda.blockIdx.x)
        while tile < last:
            token_tile = tile // strips
            strip = tile - token_tile * strips
            expert = find_expert(table, experts, token_tile)
            start = offset_of(offsets, expert) + (token_tile - first_tile(table, expert)) * COLUMNS
            count = min(offset_of(offsets, expert + U(1)) - start, COLUMNS)
            feature = strip * ROWS + group * FEATURES + warp * U(16)
            row = feature + (lane >> U(2))
            # Loaded before the loop, needed behind it: by then they have come, however far away they lay.
            tokens = load_tokens(scales, routing, rows, start, count, lane)
            factors = of_rows(scales, expert, row)
            d, stage, parity = main_loop(zero(), base, sixteen, lane, stage, parity, k_tiles)
            store_0(d, factors, tokens, buffer, lane, (out, width, start, count, feature, n))
            if two_blocks:
                factors = of_rows(scales, expert, row + U(64))
                store_1(d, factors, tokens, buffer, lane, (out, width, start, count, feature + U(64), n))
            tile += U(cuda.gridDim.x)

    return consume
