"""E2M1 words to bf16 fragments in registers, exactly: masks, shifts and one multiplication for two weights.

Words come in pairs, which share their bits as `fragments.NIBBLES["e2m1"]` says. A mask gives value x 2**-126 (a bf16 with the exponent of
the code, subnormal for 0.5); the scale is a bf16 power of two (MXFP4) or a bf16 with three mantissa bits (NVFP4). No step rounds or
flushes.

It is PTX since numba computes with 64-bit integers, and each of these instructions counts: a kernel of few tokens spends most of its
time here. Measured on an H200, in cycles of a warp scheduler for one instruction of a warp: masks, permutations and rotations 2, on a unit
of their own; multiplications of integers, which the assembler makes of left shifts, 2, of pairs of bf16 1, and `mma` m16n8k16 6, which all
three shut each other out. So shifts belong to the multiplier, unless `mma` keeps its unit busy: for 16 tokens (`decode_ring`) they are
rotations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

from numba import cuda, types  # isort: skip

from perfmodel.kernels.ptx.asm import U32, Instruction, U32x2, asm, instruction

_MASK = "0x81C081C0"
"""Sign, two exponent bits and one of the mantissa, in both halves of a word."""
_FIRST = "0x06030603"
"""What the first word leaves over; the second word's is shifted to the bits beside it."""
Shift = Literal["multiplied", "rotated"]
"""How words are shifted to the left: what it brings in from the other end is masked out anyhow."""


def _registers(shift: Shift) -> str:
    """Eight registers of two words, before their scales. lop3 0xE4 is (a & c) | (b & ~c)."""

    def left(source: str, by: int) -> str:
        if shift == "multiplied" and by < 8:
            return f"shl.b32 t, {source}, {by};"
        return f"shf.l.wrap.b32 t, {source}, {source}, {by};"

    return f"""
    and.b32 $out[0], $first, {_MASK};
    {left("$first", 4)} and.b32 $out[1], t, {_MASK};
    {left("$first", 10)} and.b32 $out[2], t, {_MASK};
    and.b32 $out[4], $second, {_MASK};
    {left("$second", 4)} and.b32 $out[5], t, {_MASK};
    {left("$second", 10)} and.b32 $out[6], t, {_MASK};
    {left("$second", 2)} lop3.b32 rest, $first, t, {_FIRST}, 0xE4;
    {left("rest", 6)} and.b32 $out[3], t, {_MASK};
    {left("rest", 12)} and.b32 $out[7], t, {_MASK};"""


@cache
def pair(multiply: Literal["mul", "fma"], shift: Shift = "multiplied") -> Callable[..., Any]:
    """An intrinsic (first, second, upper, lower, upper_2, lower_2) -> the A fragments of two words, 8 registers.

    `upper` and `lower` are the scales of rows r and r + 8 of the first word, twice each; `upper_2` and `lower_2` those of the second word.
    multiply: "fma", with -0, for GPUs before Hopper, which do not multiply pairs of bf16 otherwise. PTX ISA 9.7.4.3, mul; 9.7.4.4, fma.
    """
    end = ", zero" if multiply == "fma" else ""
    scales = ("$upper", "$lower") * 2 + ("$upper_2", "$lower_2") * 2
    scaled = "\n".join(f"{multiply}.rn.bf16x2 $out[{i}], $out[{i}], {scale}{end};" for i, scale in enumerate(scales))
    text = f"{{ .reg .b32 t, rest, zero; mov.b32 zero, 0x80008000; {_registers(shift)}\n{scaled} }}"
    parameters = dict.fromkeys(("first", "second", "upper", "lower", "upper_2", "lower_2"), types.uint32)
    needs = "sm_90" if multiply == "mul" else "sm_80"
    made = Instruction(f"pair_{multiply}_{shift}", text, parameters, types.UniTuple(types.uint32, 8), "none", early=True, needs=needs)
    return instruction(made, pair.__doc__ or "", __name__)


@asm(
    """{ .reg .b32 t; and.b32 t, $bytes, 0x00FF00FF; mul.lo.u32 $out[0], t, 0x80;
    prmt.b32 t, $bytes, 0, 0x4341; mul.lo.u32 $out[1], t, 0x80; }""",
    effect="none",
    early=True,
)
def powers_of_two(bytes: U32) -> U32x2:
    """bf16 2**(d - 127) for each of the four bytes d of MXFP4 scales: of row r for K 0-31 and 32-63, then of row r + 8."""


@asm(
    """{ .reg .b32 t; and.b32 t, $bytes, 0x00FF00FF; mad.lo.u32 $out[0], t, 16, 0x70007000;
    prmt.b32 t, $bytes, 0, 0x4341; mad.lo.u32 $out[1], t, 16, 0x70007000; }""",
    effect="none",
    early=True,
)
def normalised_scales(bytes: U32) -> U32x2:
    """bf16 scale x 2**119 for each of the four bytes of NVFP4 scales: of row r for two fragments, then of row r + 8."""


@asm("{ .reg .b16 low, high; mov.b32 {low, high}, $pair; mov.b32 $out, {low, low}; }", effect="none")
def low_twice(pair: U32) -> U32:
    """The low half in both halves."""


@asm("{ .reg .b16 low, high; mov.b32 {low, high}, $pair; mov.b32 $out, {high, high}; }", effect="none")
def high_twice(pair: U32) -> U32:
    """The high half in both halves."""


@cache
def make_halves(multiply: Literal["mul", "fma"], shift: Shift = "multiplied") -> dict[str, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Format -> device functions (words U32x4, scales) -> U32x8, for fragments 0 and 1 of a tile and for fragments 2 and 3.

    scales: of MXFP4 one word, the rows r and r + 8 for K 0-31, then for K 32-63; of NVFP4 two, the rows r and r + 8 for each 16 of K.
    """

    both = pair(multiply, shift)

    @cuda.jit(device=True, forceinline=True)
    def mxfp4_half_0(words, scales):
        s = powers_of_two(scales[0])
        upper, lower = low_twice(s[0]), low_twice(s[1])
        return both(words[0], words[1], upper, lower, upper, lower)

    @cuda.jit(device=True, forceinline=True)
    def mxfp4_half_1(words, scales):
        s = powers_of_two(scales[0])
        upper, lower = high_twice(s[0]), high_twice(s[1])
        return both(words[2], words[3], upper, lower, upper, lower)

    @cuda.jit(device=True, forceinline=True)
    def nvfp4_half_0(words, scales):
        s = normalised_scales(scales[0])
        return both(words[0], words[1], low_twice(s[0]), low_twice(s[1]), high_twice(s[0]), high_twice(s[1]))

    @cuda.jit(device=True, forceinline=True)
    def nvfp4_half_1(words, scales):
        s = normalised_scales(scales[1])
        return both(words[2], words[3], low_twice(s[0]), low_twice(s[1]), high_twice(s[0]), high_twice(s[1]))

    return {"mxfp4-w4a16": (mxfp4_half_0, mxfp4_half_1), "nvfp4-w4a16": (nvfp4_half_0, nvfp4_half_1)}
