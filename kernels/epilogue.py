"""From a warpgroup's accumulators to rows of the output: scale, activation, bf16, and a transpose through shared memory.

Weights are the M operand, so a lane holds two weight rows (r and r + 8) of pairs of tokens; the output wants a token's features together.
`stmatrix.trans` puts 8 x 8 blocks transposed into a buffer of 512 bytes that each warp has, and lanes store 16 bytes each.

Accumulators of one block of 64 rows: d[4 j + 2 h + p] is row 16 warp + r + 8 h, token 8 j + 2 q + p (r = lane // 4, q = lane % 4).

What belongs to a token (its scale, its routing weight, the row that its result goes to) is loaded once for a tile, 32 tokens a register,
and handed from lane to lane where it is used: so its loads are under way together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda  # isort: skip

from perfmodel.kernels.ptx.barrier import warp_sync
from perfmodel.kernels.ptx.convert import exp2_approx, pack_bf16x2, reciprocal_approx
from perfmodel.kernels.ptx.matrix import store_matrix_x4_trans
from perfmodel.kernels.ptx.memory import load_constant, load_constant_f32, load_shared_x4, store_global_x4
from perfmodel.kernels.ptx.shuffle import shuffle, shuffle_f32

U = np.uint32
U64 = np.uint64
LOG2_E = np.float32(1.4426950408889634)
ONE = np.float32(1.0)
WARP = 32


@dataclass(frozen=True)
class Scaling:
    """What accumulators are multiplied by, beside routing weights: device functions of `scales`, a tuple of the kernel's arguments."""

    of_rows: Callable[..., Any]
    """(scales, expert, row) -> the factors of weight rows `row` and `row + 8`."""
    of_token: Callable[..., Any] | None = None
    """(scales, token) -> the factor of a token; None where tokens have none."""


@cuda.jit(device=True, forceinline=True)
def _of_no_token(_scales, _token):
    return ONE


@cuda.jit(device=True, forceinline=True)
def silu_times(gate, up):
    """gate x sigmoid(gate) x up in single precision; the sigmoid first, so that huge gates and ups of either sign do not overflow."""
    return gate * reciprocal_approx(ONE + exp2_approx(-gate * LOG2_E)) * up


def token_loader(columns: int, kind: str, scaling: Scaling) -> Callable[..., Any]:
    """A device function (scales, routing, rows, start, count, lane) -> (factors, lines) of a tile's tokens.

    Both are tuples of one register for 32 tokens: lane i of register j holds those of token 32 j + i; the last valid token's beyond it.
    Without factors and without `scatter` they are one constant each, and nothing is loaded.
    """
    scatter, per_token = kind == "scatter", scaling.of_token is not None
    of_token = scaling.of_token or _of_no_token

    @cuda.jit(device=True, forceinline=True)
    def factor(scales, routing, token):
        value = ONE
        if per_token:
            value = of_token(scales, token)
        if scatter:
            value = value * load_constant_f32(routing + U64(token) * U64(4))
        return value

    @cuda.jit(device=True, forceinline=True)
    def line(rows, token):
        return load_constant(rows + U64(token) * U64(4)) if scatter else U(0)

    def from_register(first: int) -> Callable[..., Any]:
        @cuda.jit(device=True, forceinline=True)
        def one(scales, routing, rows, start, count, lane):
            token = start + min(U(WARP * first) + lane, count - U(1))
            return (factor(scales, routing, token),), (line(rows, token),)

        if not (scatter or per_token) or WARP * (first + 1) >= columns:
            return one
        rest = from_register(first + 1)

        @cuda.jit(device=True, forceinline=True)
        def load(scales, routing, rows, start, count, lane):
            factors, lines = one(scales, routing, rows, start, count, lane)
            more_factors, more_lines = rest(scales, routing, rows, start, count, lane)
            return factors + more_factors, lines + more_lines

        return load

    return from_register(0)


def scaled_by(per_token: bool) -> Callable[..., Any]:
    """A device function that multiplies four accumulators: rows r, r, r + 8, r + 8 of an even and an odd token.

    The token's factor first, so that the largest and the smallest row factors meet numbers of ordinary size.
    """

    @cuda.jit(device=True, forceinline=True)
    def scaled(four, upper, lower, factors, lane):
        a, b, c, d = four
        if per_token:
            even, odd = shuffle_f32(factors, lane), shuffle_f32(factors, lane + U(1))
            a, b, c, d = a * even, b * odd, c * even, d * odd
        return a * upper, b * upper, c * lower, d * lower

    return scaled


def chained(steps: list[Callable[..., Any]]) -> Callable[..., Any]:
    """One device function that calls `steps` in turn with the same arguments (numba has no loop over constant tuple indices)."""
    head = steps[0]
    if len(steps) == 1:
        return head
    tail = chained(steps[1:])

    @cuda.jit(device=True, forceinline=True)
    def both(d, factors, tokens, buffer, lane, target):
        head(d, factors, tokens, buffer, lane, target)
        tail(d, factors, tokens, buffer, lane, target)

    return both


def plain_group(block: int, group: int, columns: int, scatter: bool, per_token: bool) -> Callable[..., Any]:
    """Store 16 tokens x 16 rows, accumulators `group` of block `block`.

    factors: of rows r and r + 8. tokens: what `token_loader` gives. target = (out, width in bytes, first token, tokens of the tile, first
    feature, features). With `scatter` token t goes to the row of the output that `tokens` says.
    """
    first = block * columns // 2 + 8 * group
    i0, i1, i2, i3, i4, i5, i6, i7 = range(first, first + 8) if columns >= 16 else (*range(first, first + 4), *range(first, first + 4))
    register, token_0, lane_0 = group // 2, U(16 * group), U(16 * (group % 2))
    scaled = scaled_by(per_token)

    @cuda.jit(device=True, forceinline=True)
    def store(d, factors, tokens, buffer, lane, target):
        out, width, start, count, feature, features = target
        upper, lower = factors
        mine = lane_0 + (lane & U(3)) * U(2)
        a = scaled((d[i0], d[i1], d[i2], d[i3]), upper, lower, tokens[0][register if per_token else 0], mine)
        b = scaled((d[i4], d[i5], d[i6], d[i7]), upper, lower, tokens[0][register if per_token else 0], mine + U(8))
        words = (pack_bf16x2(a[0], a[1]), pack_bf16x2(a[2], a[3]), pack_bf16x2(b[0], b[1]), pack_bf16x2(b[2], b[3]))
        matrix = lane >> U(3)
        row = (matrix >> U(1)) * U(8) + (lane & U(7))
        warp_sync()
        store_matrix_x4_trans(buffer + row * U(32) + (((matrix & U(1)) ^ ((row >> U(2)) & U(1))) * U(16)), words)
        warp_sync()
        row = lane >> U(1)
        half = lane & U(1)
        line = start + token_0 + row
        if scatter:
            line = shuffle(tokens[1][register], lane_0 + row)
        if token_0 + row < count and feature + half * U(8) < features:
            words = load_shared_x4(buffer + row * U(32) + ((half ^ ((row >> U(2)) & U(1))) * U(16)))
            store_global_x4(out + U64(line) * U64(width) + U64(feature + half * U(8)) * U64(2), words)

    return store


def swiglu_group(block: int, group: int, columns: int, per_token: bool) -> Callable[..., Any]:
    """Activate and store 32 tokens x 8 features: gates are rows r, ups rows r + 8 of the same lane. Arguments as in `plain_group`."""
    first = block * columns // 2 + 16 * group
    held = min(columns, 32) // 8
    (a0, a1, a2, a3), (b0, b1, b2, b3), (c0, c1, c2, c3), (e0, e1, e2, e3) = (
        tuple(first + 4 * (j % held) + i for i in range(4)) for j in range(4)
    )
    token_0, register = U(32 * group), group if per_token else 0
    scaled = scaled_by(per_token)

    @cuda.jit(device=True, forceinline=True)
    def activated(four, factors, token_factors, lane):
        gate_0, gate_1, up_0, up_1 = scaled(four, factors[0], factors[1], token_factors, lane)
        return pack_bf16x2(silu_times(gate_0, up_0), silu_times(gate_1, up_1))

    @cuda.jit(device=True, forceinline=True)
    def store(d, factors, tokens, buffer, lane, target):
        out, width, start, count, feature, features = target
        t = tokens[0][register]
        mine = (lane & U(3)) * U(2)
        w0 = activated((d[a0], d[a1], d[a2], d[a3]), factors, t, mine)
        w1 = activated((d[b0], d[b1], d[b2], d[b3]), factors, t, mine + U(8))
        w2 = activated((d[c0], d[c1], d[c2], d[c3]), factors, t, mine + U(16))
        w3 = activated((d[e0], d[e1], d[e2], d[e3]), factors, t, mine + U(24))
        warp_sync()
        store_matrix_x4_trans(buffer + lane * U(16), (w0, w1, w2, w3))
        warp_sync()
        token = token_0 + lane
        if token < count and feature < features:
            words = load_shared_x4(buffer + lane * U(16))
            store_global_x4(out + U64(start + token) * U64(width) + U64(feature), words)

    return store


def epilogue(columns: int, blocks: int, kind: str, scaling: Scaling) -> list[Callable[..., Any]]:
    """For each block of 64 rows, the device function that stores its accumulators; `kind` is plain, scatter or swiglu."""
    scatter = kind == "scatter"
    per_token = scatter or scaling.of_token is not None
    if kind == "swiglu":
        groups = -(-columns // 32)
        return [chained([swiglu_group(block, group, columns, per_token) for group in range(groups)]) for block in range(blocks)]
    groups = -(-columns // 16)
    return [chained([plain_group(block, group, columns, scatter, per_token) for group in range(groups)]) for block in range(blocks)]
