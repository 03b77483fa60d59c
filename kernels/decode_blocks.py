"""What the kernels for few tokens do block by block: a warp has several blocks of 16 weight rows, each with accumulators of its own.

Tuples of numba want constant indices, so loops over blocks are written out, by functions that make functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

from numba import cuda, types  # isort: skip

from perfmodel.kernels.ptx.asm import Instruction, instruction
from perfmodel.kernels.ptx.registers import zeros


@cache
def multiply(columns: int) -> Callable[..., Any]:
    """An intrinsic `multiply(d, a, x) -> d`: plus the products of two A fragments (8 words) and two B fragments for each 8 tokens.

    d: four accumulators for each 8 tokens, in the order of `mma_tile`. PTX ISA 9.7.14.5.14, mma.
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
    made = Instruction(f"multiply_{columns}_by_16x32", "\n".join(lines), parameters, d, "none", updates="d")
    return instruction(made, multiply.__doc__ or "", __name__)


def for_each_block(blocks: int, one: Callable[[int], Callable[..., Any]]) -> Callable[..., Any]:
    """A device function (a, b, c) -> tuple of what `one(0)`, `one(1)`, .. give for these arguments."""

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


def make_start(blocks: int, columns: int) -> Callable[..., Any]:
    """Device function (_, _, _) -> accumulators of all blocks, zero."""
    zero = zeros(columns // 2)

    @cuda.jit(device=True, forceinline=True)
    def block(_a, _b, _c):
        return zero()

    return for_each_block(blocks, lambda _block: block)


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
