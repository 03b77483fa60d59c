"""The end of a tile of `mma_w4a16`: sums of warps that shared out K, and the rows of the output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda  # isort: skip

from perfmodel.kernels.mma_tile import add_partial, hand_over, opaque, store_partial
from perfmodel.kernels.mma_w4a16 import Config
from perfmodel.kernels.mma_w4a16_plan import Plan
from perfmodel.kernels.ptx.memory import load_shared, load_shared_x4, store_global_x4

U = np.uint32
U64 = np.uint64


def make_finish(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: adds the sums of the groups of warps, and stores the tile's rows of the output."""
    count = config.blocks * config.columns // 2
    store_sum, add_sum, store_rows = store_partial(count), add_partial(count), make_store_rows(config, plan)
    hand = hand_over(config.columns, config.blocks, plan.pitch, config.epilogue)
    WORK, SUMS, GROUP_SUMS, OUTPUT = U(plan.work), U(plan.sums), U(plan.sums * config.row_warps), U(plan.output)
    PITCH, WARP_FEATURES, FACTORS = U(plan.pitch), U(2 * config.features // config.row_warps), U(plan.factors)
    splits, ROW_WARPS = config.splits, U(config.row_warps)

    @cuda.jit(device=True, forceinline=True)
    def finish(d, alpha, target, base):
        thread = opaque(U(cuda.threadIdx.x))
        lane = U(thread & U(31))
        split = U((thread >> U(5)) // ROW_WARPS)
        warp = U((thread >> U(5)) % ROW_WARPS)
        cuda.syncthreads()  # the last stage has been read
        if splits > 1:
            mine = base + WORK + warp * SUMS + lane * U(4)
            if split > U(0):
                store_sum(d, mine + (split - U(1)) * GROUP_SUMS)
            cuda.syncthreads()
            if split == U(0):
                for other in range(splits - 1):
                    d = add_sum(d, mine + U(other) * GROUP_SUMS)
        if split == U(0):
            row = base + OUTPUT + (lane >> U(2)) * PITCH + warp * WARP_FEATURES + (lane & U(3)) * U(4)
            hand(d, alpha, row, base + FACTORS + (lane & U(3)) * U(8))
        cuda.syncthreads()
        store_rows(base, target, thread)

    return finish


def make_store_rows(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: the finished rows from shared memory to the output, 16 bytes a thread and turn."""
    per_token = config.features // 8
    turns = -(-config.columns * per_token // config.threads)
    THREADS, PER_TOKEN, FEATURES = U(config.threads), U(per_token), U(config.features)
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
