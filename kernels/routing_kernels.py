"""The device code of `routing`."""

from __future__ import annotations

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.kernels.ptx.barrier import warp_sync
from perfmodel.kernels.ptx.convert import bits_float, exp2_approx, float_bits, pack_bf16x2
from perfmodel.kernels.ptx.memory import (
    array_address,
    load_constant,
    load_constant_f32,
    load_constant_x4,
    load_shared,
    store_global,
    store_global_f32,
    store_global_x4,
    store_shared,
    to_shared,
)
from perfmodel.kernels.ptx.shuffle import largest_of_warp
from perfmodel.kernels.routing import COMBINE_THREADS, GATHER_THREADS, MAX_EXPERTS, ROUTE_THREADS, SORT_THREADS
from perfmodel.kernels.variants import KernelSource

U = np.uint32
U64 = np.uint64
F = np.float32
ALL_LANES = np.int32(-1)
LOG2_E = F(1.4426950408889634)
NONE = U(0xFFFFFFFF)
"""No expert."""
WARP = U(32)
SORT_WARPS = SORT_THREADS // 32


@cuda.jit(device=True, forceinline=True)
def exp(x):
    """e ** x in single precision."""
    return exp2_approx(x * LOG2_E)


@cuda.jit(device=True, forceinline=True)
def sum_over_lanes(value):
    """The sum of a float over the warp, in every lane."""
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(ALL_LANES, value, step)
    return value


@cuda.jit(device=True, forceinline=True)
def sort_key(value):
    """A float as a word in the same order, 1 for NaN: 0 is left to mean "taken". Both zeros are one."""
    bits = float_bits(value + np.float32(0.0))
    key = U(~bits) if bits >> U(31) else U(bits | U(0x80000000))  # numba widens integers: back to 32 bits
    return max(key, U(1)) if value == value else U(1)


@cuda.jit(device=True, forceinline=True)
def key_float(key):
    """The float of a `sort_key`."""
    return bits_float(U(key ^ U(0x80000000)) if key >> U(31) else U(~key))


@cuda.jit(device=True, forceinline=True)
def take_best(keys, lane, count):
    """(expert, key) of the largest key, of equals the lowest expert; its key becomes 0. The warp takes part, each lane has the result."""
    best = U(0)
    for expert in range(lane, count, WARP):
        best = max(best, load_shared(keys + U(expert) * U(4)))
    largest = largest_of_warp(best)
    lowest = U(0)
    for expert in range(lane, count, WARP):
        if load_shared(keys + U(expert) * U(4)) == largest and lowest == U(0):
            lowest = U(NONE - U(expert))
    winner = U(NONE - largest_of_warp(lowest))
    if lane == U(0):
        store_shared(keys + winner * U(4), U(0))
    warp_sync()
    return winner, largest


def make_route(renormalise: bool) -> KernelSource:
    """Softmax and top-k of a token by one warp, its keys in shared memory."""
    KEYS = ROUTE_THREADS // 32 * MAX_EXPERTS

    def route(logits, experts, weights, tokens, count, topk):
        held = cuda.shared.array(KEYS, types.uint32)
        warp = U(cuda.threadIdx.x) >> U(5)
        lane = U(cuda.threadIdx.x) & U(31)
        token = U(cuda.blockIdx.x) * U(ROUTE_THREADS // 32) + warp
        if token < tokens:
            keys = to_shared(array_address(held)) + warp * U(4 * MAX_EXPERTS)
            best = U(0)
            for expert in range(lane, count, WARP):
                key = sort_key(load_constant_f32(logits + (U64(token) * U64(count) + U64(expert)) * U64(4)))
                store_shared(keys + U(expert) * U(4), key)
                best = max(best, key)
            top = key_float(largest_of_warp(best))
            total = F(0)
            for expert in range(lane, count, WARP):
                total += exp(key_float(load_shared(keys + U(expert) * U(4))) - top)
            chosen, weight = U(0), F(0)
            warp_sync()
            for place in range(topk):
                winner, key = take_best(keys, lane, count)
                if lane == U(place):
                    chosen, weight = winner, exp(key_float(key) - top)
            total = sum_over_lanes(weight if renormalise else total)
            if lane < topk:
                at = (U64(token) * U64(topk) + U64(lane)) * U64(4)
                store_global(experts + at, chosen)
                store_global_f32(weights + at, weight / total)

    signature = (types.uint64,) * 3 + (types.uint32,) * 3
    return KernelSource(route, signature, ROUTE_THREADS, 0, (ROUTE_THREADS, 1))


@cuda.jit(device=True, forceinline=True)
def expert_of(experts, pair, end, count):
    """The expert of a pair, NONE beyond the last pair and for experts that are not there."""
    expert = load_constant(experts + U64(pair) * U64(4)) if pair < end else NONE
    return expert if expert < count else NONE


@cuda.jit(device=True, forceinline=True)
def four_experts(experts, pair, end, count):
    """Experts of a lane's pairs in four rounds of 32."""
    e0, e1 = expert_of(experts, pair, end, count), expert_of(experts, pair + WARP, end, count)
    return e0, e1, expert_of(experts, pair + U(64), end, count), expert_of(experts, pair + U(96), end, count)


@cuda.jit(device=True, forceinline=True)
def claim(table, expert, lane):
    """Places of the warp's pairs: table[expert] and up, in the order of the lanes. The table moves on behind them."""
    same = U(cuda.match_any_sync(ALL_LANES, np.int32(expert)))
    before = U(cuda.popc(same & ((U(1) << lane) - U(1))))
    place = U(0)
    if expert != NONE:
        place = load_shared(table + expert * U(4)) + before
    warp_sync()
    if expert != NONE and before == U(0):
        store_shared(table + expert * U(4), place + U(cuda.popc(same)))
    warp_sync()
    return place


@cuda.jit(device=True, forceinline=True)
def scan_experts(starts, offsets, count):
    """Turn the sums at `starts` into the sums of all experts before, there and in `offsets`; the first warp does it.

    A lane adds up a run of experts, a scan over the lanes gives the starts of the runs.
    """
    lane = U(cuda.threadIdx.x)
    if lane < WARP:
        run = (count + U(31)) // WARP
        begin = min(lane * run, count)
        end = min(begin + run, count)
        total = U(0)
        for expert in range(begin, end):
            total += load_shared(starts + U(expert) * U(4))
        before = total
        for step in (U(1), U(2), U(4), U(8), U(16)):
            other = U(cuda.shfl_up_sync(ALL_LANES, np.int32(before), step))
            if lane >= step:
                before += other
        at = before - total
        for expert in range(begin, end):
            found = load_shared(starts + U(expert) * U(4))
            store_shared(starts + U(expert) * U(4), at)
            store_global(offsets + U64(expert) * U64(4), at)
            at += found
        if lane == U(31):
            store_global(offsets + U64(count) * U64(4), before)


@cuda.jit(device=True, forceinline=True)
def start_experts(tables, starts, offsets, count):
    """From the counts of every warp and expert to the place at which each warp's pairs of each expert begin; `offsets` on the way.

    All threads of the CTA call it.
    """
    thread = U(cuda.threadIdx.x)
    if thread < count:
        total = U(0)
        for warp in range(SORT_WARPS):
            at = tables + (U(warp) * U(MAX_EXPERTS) + thread) * U(4)
            found = load_shared(at)
            store_shared(at, total)
            total += found
        store_shared(starts + thread * U(4), total)
    cuda.syncthreads()
    scan_experts(starts, offsets, count)
    cuda.syncthreads()
    if thread < count:
        for warp in range(SORT_WARPS):
            at = tables + (U(warp) * U(MAX_EXPERTS) + thread) * U(4)
            store_shared(at, load_shared(at) + load_shared(starts + thread * U(4)))
    cuda.syncthreads()


def make_sort() -> KernelSource:
    """A counting sort by one CTA. Each warp has a run of pairs and a table of counts of its own, so that nothing depends on who is first.

    Two passes over the pairs: the first counts, the second places. Four rounds of 32 pairs are loaded at a time.
    """
    shared_bytes = 4 * (SORT_WARPS + 1) * MAX_EXPERTS

    def sort(experts, weights, offsets, pairs, rows, factors, places, end, count, topk):
        shared = cuda.shared.array(0, types.uint32)
        tables = to_shared(array_address(shared))
        thread = U(cuda.threadIdx.x)
        warp = thread >> U(5)
        lane = thread & U(31)
        for at in range(thread, U(SORT_WARPS * MAX_EXPERTS), U(SORT_THREADS)):
            store_shared(tables + U(at) * U(4), U(0))
        cuda.syncthreads()
        run = (end + U(128 * SORT_WARPS - 1)) // U(128 * SORT_WARPS) * U(128)
        begin = warp * run
        stop = min(begin + run, end)
        table = tables + warp * U(4 * MAX_EXPERTS)
        for first in range(begin, stop, U(128)):
            for expert in four_experts(experts, U(first) + lane, stop, count):
                claim(table, expert, lane)
        cuda.syncthreads()
        start_experts(tables, tables + U(4 * SORT_WARPS * MAX_EXPERTS), offsets, count)
        for first in range(begin, stop, U(128)):
            pair = U(first) + lane
            for expert in four_experts(experts, pair, stop, count):
                place = claim(table, expert, lane)
                if expert != NONE:
                    store_global(pairs + U64(place) * U64(4), pair)
                    store_global(rows + U64(place) * U64(4), pair // topk)
                    store_global_f32(factors + U64(place) * U64(4), load_constant_f32(weights + U64(pair) * U64(4)))
                    store_global(places + U64(pair) * U64(4), place)
                pair += WARP

    signature = (types.uint64,) * 7 + (types.uint32,) * 3
    return KernelSource(sort, signature, SORT_THREADS, shared_bytes, (SORT_THREADS, 1))


def make_gather() -> KernelSource:
    """One CTA copies one row."""

    def gather(x, rows, out, hidden):
        place = U(cuda.blockIdx.x)
        row = load_constant(rows + U64(place) * U64(4))
        source = x + U64(row) * U64(hidden) * U64(2)
        target = out + U64(place) * U64(hidden) * U64(2)
        for vector in range(U(cuda.threadIdx.x), hidden >> U(3), U(GATHER_THREADS)):
            store_global_x4(target + U64(vector) * U64(16), load_constant_x4(source + U64(vector) * U64(16)))

    return KernelSource(gather, (types.uint64,) * 3 + (types.uint32,), GATHER_THREADS, 0, (GATHER_THREADS, 1))


@cuda.jit(device=True, forceinline=True)
def add_pair(low, high, word, factor):
    """(low, high) + factor x the two bf16 of a word."""
    return low + factor * bits_float(word << U(16)), high + factor * bits_float(word & U(0xFFFF0000))


def make_combine(weighted: bool) -> KernelSource:
    """A thread adds 8 features of a token's rows; grid: (tokens, CTAs that cover H)."""

    def combine(y, places, weights, out, hidden, topk):
        token = U64(cuda.blockIdx.x)
        vector = U(cuda.blockIdx.y) * U(COMBINE_THREADS) + U(cuda.threadIdx.x)
        if vector < hidden >> U(3):
            width = U64(hidden) * U64(2)
            column = U64(vector) * U64(16)
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = F(0)
            for place in range(topk):
                pair = token * U64(topk) + U64(place)
                row = U64(load_constant(places + pair * U64(4))) if weighted else pair
                factor = load_constant_f32(weights + pair * U64(4)) if weighted else F(1)
                w0, w1, w2, w3 = load_constant_x4(y + row * width + column)
                s0, s1 = add_pair(s0, s1, w0, factor)
                s2, s3 = add_pair(s2, s3, w1, factor)
                s4, s5 = add_pair(s4, s5, w2, factor)
                s6, s7 = add_pair(s6, s7, w3, factor)
            words = (pack_bf16x2(s0, s1), pack_bf16x2(s2, s3), pack_bf16x2(s4, s5), pack_bf16x2(s6, s7))
            store_global_x4(out + token * width + column, words)

    return KernelSource(combine, (types.uint64,) * 4 + (types.uint32,) * 2, COMBINE_THREADS, 0, (COMBINE_THREADS, 1))
