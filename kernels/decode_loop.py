"""The main loop of `decode`: along K, with weights a turn ahead in registers and activations half a tile ahead.

`loaded` is what a lane has of a packed tile: for each block of 16 rows its words and its scales. `d` has for each block its four
accumulators, in the order of `mma_tile`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda  # isort: skip

from perfmodel.kernels.decode import Config
from perfmodel.kernels.decode_blocks import for_each_block, make_flatten, make_start, multiply
from perfmodel.kernels.dequant_e2m1 import make_halves
from perfmodel.kernels.mma_tile import keep_rolled
from perfmodel.kernels.mma_w4a16 import SCALE_WORDS, TILE_K
from perfmodel.kernels.ptx import asm as ptx
from perfmodel.kernels.ptx.asm import asm
from perfmodel.kernels.ptx.memory import load_once, load_once_x4

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
    fragments, add_products = make_halves("mul")[config.format][half], multiply(config.columns)

    def of(block: int) -> Callable[..., Any]:
        @cuda.jit(device=True, forceinline=True)
        def add(d, loaded, x):
            return add_products(d[block], fragments(loaded[block][0], loaded[block][1]), x)

        return add

    return for_each_block(config.blocks, of)


def make_half_and_load(config: Config) -> Callable[..., Any]:
    """Device function (d, loaded, (x, codes, scales)) -> (d, words and scales of the tile to come) by block, for the second half of a tile.

    A block's registers are loaded anew as soon as they have been multiplied.
    """
    fragments, add_products, load = make_halves("mul")[config.format][1], multiply(config.columns), make_load(config)

    def of(block: int) -> Callable[..., Any]:
        load_block = load(block)

        @cuda.jit(device=True, forceinline=True)
        def add(d, loaded, source):
            x, codes, scales = source
            mine = add_products(d[block], fragments(loaded[block][0], loaded[block][1]), x)
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


def make_load_x(half: Literal[0, 1]) -> Callable[..., Any]:
    """Device function (token, left) -> B fragments of 32 of K of the tile where `token` points, of which `left` of K are there."""
    OFFSET, BEFORE = U64(half) * HALF_BYTES, I32(half * TILE_K // 2)

    @cuda.jit(device=True, forceinline=True)
    def load_x(token, left):
        if left >= I32(TILE_K):
            return load_fragments(token + OFFSET)
        return load_fragments_of(token + OFFSET, I32(left - BEFORE))

    return load_x


def make_turns(config: Config) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Device functions that multiply a tile: `turn` loads another one into its registers, `final` does not.

    Both take the activations (x0, x1) of the tile; `turn` gives the next ones, which are loaded as soon as those have been used.
    """
    half_0, half_1, half_and_load = make_half(config, 0), make_half(config, 1), make_half_and_load(config)
    firsts, seconds = make_unzip(config.blocks, 0), make_unzip(config.blocks, 1)
    load_x_0, load_x_1 = make_load_x(0), make_load_x(1)

    @cuda.jit(device=True, forceinline=True)
    def turn(d, loaded, x, following, codes, scales):
        token, left = following
        d = half_0(d, loaded, x[0])
        x0 = load_x_0(token, left)
        pairs = half_and_load(d, loaded, (x[1], codes, scales))
        x1 = load_x_1(token, left)
        return firsts(pairs, U(0), U(0)), seconds(pairs, U(0), U(0)), (x0, x1)

    @cuda.jit(device=True, forceinline=True)
    def final(d, loaded, x):
        return half_1(half_0(d, loaded, x[0]), loaded, x[1])

    return turn, final


def make_main_loop(config: Config) -> Callable[..., Any]:
    """Device function (codes, scales, token, k, split) -> sums over every `splits`-th tile of K, from tile `split` on.

    codes, scales: addresses of the lane's in the first tile of the strip. token: of its activations in the row of its token.
    """
    turn, final = make_turns(config)
    load, flatten = for_each_block(config.blocks, make_load(config)), make_flatten(config.blocks)
    load_x_0, load_x_1 = make_load_x(0), make_load_x(1)
    start = make_start(config.blocks, config.columns)
    TILE, STEP_K, STEP_X = U64(config.tile_bytes), I32(TILE_K * config.splits), U64(TILE_K * 2 * config.splits)
    STEP = U64(config.tile_bytes * config.splits)

    @cuda.jit(device=True, forceinline=True)
    def main_loop(codes, scales, token, k, split):
        left = I32(I32(k) - I32(split) * I32(TILE_K))
        first = U64(split) if left > I32(0) else U64(0)
        codes, scales, token = codes + first * TILE, scales + first * TILE, token + first * U64(TILE_K * 2)
        loaded = load(codes, scales, U(0))
        x = (load_x_0(token, left), load_x_1(token, left))
        d = start(U(0), U(0), U(0))
        while left > STEP_K:
            left = I32(I32(keep_rolled(U(left))) - STEP_K)
            codes, scales, token = codes + STEP, scales + STEP, token + STEP_X
            d, loaded, x = turn(d, loaded, x, (token, left), codes, scales)
        if left > I32(0):
            d = final(d, loaded, x)
        return flatten(d)

    return main_loop
