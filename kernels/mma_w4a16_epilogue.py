"""The end of a tile of `mma_w4a16`: sums of warps that shared out K, and the rows of the output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda  # isort: skip

from perfmodel.kernels import decode_ring, decode_ring_plan
from perfmodel.kernels.mma_tile import add_partial, hand_over, opaque, store_partial
from perfmodel.kernels.mma_w4a16 import Config
from perfmodel.kernels.mma_w4a16_plan import Plan
from perfmodel.kernels.ptx.memory import load_shared, load_shared_x4, store_global_x4

U = np.uint32
U64 = np.uint64


@cuda.jit(device=True, forceinline=True)
def meet_all():
    """All threads of the CTA meet."""
    cuda.syncthreads()


def make_finish(
    config: Config | decode_ring.Config, plan: Plan | decode_ring_plan.Plan, meet: Callable[..., Any] = meet_all
) -> Callable[..., Any]:
    """Device function: adds the sums of the groups of warps, and stores the tile's rows of the output.

    Each group finishes blocks of its own, of which it gets the other groups' sums. All threads that have sums call it, the first ones of
    the CTA; `meet` is their barrier.
    """
    splits = config.splits
    owned = config.blocks // splits
    count = owned * config.columns // 2
    swap, add_sum, store_rows = make_swap(splits, count), add_partial(count), make_store_rows(config, plan)
    hand = hand_over(config.columns, owned, plan.pitch, config.epilogue)
    WORK, WARP_SUMS, GROUP_SUMS, OUTPUT = U(plan.work), U((splits - 1) * plan.sums), U((splits - 1) * count * 128), U(plan.output)
    PITCH, WARP_FEATURES, FACTORS = U(plan.pitch), U(2 * config.features // config.row_warps), U(plan.factors)
    OWNED_FEATURES, ROW_WARPS = U(2 * config.features // config.row_warps // splits), U(config.row_warps)

    @cuda.jit(device=True, forceinline=True)
    def finish(d, alpha, target, base):
        thread = opaque(U(cuda.threadIdx.x))
        lane = U(thread & U(31))
        split = U((thread >> U(5)) // ROW_WARPS)
        warp = U((thread >> U(5)) % ROW_WARPS)
        meet()  # the last stage has been read, the last tile's rows have been stored
        mine = base + WORK + warp * WARP_SUMS + lane * U(4)
        sums = swap(d, split, mine)
        if splits > 1:
            meet()
            for other in range(splits - 1):
                sums = add_sum(sums, mine + split * GROUP_SUMS + U(other * count * 128))
        row = base + OUTPUT + (lane >> U(2)) * PITCH + warp * WARP_FEATURES + split * OWNED_FEATURES + (lane & U(3)) * U(4)
        hand(sums, alpha, row, base + FACTORS + (lane & U(3)) * U(8))
        meet()
        store_rows(base, target, thread)

    return finish


def make_swap(splits: int, count: int) -> Callable[..., Any]:
    """Device function (d, split, mine) -> the `count` sums of d that group `split` owns; it stores the others for their owners.

    Of each owner there are the sums of the other groups, one after the other.
    """
    store_sum = store_partial(count)

    def of(owner: int) -> Callable[..., Any]:
        first, last = owner * count, (owner + 1) * count
        OWNER, SLOT, BEFORE = U(owner), U(count * 128), U(owner * (splits - 1))

        @cuda.jit(device=True, forceinline=True)
        def one(d, split, mine):
            part = d[first:last]
            if split != OWNER:
                sender = U(split - U(1)) if split > OWNER else split
                store_sum(part, mine + (BEFORE + sender) * SLOT)
            return part

        if owner == splits - 1:
            return one
        others = of(owner + 1)

        @cuda.jit(device=True, forceinline=True)
        def all_of(d, split, mine):
            part = one(d, split, mine)
            own = others(d, split, mine)
            return part if split == OWNER else own

        return all_of

    return of(0)


def make_store_rows(config: Config | decode_ring.Config, plan: Plan | decode_ring_plan.Plan) -> Callable[..., Any]:
    """Device function: the finished rows from shared memory to the output, 16 bytes a thread and turn."""
    per_token = config.features // 8
    turns = -(-config.columns * per_token // config.consumers)
    THREADS, PER_TOKEN, FEATURES = U(config.consumers), U(per_token), U(config.features)
    OUTPUT, PITCH, OUT_ROWS = U(plan.output), U(plan.pitch), U(plan.out_rows)
    fused, scatter = config.epilogue == "swiglu", config.epilogue == "scatter"

    @cuda.jit(device=True, forceinline=True)
    def store_rows(base, target, thread):
        out, n, strip, start, count = target
        width = U(n >> U(1)) if fused else n
        for turn in range(turns):
            piece = U(thread + U(turn) * THREADS)
            token = U(piece // PER_TOKEN)
            part = U(piece % PER_TOKEN)
            feature = U(strip * FEATURES + part * U(8))
            if (token < count) & (feature < width):
                row = load_shared(base + OUT_ROWS + token * U(4)) if scatter else U(start + token)
                words = load_shared_x4(base + OUTPUT + token * PITCH + part * U(16))
                store_global_x4(out + (U64(row) * U64(width) + U64(feature)) * U64(2), words)

    return store_rows
