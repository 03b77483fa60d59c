"""Four-bit words to bf16 fragments in registers, exactly: masks, shifts and one multiplication for two weights.

The words and scale bytes lie as `layouts` packs them. A code's mask gives value x 2**-126 (a bf16 with the exponent of the code, subnormal
for 0.5); the scale is a bf16 power of two (MXFP4) or a bf16 with three mantissa bits (NVFP4). No step rounds or flushes.

They are written in PTX since numba computes with 64-bit integers, and each of these instructions counts.
"""

from __future__ import annotations

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

from numba import cuda  # isort: skip

from perfmodel.kernels.ptx.asm import U32, U32x4, asm
from perfmodel.kernels.ptx.memory import load_shared, load_shared_x2


@asm(
    """{ .reg .b32 a0, a1, a2, a3, t;
    and.b32 a0, $word, 0x81C081C0;
    shl.b32 t, $word, 3; and.b32 a1, t, 0x81C081C0;
    shl.b32 t, $word, 6; and.b32 a2, t, 0x81C081C0;
    shl.b32 t, $word, 1; and.b32 a3, t, 0x80008000;
    shr.b32 t, $word, 3; lop3.b32 a3, t, 0x01800180, a3, 0xEA;
    shr.b32 t, $word, 7; lop3.b32 a3, t, 0x00400040, a3, 0xEA;
    mul.rn.bf16x2 $out[0], a0, $upper; mul.rn.bf16x2 $out[1], a1, $lower;
    mul.rn.bf16x2 $out[2], a2, $upper; mul.rn.bf16x2 $out[3], a3, $lower; }""",
    effect="none",
    early=True,
    needs="sm_90",
)
def word_to_fragment(word: U32, upper: U32, lower: U32) -> U32x4:
    """The A fragment (4 registers of two bf16) of one word; `upper` and `lower` are the scales of rows r and r + 8, twice each.

    lop3 0xEA is (a & b) | c. Layout: `fragments.NIBBLES["e2m1"]`.
    """


@asm(
    """{ .reg .b32 t;
    and.b32 t, $bytes, 255; mul.lo.u32 $out[0], t, 0x00800080;
    prmt.b32 t, $bytes, 0, 0x4441; mul.lo.u32 $out[1], t, 0x00800080;
    prmt.b32 t, $bytes, 0, 0x4442; mul.lo.u32 $out[2], t, 0x00800080;
    shr.b32 t, $bytes, 24; mul.lo.u32 $out[3], t, 0x00800080; }""",
    effect="none",
    early=True,
)
def powers_of_two(bytes: U32) -> U32x4:
    """bf16 2**(d - 127), twice, for each of the four bytes d: MXFP4 scales (row r, row r + 8) of K 0-31, then of K 32-63."""


@asm(
    """{ .reg .b32 t;
    and.b32 t, $bytes, 255; mad.lo.u32 $out[0], t, 0x00100010, 0x70007000;
    prmt.b32 t, $bytes, 0, 0x4441; mad.lo.u32 $out[1], t, 0x00100010, 0x70007000;
    prmt.b32 t, $bytes, 0, 0x4442; mad.lo.u32 $out[2], t, 0x00100010, 0x70007000;
    shr.b32 t, $bytes, 24; mad.lo.u32 $out[3], t, 0x00100010, 0x70007000; }""",
    effect="none",
    early=True,
)
def normalised_scales(bytes: U32) -> U32x4:
    """bf16 scale x 2**119, twice, for each of the four bytes: NVFP4 scales (row r, row r + 8) of one fragment, then of the next."""


@cuda.jit(device=True, forceinline=True)
def mxfp4_half_0(words, scales):
    """Fragments 0 and 1 of a tile from a lane's four words; they share their scales."""
    s = powers_of_two(scales)
    return (*word_to_fragment(words[0], s[0], s[1]), *word_to_fragment(words[1], s[0], s[1]))


@cuda.jit(device=True, forceinline=True)
def mxfp4_half_1(words, scales):
    """Fragments 2 and 3 of a tile."""
    s = powers_of_two(scales)
    return (*word_to_fragment(words[2], s[2], s[3]), *word_to_fragment(words[3], s[2], s[3]))


@cuda.jit(device=True, forceinline=True)
def nvfp4_half_0(words, scales):
    """Fragments 0 and 1 of a tile, each with its own scales."""
    s = normalised_scales(scales[0])
    return (*word_to_fragment(words[0], s[0], s[1]), *word_to_fragment(words[1], s[2], s[3]))


@cuda.jit(device=True, forceinline=True)
def nvfp4_half_1(words, scales):
    """Fragments 2 and 3 of a tile."""
    s = normalised_scales(scales[1])
    return (*word_to_fragment(words[2], s[0], s[1]), *word_to_fragment(words[3], s[2], s[3]))


LANE_SCALES = {"mxfp4-w4a16": (load_shared, 4), "nvfp4-w4a16": (load_shared_x2, 8)}
"""Format -> how a lane reads its scales of a tile from shared memory, and their bytes."""
HALVES = {"mxfp4-w4a16": (mxfp4_half_0, mxfp4_half_1), "nvfp4-w4a16": (nvfp4_half_0, nvfp4_half_1)}
"""Format -> fragments 0 and 1, fragments 2 and 3."""
