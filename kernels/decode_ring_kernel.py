"""The device code of `decode_ring`: from tile to tile, producers and consumers apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.kernels.decode import NUMBERS, POINTERS
from perfmodel.kernels.decode_ring import PRODUCERS, Config
from perfmodel.kernels.decode_ring_loop import make_consume, make_fill, make_ring
from perfmodel.kernels.decode_ring_plan import Plan
from perfmodel.kernels.mma_w4a16 import TILE_K
from perfmodel.kernels.mma_w4a16_epilogue import make_finish
from perfmodel.kernels.mma_w4a16_plan import ALIGNMENT
from perfmodel.kernels.ptx.barrier import barrier_sync
from perfmodel.kernels.ptx.memory import (
    array_address,
    load_constant,
    load_constant_f32,
    store_shared,
    to_shared,
)
from perfmodel.kernels.ptx.registers import decrease_registers, increase_registers
from perfmodel.kernels.schedule import make_find_tile

U = np.uint32
U64 = np.uint64
RING_IS_SET_UP, CONSUMERS_MEET = U(1), U(2)
"""Numbers of the CTA's barriers."""


def make_kernel(config: Config) -> tuple[Callable[..., None], tuple[Any, ...], int]:
    """The kernel function of a configuration, its numba signature, its bytes of shared memory."""
    plan = Plan(config)
    start_ring, after = make_ring(plan)
    find_tile = make_find_tile(config.columns)
    produce, consume = make_producer(plan, find_tile, after), make_consumer(plan, find_tile, after)
    STRIPS, CONSUMERS, THREADS = U(config.strips), U(config.consumers), U(config.threads)
    few, many = config.registers

    def kernel(x, weights, alphas, offsets, out, x_rows, out_rows, factors, experts, n, k, row_tiles):
        shared = cuda.shared.array(0, types.uint8)
        thread = U(cuda.threadIdx.x)
        base = U((to_shared(array_address(shared)) + U(ALIGNMENT - 1)) & U(0x100000000 - ALIGNMENT))
        groups = U((row_tiles + STRIPS - U(1)) // STRIPS)
        if thread >= CONSUMERS:
            decrease_registers(few)
            thread = U(thread - CONSUMERS)
            start_ring(base, thread)
            barrier_sync(RING_IS_SET_UP, THREADS)
            produce(base, thread, x, weights, x_rows, offsets, experts, k, row_tiles, groups)
        else:
            increase_registers(many)
            barrier_sync(RING_IS_SET_UP, THREADS)
            consume(base, alphas, (out, out_rows, factors), offsets, experts, n, k, groups)

    return kernel, (types.uint64,) * len(POINTERS) + (types.uint32,) * len(NUMBERS), plan.bytes


def make_producer(plan: Plan, find_tile: Callable[..., Any], after: Callable[..., Any]) -> Callable[..., Any]:
    """Device function of the threads that fill stages, tile after tile."""
    config = plan.config
    STRIPS, TILE, BESIDE, gather = U(config.strips), U64(config.tile_bytes), U(PRODUCERS // config.columns), config.gather
    fill = make_fill(plan, after)

    @cuda.jit(device=True, forceinline=True)
    def produce(base, thread, x, weights, x_rows, offsets, experts, k, row_tiles, groups):
        lane = U(thread & U(31))
        token = U(thread // BESIDE)
        k_tiles = U((k + U(TILE_K - 1)) // U(TILE_K))
        stage = U(0)
        parity = U(1)
        tile = U(cuda.blockIdx.x)
        expert, group, start, count = find_tile(tile, offsets, experts, groups, lane)
        while count > U(0):
            row = U(start + min(token, U(count - U(1))))
            if gather:
                row = load_constant(x_rows + U64(row) * U64(4))
            strip = U(group * STRIPS)
            source = weights + U64(U(expert * row_tiles + strip)) * U64(k_tiles) * TILE
            strips = min(STRIPS, U(row_tiles - strip))  # the last tile may be narrower: what is beyond is computed and dropped
            there = token < count
            stage, parity = fill(base, thread, x + U64(row) * U64(k) * U64(2), there, source, strips, k, stage, parity)
            tile = U(tile + U(cuda.gridDim.x))
            expert, group, start, count = find_tile(tile, offsets, experts, groups, lane)

    return produce


def make_consumer(plan: Plan, find_tile: Callable[..., Any], after: Callable[..., Any]) -> Callable[..., Any]:
    """Device function of the warps that multiply and store, tile after tile."""
    config = plan.config
    ROW_WARPS, OUT_ROWS, FACTORS = U(config.row_warps), U(plan.out_rows), U(plan.factors)
    scatter = config.epilogue == "scatter"
    meet = make_meet(config.consumers)
    consume_tile, finish = make_consume(plan, after), make_finish(config, plan, meet)

    @cuda.jit(device=True, forceinline=True)
    def consume(base, alphas, target, offsets, experts, n, k, groups):
        thread = U(cuda.threadIdx.x)
        lane = U(thread & U(31))
        split = U((thread >> U(5)) // ROW_WARPS)
        warp = U((thread >> U(5)) % ROW_WARPS)
        out, out_rows, factors = target
        stage = U(0)
        parity = U(0)
        tile = U(cuda.blockIdx.x)
        expert, group, start, count = find_tile(tile, offsets, experts, groups, lane)
        while count > U(0):
            alpha = load_constant_f32(alphas + U64(expert) * U64(4))
            d, stage, parity = consume_tile(base, warp, split, lane, k, stage, parity)
            if scatter:
                meet()  # the rows of the last tile have been stored
                if thread < count:
                    store_shared(base + OUT_ROWS + thread * U(4), load_constant(out_rows + U64(start + thread) * U64(4)))
                    store_shared(base + FACTORS + thread * U(4), load_constant(factors + U64(start + thread) * U64(4)))
            finish(d, alpha, (out, n, group, start, count), base)
            tile = U(tile + U(cuda.gridDim.x))
            expert, group, start, count = find_tile(tile, offsets, experts, groups, lane)

    return consume


def make_meet(threads: int) -> Callable[..., Any]:
    """Device function: the barrier of the consumers, whom the producer never waits for there."""
    THREADS = U(threads)

    @cuda.jit(device=True, forceinline=True)
    def meet():
        barrier_sync(CONSUMERS_MEET, THREADS)

    return meet
