"""Which tile comes next: a persistent kernel's map from a tile number to expert and rows, for any tokens per expert.

Tokens lie sorted by expert, `offsets` [experts + 1] says where each expert begins. Tiles hold up to `columns` tokens of one expert; empty
experts have none. Two ways: every CTA builds the same table in shared memory, `first[e]`, the tiles of all experts before e; or each warp
looks for each tile (`make_find_tile`), which is faster where there are few.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda  # isort: skip

from perfmodel.kernels.ptx.memory import load_constant, load_shared, store_shared
from perfmodel.kernels.ptx.shuffle import shuffle

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


def make_find_tile(columns: int) -> Callable[..., Any]:
    """Device function: (expert, group of strips, first token, tokens) of tile `index`; no tokens where there are fewer tiles.

    Each warp finds it for itself, a lane for each expert: one round of loads, no barrier. Tiles of the same weights follow each other.
    """
    COLUMNS = U(columns)

    @cuda.jit(device=True, forceinline=True)
    def find_tile(index, offsets, experts, row_tiles, lane):
        for first in range(U(0), experts, WARP):
            expert = min(U(U(first) + lane), experts)
            begin = offset_of(offsets, expert)
            end = offset_of(offsets, min(U(expert + U(1)), experts))
            token_tiles = U(U(end - begin + COLUMNS - U(1)) // COLUMNS)
            after = U(token_tiles * row_tiles)
            for step in (U(1), U(2), U(4), U(8), U(16)):
                other = U(cuda.shfl_up_sync(ALL_LANES, np.int32(after), step))
                if lane >= step:
                    after = U(after + other)
            total = shuffle(after, U(31))
            if index < total:
                owner = U(cuda.popc(cuda.ballot_sync(ALL_LANES, after <= index)))
                begin, end, token_tiles = shuffle(begin, owner), shuffle(end, owner), shuffle(token_tiles, owner)
                inside = U(index + token_tiles * row_tiles - shuffle(after, owner))
                strip = U(inside // token_tiles)
                start = U(begin + (inside - strip * token_tiles) * COLUMNS)
                return U(U(first) + owner), strip, start, min(U(end - start), COLUMNS)
            index = U(index - total)
        return U(0), U(0), U(0), U(0)

    return find_tile
