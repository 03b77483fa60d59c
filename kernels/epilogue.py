"""From a warpgroup's accumulators to rows of the output: scale, activation, bf16, and a transpose through shared memory.

Weights are the M operand, so a lane holds two weight rows (r and r + 8) of pairs of tokens; the output wants a token's features together.
`stmatrix.trans` puts 8 x 8 blocks transposed into a buffer of 512 bytes that each warp has, and lanes store 16 bytes each.

Accumulators of one block of 64 rows: d[4 j + 2 h + p] is row 16 warp + r + 8 h, token 8 j + 2 q + p (r = lane // 4, q = lane % 4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda  # isort: skip

from perfmodel.kernels.ptx.barrier import warp_sync
from perfmodel.kernels.ptx.convert import exp2_approx, pack_bf16x2, reciprocal_approx
from perfmodel.kernels.ptx.matrix import store_matrix_x4_trans
from perfmodel.kernels.ptx.memory import load_constant, load_constant_f32, load_shared_x4, store_global_x4

U = np.uint32
U64 = np.uint64
LOG2_E = np.float32(1.4426950408889634)
ONE = np.float32(1.0)


@cuda.jit(device=True, forceinline=True)
def silu_times(gate, up):
    """gate x sigmoid(gate) x up in single precision."""
    return gate * up * reciprocal_approx(ONE + exp2_approx(-gate * LOG2_E))


def chained(steps: list[Callable[..., Any]]) -> Callable[..., Any]:
    """One device function that calls `steps` in turn with the same seven arguments (numba has no loop over constant tuple indices)."""
    head = steps[0]
    if len(steps) == 1:
        return head
    tail = chained(steps[1:])

    @cuda.jit(device=True, forceinline=True)
    def both(d, alpha, buffer, lane, target, rows, scales):
        head(d, alpha, buffer, lane, target, rows, scales)
        tail(d, alpha, buffer, lane, target, rows, scales)

    return both


def plain_group(block: int, group: int, columns: int, scatter: bool) -> Callable[..., Any]:
    """Store 16 tokens x 16 rows, accumulators `group` of block `block`.

    target = (out, width in bytes, first token, tokens of the tile, first feature, features). With `scatter`, token t goes to row rows[t]
    of the output and is multiplied by scales[t].
    """
    first = block * columns // 2 + 8 * group
    i0, i1, i2, i3, i4, i5, i6, i7 = range(first, first + 8) if columns >= 16 else (*range(first, first + 4), *range(first, first + 4))
    wide = columns >= 16  # a tile of 8 tokens has half a group
    token_0 = U(16 * group)

    @cuda.jit(device=True, forceinline=True)
    def store(d, alpha, buffer, lane, target, rows, scales):
        out, width, start, count, feature, features = target
        s0 = s1 = s2 = s3 = alpha
        if scatter:
            last = count - U(1)
            mine = token_0 + (lane & U(3)) * U(2)
            s0 = alpha * load_constant_f32(scales + U64(start + min(mine, last)) * U64(4))
            s1 = alpha * load_constant_f32(scales + U64(start + min(mine + U(1), last)) * U64(4))
            if wide:
                s2 = alpha * load_constant_f32(scales + U64(start + min(mine + U(8), last)) * U64(4))
                s3 = alpha * load_constant_f32(scales + U64(start + min(mine + U(9), last)) * U64(4))
        matrix = lane >> U(3)
        row = (matrix >> U(1)) * U(8) + (lane & U(7))
        upper, lower = pack_bf16x2(d[i0] * s0, d[i1] * s1), pack_bf16x2(d[i2] * s0, d[i3] * s1)
        warp_sync()
        store_matrix_x4_trans(
            buffer + row * U(32) + (((matrix & U(1)) ^ ((row >> U(2)) & U(1))) * U(16)),
            (upper, lower, pack_bf16x2(d[i4] * s2, d[i5] * s3), pack_bf16x2(d[i6] * s2, d[i7] * s3)),
        )
        warp_sync()
        row = lane >> U(1)
        half = lane & U(1)
        token = token_0 + row
        if token < count and feature + half * U(8) < features:
            line = start + token
            if scatter:
                line = load_constant(rows + U64(line) * U64(4))
            words = load_shared_x4(buffer + row * U(32) + ((half ^ ((row >> U(2)) & U(1))) * U(16)))
            store_global_x4(out + U64(line) * U64(width) + U64(feature + half * U(8)) * U64(2), words)

    return store


def swiglu_group(block: int, group: int, columns: int) -> Callable[..., Any]:
    """Activate and store 32 tokens x 8 features: gates are rows r, ups rows r + 8 of the same lane. Arguments as in `plain_group`."""
    first = block * columns // 2 + 16 * group
    held = min(columns, 32) // 8
    (a0, a1, a2, a3), (b0, b1, b2, b3), (c0, c1, c2, c3), (e0, e1, e2, e3) = (
        tuple(first + 4 * (j % held) + i for i in range(4)) for j in range(4)
    )
    token_0 = U(32 * group)

    @cuda.jit(device=True, forceinline=True)
    def store(d, alpha, buffer, lane, target, rows, scales):
        out, width, start, count, feature, features = target
        w0 = pack_bf16x2(silu_times(d[a0] * alpha, d[a2] * alpha), silu_times(d[a1] * alpha, d[a3] * alpha))
        w1 = pack_bf16x2(silu_times(d[b0] * alpha, d[b2] * alpha), silu_times(d[b1] * alpha, d[b3] * alpha))
        w2 = pack_bf16x2(silu_times(d[c0] * alpha, d[c2] * alpha), silu_times(d[c1] * alpha, d[c3] * alpha))
        w3 = pack_bf16x2(silu_times(d[e0] * alpha, d[e2] * alpha), silu_times(d[e1] * alpha, d[e3] * alpha))
        warp_sync()
        store_matrix_x4_trans(buffer + lane * U(16), (w0, w1, w2, w3))
        warp_sync()
        token = token_0 + lane
        if token < count and feature < features:
            words = load_shared_x4(buffer + lane * U(16))
            store_global_x4(out + U64(start + token) * U64(width) + U64(feature), words)

    return store


def epilogue(columns: int, blocks: int, kind: str) -> list[Callable[..., Any]]:
    """For each block of 64 rows, the device function that stores its accumulators; `kind` is plain, scatter or swiglu."""
    if kind == "swiglu":
        groups = -(-columns // 32)
        return [chained([swiglu_group(block, group, columns) for group in range(groups)]) for block in range(blocks)]
    groups = -(-columns // 16)
    return [chained([plain_group(block, group, columns, kind == "scatter") for group in range(groups)]) for block in range(blocks)]
