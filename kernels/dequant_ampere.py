"""Four-bit words to bf16 fragments in registers for every GPU with bf16 tensor cores: MXFP4, NVFP4, INT4 and NF4.

Device functions make the A fragments (of 4 registers) of 16 rows x 64 of K from a lane's four words and its scales, which lie as `layouts`
says. What they multiply, they multiply exactly:

    MXFP4, NVFP4   `dequant_e2m1`
    INT4           128 + code is a bf16 whose mantissa holds the code: one mask; 128 + zero is subtracted from it, exactly
    NF4            `prmt` looks codes up in the codebook, rounded to bf16: low and high bytes apart

The scales of INT4 and NF4 are floats that a bf16 weight could not take up without rounding; they multiply partial sums of their group
instead (`partial_scales`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.formats.elements import NF4_CODEBOOK
from perfmodel.kernels.dequant_e2m1 import make_halves
from perfmodel.kernels.ptx.asm import U32, Instruction, U32x4, asm, instruction
from perfmodel.kernels.ptx.convert import bits_float

U = np.uint32


@asm(
    """{ .reg .b32 t, one;
    mov.b32 one, 0x3F803F80;
    lop3.b32 t, $word, 0x000F000F, 0x43004300, 0xEA; fma.rn.bf16x2 $out[0], t, one, $upper;
    shr.b32 t, $word, 4; lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA; fma.rn.bf16x2 $out[1], t, one, $lower;
    shr.b32 t, $word, 8; lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA; fma.rn.bf16x2 $out[2], t, one, $upper;
    shr.b32 t, $word, 12; lop3.b32 t, t, 0x000F000F, 0x43004300, 0xEA; fma.rn.bf16x2 $out[3], t, one, $lower; }""",
    effect="none",
    early=True,
)
def int4_fragment(word: U32, upper: U32, lower: U32) -> U32x4:
    """The A fragment of one word; `upper` and `lower` are -(128 + zero) of rows r and r + 8, twice each. 0x4300 is 128, 0x3F80 is 1."""


@asm("{ .reg .b32 t; and.b32 t, $scale, 15; mad.lo.u32 $out, t, 0x00010001, 0xC300C300; }", effect="none")
def minus_zero_point(scale: U32) -> U32:
    """-(128 + zero) as bf16, twice, of a group scale of INT4: the zero lies on its lowest four bits."""


def _nf4_fragment() -> Callable[..., Any]:
    """The intrinsic `nf4_fragment(word) -> U32x4`: bf16 codebook values of a word's eight codes."""
    import ml_dtypes

    planes = np.array(NF4_CODEBOOK, np.float32).astype(ml_dtypes.bfloat16).view(np.uint8).reshape(16, 2).T
    low, high = (np.ascontiguousarray(plane).view("<u4") for plane in planes)
    # Bit 3 of a code chooses the upper half of the codebook. In a `prmt` selector it means "repeat the sign of the byte": so it is
    # masked from the selectors, and used once to spread itself over a byte (selectors 8 + i of word << 4 and 12 + i of the word).
    lines = [".reg .b32 s, up, w, u, v, low, high;", "shl.b32 up, $word, 4;"]
    for pair, spread in ((0, 0xD9C8), (1, 0xFBEA)):
        lines.append("mov.b32 w, $word;" if pair == 0 else "shr.b32 w, $word, 16;")
        lines += ["and.b32 w, w, 0x7777;", f"prmt.b32 s, up, $word, {spread:#x};"]
        for name, table in (("low", low), ("high", high)):
            lines += [f"prmt.b32 u, {table[0]:#x}, {table[1]:#x}, w;", f"prmt.b32 v, {table[2]:#x}, {table[3]:#x}, w;"]
            lines.append(f"lop3.b32 {name}, s, v, u, 0xCA;")  # bitwise: s ? v : u
        lines += [f"prmt.b32 $out[{2 * pair}], low, high, 0x5140;", f"prmt.b32 $out[{2 * pair + 1}], low, high, 0x7362;"]
    text = "{ " + "\n".join(lines) + " }"
    four = types.UniTuple(types.uint32, 4)
    return instruction(
        Instruction("nf4_fragment", text, {"word": types.uint32}, four, "none", early=True), _nf4_fragment.__doc__ or "", __name__
    )


nf4_fragment = _nf4_fragment()


@cuda.jit(device=True, forceinline=True)
def int4_fragments(words, scales):
    """scales: four words, of rows r and r + 8 for K 0-31, then for K 32-63."""
    upper, lower = minus_zero_point(scales[0]), minus_zero_point(scales[1])
    first = (*int4_fragment(words[0], upper, lower), *int4_fragment(words[1], upper, lower))
    upper, lower = minus_zero_point(scales[2]), minus_zero_point(scales[3])
    return (*first, *int4_fragment(words[2], upper, lower), *int4_fragment(words[3], upper, lower))


@cuda.jit(device=True, forceinline=True)
def nf4_fragments(words, scales):
    """The scales are not needed here."""
    return (*nf4_fragment(words[0]), *nf4_fragment(words[1]), *nf4_fragment(words[2]), *nf4_fragment(words[3]))


@cuda.jit(device=True, forceinline=True)
def int4_partial_scales(scales):
    """FP32 scales without the zero points on their lowest bits."""
    clear = U(0xFFFFFFF0)
    a, b = bits_float(scales[0] & clear), bits_float(scales[1] & clear)
    return (a, b, bits_float(scales[2] & clear), bits_float(scales[3] & clear))


@cuda.jit(device=True, forceinline=True)
def nf4_partial_scales(scales):
    """FP32 scales as they are."""
    return (bits_float(scales[0]), bits_float(scales[1]), bits_float(scales[2]), bits_float(scales[3]))


HALVES = make_halves("fma")
"""Format -> (words U32x4, scales) -> U32x8, for fragments 0 and 1, for fragments 2 and 3."""
FRAGMENTS = {"int4-w4a16": int4_fragments, "nf4-w4a16": nf4_fragments}
"""Format -> (words U32x4, scales) -> U32x16: fragment after fragment along K, without the scales."""
PARTIAL_SCALES = {"int4-w4a16": int4_partial_scales, "nf4-w4a16": nf4_partial_scales}
"""Format -> scales -> what multiplies the partial sums of rows r and r + 8 for K 0-31, then for K 32-63."""
