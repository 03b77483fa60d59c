"""Which tile comes next: a persistent kernel's map from a tile number to expert and rows, for any tokens per expert.

Tokens lie sorted by expert, `offsets` [experts + 1] says where each expert begins. Tiles hold up to `columns` tokens of one expert; empty
experts have none. Every CTA builds the same table in shared memory: `first[e]`, the tiles of all experts before e.
"""

from __future__ import annotations

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda  # isort: skip

from perfmodel.kernels.ptx.memory import load_constant, load_shared, store_shared

U = np.uint32
U64 = np.uint64
WARP = U(32)
ALL_LANES = np.int32(-1)
MAX_EXPERTS = 512
TABLE_BYTES = 4 * (MAX_EXPERTS + 32)


@cuda.jit(device=True, forceinline=True)
def offset_of(offsets, expert):
    """Row at which an expert's tokens begin."""
    return load_constant(offsets + U64(expert) * U64(4))


@cuda.jit(device=True, forceinline=True)
def build_table(table, offsets, experts, columns):
    """Write `first` [experts + 1] to the shared address `table`; the first warp does it, all threads of the CTA must call.

    Each lane adds up a run of experts, a scan over the lanes gives the starts of the runs.
    """
    thread = U(cuda.threadIdx.x)
    if thread < WARP:
        run = (experts + WARP - U(1)) // WARP
        begin = thread * run
        end = min(begin + run, experts)
        total = U(0)
        for expert in range(begin, end):
            count = offset_of(offsets, U(expert) + U(1)) - offset_of(offsets, U(expert))
            total += (count + columns - U(1)) // columns
        before = total
        for step in (U(1), U(2), U(4), U(8), U(16)):
            other = U(cuda.shfl_up_sync(ALL_LANES, np.int32(before), step))
            if thread >= step:
                before += other
        at = before - total
        for expert in range(begin, end):
            store_shared(table + U(expert) * U(4), at)
            count = offset_of(offsets, U(expert) + U(1)) - offset_of(offsets, U(expert))
            at += (count + columns - U(1)) // columns
        if thread == WARP - U(1):
            store_shared(table + experts * U(4), before)
    cuda.syncthreads()


@cuda.jit(device=True, forceinline=True)
def first_tile(table, expert):
    """Token tiles before those of an expert; of `experts` itself: all of them."""
    return load_shared(table + expert * U(4))


@cuda.jit(device=True, forceinline=True)
def find_expert(table, experts, tile):
    """The expert that token tile `tile` belongs to: the last one with first[e] <= tile."""
    low = U(0)
    high = experts
    while low + U(1) < high:
        middle = (low + high) >> U(1)
        if load_shared(table + middle * U(4)) <= tile:
            low = middle
        else:
            high = middle
    return low
