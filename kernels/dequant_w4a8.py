"""Four-bit words to E4M3 fragments in registers, exactly: `prmt` looks up four codes at once in a table of eight bytes.

E4M3 holds the eight magnitudes of E2M1 times a power of two; the table of a block follows from its scale byte by two multiplications. The
words and scale bytes lie as `layouts_w4a8` packs them, with 12 binades: bytes 3 .. 14, no subnormals.
"""

from __future__ import annotations

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

from numba import cuda  # isort: skip

from perfmodel.kernels.ptx.asm import U32, U32x2, U32x4, asm

BINADES = 12
"""How many binades below the largest scale of a row these tables reach."""


@asm(
    """{ .reg .b32 low, high, x;
    mad.lo.u32 low, $scale, 0x08080800, 0xFBF7F000; mad.lo.u32 high, $scale, 0x08080808, 0x0C080400;
    and.b32 x, $word, 0x77777777;
    prmt.b32 $out[0], low, high, x; lop3.b32 $out[0], $word, 0x80808080, $out[0], 0xEA;
    shr.b32 x, x, 16; prmt.b32 $out[1], low, high, x;
    shl.b32 x, $word, 4; lop3.b32 $out[1], x, 0x80808080, $out[1], 0xEA; }""",
    effect="none",
    early=True,
)
def word_to_e4m3(word: U32, scale: U32) -> U32x2:
    """Registers a[h] and a[2 + h] (four E4M3 each) of one word; `scale` is the byte of its block, 3 .. 14.

    lop3 0xEA is (a & b) | c. Layout: `fragments.NIBBLES["e2m1-to-e4m3"]`; tables: `layouts_w4a8`.
    """


@asm(
    """{ and.b32 $out[0], $bytes, 255; prmt.b32 $out[1], $bytes, 0, 0x4441;
    prmt.b32 $out[2], $bytes, 0, 0x4442; shr.b32 $out[3], $bytes, 24; }""",
    effect="none",
    early=True,
)
def four_bytes(bytes: U32) -> U32x4:
    """The bytes of a word: scales of rows r and r + 8 of one block, then of the next."""


@cuda.jit(device=True, forceinline=True)
def fragment(upper, lower, scale_upper, scale_lower):
    """The A fragment (4 registers) of 32 of K from the words of rows r and r + 8 and the bytes of their scales."""
    a0, a2 = word_to_e4m3(upper, scale_upper)
    a1, a3 = word_to_e4m3(lower, scale_lower)
    return a0, a1, a2, a3


@cuda.jit(device=True, forceinline=True)
def half_0(words, scales):
    """Fragments 0 and 1 of a tile, K 0 - 63, from a lane's eight words and two words of scales."""
    s = four_bytes(scales[0])
    return (*fragment(words[0], words[1], s[0], s[1]), *fragment(words[2], words[3], s[2], s[3]))


@cuda.jit(device=True, forceinline=True)
def half_1(words, scales):
    """Fragments 2 and 3 of a tile, K 64 - 127."""
    s = four_bytes(scales[1])
    return (*fragment(words[4], words[5], s[0], s[1]), *fragment(words[6], words[7], s[2], s[3]))
