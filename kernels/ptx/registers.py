"""Registers: how many a thread has, zeros to start a sum with, and which thread of a warp acts for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.cuda.extending import intrinsic

from perfmodel.kernels.ptx.asm import U32, Immediate, asm


@asm("setmaxnreg.dec.sync.aligned.u32 $count;", needs="sm_90")
def decrease_registers(count: Immediate) -> None:
    """This warpgroup gives registers back and keeps `count` a thread (24 to 256, a multiple of 8). PTX ISA 9.7.19.5, setmaxnreg.

    The kernel must be compiled with bounds on threads and on CTAs an SM (`launch_bounds`), or the assembler ignores it, with a warning.
    """


@asm("setmaxnreg.inc.sync.aligned.u32 $count;", needs="sm_90")
def increase_registers(count: Immediate) -> None:
    """This warpgroup waits until it can have `count` registers a thread. PTX ISA 9.7.19.5, setmaxnreg."""


@asm("{ .reg .pred mine; elect.sync _|mine, 0xffffffff; selp.b32 $out, 1, 0, mine; }", needs="sm_90")
def elect_one() -> U32:
    """1 in one lane of the warp, 0 in the others. PTX ISA 9.7.13.14, elect.sync."""


@cache
def zeros(count: int) -> Callable[..., Any]:
    """An intrinsic `zero() -> d` with `count` single-precision zeros: what a sum in registers starts from.

    A tuple of constants inside a kernel would be one argument a register to numba's type inference; this is one value.
    """
    kind = types.UniTuple(types.float32, count)

    def define(_context: Any) -> Any:
        def emit(context: Any, _builder: Any, _signature: Any, _arguments: Any) -> Any:
            return ir.Constant(context.get_value_type(kind), [0.0] * count)

        return kind(), emit

    define.__name__ = f"zeros_{count}"
    return intrinsic(define)  # type: ignore[no-any-return]
