"""The main loop of `decode`: along K, with weights a turn ahead in registers and activations half a tile ahead.

`loaded` is what a lane has of a packed tile: for each block of 16 rows its words and its scales. `d` has for each block its accumulators,
four for 8 tokens, in the order of `mma_tile`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.kernels.decode import Config
from perfmodel.kernels.dequant_ampere import HALVES
from perfmodel.kernels.mma_tile import keep_rolled
from perfmodel.kernels.mma_w4a16 import SCALE_WORDS, TILE_K
from perfmodel.kernels.ptx import asm as ptx
from perfmodel.kernels.ptx.asm import Instruction, asm, instruction
from perfmodel.kernels.ptx.memory import load_once, load_once_x4
from perfmodel.kernels.ptx.registers import zeros

U = np.uint32
U64 = np.uint64
I32 = np.int32
HALF_BYTES = U64(64)
"""Of half a tile of activations, 32 of K, in the row of a token."""


@asm(
    """ld.global.nc.b32 $out[0], [$at]; ld.global.nc.b32 $out[1], [$at + 16];
    ld.global.nc.b32 $out[2], [$at + 32]; ld.global.nc.b32 $out[3], [$at + 48];""",
    effect="ordered",
    early=True,
)
def load_fragments(at: ptx.U64) -> ptx.U32x4:
    """Two B fragments of 16 of K x 8 tokens from the rows of the tokens: K 2 q, 2 q + 1 of each 8 of K. PTX ISA 9.7.9.9, ld.global.nc."""


@asm(
    """{ .reg .pred p; mov.b32 $out[0], 0; mov.b32 $out[1], 0; mov.b32 $out[2], 0; mov.b32 $out[3], 0;
    setp.gt.s32 p, $left, 0; @p ld.global.nc.b32 $out[0], [$at];
    setp.gt.s32 p, $left, 8; @p ld.global.nc.b32 $out[1], [$at + 16];
    setp.gt.s32 p, $left, 16; @p ld.global.nc.b32 $out[2], [$at + 32];
    setp.gt.s32 p, $left, 24; @p ld.global.nc.b32 $out[3], [$at + 48]; }""",
    effect="ordered",
    early=True,
)
def load_fragments_of(at: ptx.U64, left: ptx.I32) -> ptx.U32x4:
    """`load_fragments` where only `left` of K are there, a multiple of 8: zeros beyond."""


@cache
def multiply_loaded(columns: int) -> Callable[..., Any]:
    """An intrinsic `multiply(d, a, x) -> d`: plus the products of two A fragments (8 words) and two B fragments for each 8 tokens.

    PTX ISA 9.7.14.5.14, mma.
    """
    tiles = columns // 8
    lines = [
        f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{$out[{4 * tile}:{4 * tile + 4}]}}, {{$a[{4 * step}:{4 * step + 4}]}}, "
        f"{{$x[{4 * tile + 2 * step}:{4 * tile + 2 * step + 2}]}}, {{$out[{4 * tile}:{4 * tile + 4}]}};"
        for step in range(2)
        for tile in range(tiles)
    ]
    d = types.UniTuple(types.float32, 4 * tiles)
    parameters = {"d": d, "a": types.UniTuple(types.uint32, 8), "x": types.UniTuple(types.uint32, 4 * tiles)}
    made = Instruction(f"multiply_loaded_{columns}", "\n".join(lines), parameters, d, "none", updates="d")
    return instruction(made, multiply_loaded.__doc__ or "", __name__)


def for_each_block(blocks: int, one: Callable[[int], Callable[..., Any]]) -> Callable[..., Any]:
    """A device function that gives a tuple of what `one(0)`, `one(1)`, .. give for its arguments (tuples want constant indices)."""

    def after(block: int) -> Callable[..., Any]:
        mine = one(block)

        @cuda.jit(device=True, forceinline=True)
        def last(a, b, c):
            return (mine(a, b, c),)

        if block == blocks - 1:
            return last
        others = after(block + 1)

        @cuda.jit(device=True, forceinline=True)
        def both(a, b, c):
            first = mine(a, b, c)
            return (first, *others(a, b, c))

        return both

    return after(0)


def make_load(config: Config) -> Callable[[int], Callable[..., Any]]:
    """For a block: device function (codes, scales, _) -> its words and scales of the tile that begins there."""
    scale_words = SCALE_WORDS[config.format]

    def of(block: int) -> Callable[..., Any]:
        CODES, SCALES, two = U64(512 * block), U64(32 * scale_words * block), scale_words == 2

        @cuda.jit(device=True, forceinline=True)
        def load(codes, scales, _unused):
            at = scales + SCALES
            if two:
                return load_once_x4(codes + CODES), (load_once(at), load_once(at + U64(4)))
            return load_once_x4(codes + CODES), (load_once(at),)

        return load

    return of


def make_half(config: Config, half: Literal[0, 1]) -> Callable[..., Any]:
    """Device function (d, loaded, x) -> d: all blocks of 32 of K."""
    fragments, multiply = HALVES[config.format][half], multiply_loaded(config.columns)

    def of(block: int) -> Callable[..., Any]:
        @cuda.jit(device=True, forceinline=True)
        def add(d, loaded, x):
            return multiply(d[block], fragments(loaded[block][0], loaded[block][1]), x)

        return add

    return for_each_block(config.blocks, of)


def make_half_and_load(config: Config) -> Callable[..., Any]:
    """Device function (d, loaded, (x, codes, scales)) -> (d, words and scales of the tile to come) by block, for the second half of a tile.

    A block's registers are loaded anew as soon as they have been multiplied.
    """
    fragments, multiply, load = HALVES[config.format][1], multiply_loaded(config.columns), make_load(config)

    def of(block: int) -> Callable[..., Any]:
        load_block = load(block)

        @cuda.jit(device=True, forceinline=True)
        def add(d, loaded, source):
            x, codes, scales = source
            mine = multiply(d[block], fragments(loaded[block][0], loaded[block][1]), x)
            return mine, load_block(codes, scales, U(0))

        return add

    return for_each_block(config.blocks, of)


def make_unzip(blocks: int, which: Literal[0, 1]) -> Callable[..., Any]:
    """Device function: of pairs the first or the second of each."""

    def of(block: int) -> Callable[..., Any]:
        @cuda.jit(device=True, forceinline=True)
        def take(pairs, _unused, _too):
            return pairs[block][which]

        return take

    return for_each_block(blocks, of)


def make_load_x(config: Config, half: Literal[0, 1]) -> Callable[..., Any]:
    """Device function (tokens, left) -> B fragments of 32 of K of the tile where `tokens` point, of which `left` of K are there."""
    OFFSET, BEFORE, two = U64(half) * HALF_BYTES, I32(half * TILE_K // 2), config.columns == 16

    @cuda.jit(device=True, forceinline=True)
    def load_x(tokens, left):
        if left >= I32(TILE_K):
            if two:
                return (*load_fragments(tokens[0] + OFFSET), *load_fragments(tokens[1] + OFFSET))
            return load_fragments(tokens[0] + OFFSET)
        left = I32(left - BEFORE)
        if two:
            return (*load_fragments_of(tokens[0] + OFFSET, left), *load_fragments_of(tokens[1] + OFFSET, left))
        return load_fragments_of(tokens[0] + OFFSET, left)

    return load_x


def make_advance(columns: int) -> Callable[..., Any]:
    """Device function: the addresses of all tokens, `step` bytes on."""
    two = columns == 16

    @cuda.jit(device=True, forceinline=True)
    def advance(tokens, step):
        if two:
            return tokens[0] + step, tokens[1] + step
        return (tokens[0] + step,)

    return advance


def make_turns(config: Config) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Device functions that multiply a tile: `turn` loads another one into its registers, `final` does not.

    Both take and give the activations (x0, x1) of the tile, of which the next ones are loaded as soon as those have been used.
    """
    half_0, half_1, half_and_load = make_half(config, 0), make_half(config, 1), make_half_and_load(config)
    firsts, seconds = make_unzip(config.blocks, 0), make_unzip(config.blocks, 1)
    load_x_0, load_x_1 = make_load_x(config, 0), make_load_x(config, 1)

    @cuda.jit(device=True, forceinline=True)
    def turn(d, loaded, x, following, codes, scales):
        tokens, left = following
        d = half_0(d, loaded, x[0])
        x0 = load_x_0(tokens, left)
        pairs = half_and_load(d, loaded, (x[1], codes, scales))
        x1 = load_x_1(tokens, left)
        return firsts(pairs, U(0), U(0)), seconds(pairs, U(0), U(0)), (x0, x1)

    @cuda.jit(device=True, forceinline=True)
    def final(d, loaded, x, following):
        tokens, left = following
        d = half_0(d, loaded, x[0])
        x0 = load_x_0(tokens, left)
        d = half_1(d, loaded, x[1])
        return d, (x0, load_x_1(tokens, left))

    return turn, final


def make_flatten(blocks: int) -> Callable[..., Any]:
    """Device function: the accumulators of all blocks as one tuple."""

    def after(block: int) -> Callable[..., Any]:
        if block == blocks - 1:

            @cuda.jit(device=True, forceinline=True)
            def last(d):
                return d[block]

            return last
        others = after(block + 1)

        @cuda.jit(device=True, forceinline=True)
        def both(d):
            return (*d[block], *others(d))

        return both

    return after(0)


def make_main_loop(config: Config) -> Callable[..., Any]:
    """Device function (codes, scales, tokens, k, split) -> sums over every `splits`-th tile of K, from tile `split` on.

    codes, scales: addresses of the lane's in the first tile of the strip. tokens: of its activations in the rows of its tokens.
    """
    turn, final = make_turns(config)
    load, flatten, advance = for_each_block(config.blocks, make_load(config)), make_flatten(config.blocks), make_advance(config.columns)
    load_x_0, load_x_1 = make_load_x(config, 0), make_load_x(config, 1)
    zero = zeros(config.columns // 2)
    start = for_each_block(config.blocks, lambda _block: _zero_block(zero))
    TILE, STEP_K, STEP_X = U64(config.tile_bytes), I32(TILE_K * config.splits), U64(TILE_K * 2 * config.splits)
    STEP, FAR = U64(config.tile_bytes * config.splits), U64(config.tile_bytes * config.splits * config.tiles)
    AHEAD, two = I32(config.tiles), config.tiles == 2

    @cuda.jit(device=True, forceinline=True)
    def main_loop(codes, scales, tokens, k, split):
        left = I32(I32(k) - I32(split) * I32(TILE_K))
        first = U64(split) if left > I32(0) else U64(0)
        codes, scales, tokens = codes + first * TILE, scales + first * TILE, advance(tokens, first * U64(TILE_K * 2))
        near = load(codes, scales, U(0))
        if two:
            ahead = STEP if left > STEP_K else U64(0)
            far = load(codes + ahead, scales + ahead, U(0))
        x = (load_x_0(tokens, left), load_x_1(tokens, left))
        d = start(U(0), U(0), U(0))
        while left > AHEAD * STEP_K:
            left = I32(keep_rolled(U(left)))
            codes, scales = codes + FAR, scales + FAR
            tokens = advance(tokens, STEP_X)
            d, near, x = turn(d, near, x, (tokens, I32(left - STEP_K)), codes, scales)
            if two:
                tokens = advance(tokens, STEP_X)
                ahead = STEP if left > I32(3) * STEP_K else U64(0)
                d, far, x = turn(d, far, x, (tokens, I32(left - I32(2) * STEP_K)), codes + ahead, scales + ahead)
            left = I32(left - AHEAD * STEP_K)
        if left > I32(0):
            tokens = advance(tokens, STEP_X)
            d, x = final(d, near, x, (tokens, I32(left - STEP_K)))
            if two and left > STEP_K:
                d, x = final(d, far, x, (tokens, I32(0)))
        return flatten(d)

    return main_loop


def _zero_block(zero: Callable[..., Any]) -> Callable[..., Any]:
    @cuda.jit(device=True, forceinline=True)
    def block(_a, _b, _c):
        return zero()

    return block
