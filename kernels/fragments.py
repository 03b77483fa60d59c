"""Which element of a tile each lane of a warp holds, as the tensor cores want it, and where 4-bit codes lie in a 32-bit word.

A weight fragment is the A operand (M = weight rows, K). With row r = lane // 4 and q = lane % 4, register a[h + 2 * k8] of lane (r, q)
holds, of a 16 x 16 bf16 fragment, row r + 8 * h and k = 8 * k8 + 2 * q + p for p = 0 (low half) and 1 (high half). `wgmma` gives warp w of
the warpgroup rows 16 * w .. 16 * w + 15 in the same order.
Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and "Register Fragments for wgmma.mma_async.m64nNk16".

So the 8 weights of a lane, for 16 of K, are one word of 32 bits: 4 registers x 2 halves. `NIBBLES` says on which bits of the word each
code lies, such that few masks and shifts make it a bf16 (or the selector of a `prmt`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from perfmodel.kernels.arrays import Array, cast, namespace

NibbleOrder = Literal["e2m1", "int4", "nf4", "e2m1-to-e4m3"]
Bits = tuple[int, int, int, int]
"""Bits of the word on which bits 0, 1, 2 and 3 of a code lie."""

# Bits of half a word for E2M1 (mantissa, low and high exponent bit, sign). A bf16 has its sign on bit 15, the low end of its exponent on
# bits 7 and 8, the top of its mantissa on bit 6: the code of register 0. Rotated to the left by 4 and by 10, the word has codes there
# that are registers 1 and 2 (by 10, the three lower bits come out of the other half). No fourth one fits, but what two words leave over
# does: with bits 0, 1, 9, 10 of the first word and those of the second shifted left by 2, a third word has the registers 3 of both, rotated
# by 6 and by 12.
_LEFT_BY = (0, 4, 10)
_REST_BY = (6, 12)
_REST_SHIFT = 2
_REST_BITS = (0, 1, 9, 10)


def _rotated(by: int, p: int) -> Bits:
    """Bits of a word which a rotation to the left by `by` brings to those of a bf16 in its half p."""
    a, b, c, d = ((bit + 16 * p - by) % 32 for bit in (6, 7, 8, 15))
    return a, b, c, d


def _e2m1_pair() -> tuple[Bits, ...]:
    """Bits, 32 to 63 being of the second word."""

    def of_rest(bit: int) -> int:
        return bit if bit % 16 in _REST_BITS else bit - _REST_SHIFT + 32

    slots = []
    for word in (0, 1):
        slots += [_shifted(_rotated(by, p), 32 * word) for by in _LEFT_BY for p in (0, 1)]
        slots += [_each(of_rest, _rotated(_REST_BY[word], p)) for p in (0, 1)]
    return tuple(slots)


def _each(function: Callable[[int], int], bits: Bits) -> Bits:
    return function(bits[0]), function(bits[1]), function(bits[2]), function(bits[3])


def _shifted(bits: Bits, by: int) -> Bits:
    return (bits[0] + by, bits[1] + by, bits[2] + by, bits[3] + by)


def _run(first: int) -> Bits:
    return (first, first + 1, first + 2, first + 3)


def _e2m1_to_e4m3(register: int, byte: int) -> Bits:
    """Magnitudes where `prmt` wants its selectors, half a word for each register; signs on the top bits of bytes, or 4 bits below."""
    selector = 16 * register + 4 * byte
    return (selector, selector + 1, selector + 2, 8 * byte + (3 if register else 7))


NIBBLES: dict[NibbleOrder, tuple[Bits, ...]] = {
    "e2m1": _e2m1_pair(),
    "int4": tuple(_run(4 * register + 16 * p) for register in range(4) for p in (0, 1)),
    "nf4": tuple(_run(4 * (2 * register + p)) for register in range(4) for p in (0, 1)),
    "e2m1-to-e4m3": tuple(_e2m1_to_e4m3(register, byte) for register in (0, 1) for byte in range(4)),
}
"""Bits of the 8 codes of a word, in the order of the slots: register by register, and in a register from its low end.

"e2m1": 16 codes of two words, as one of 64 bits. `dequant_e2m1` makes registers of bf16 x 2**-126 of them.
"int4": register i is (word >> 4 * i) & 0x000F000F.   "nf4": the code of slot j on bits 4 * j: selectors of a `prmt`.
"e2m1-to-e4m3": registers of four e4m3; only two registers, those of one row (k 0-15 and 16-31 of a fragment of 32).
"""


def words_together(order: NibbleOrder) -> int:
    """Words that share their bits, 1 or 2."""
    return len(NIBBLES[order]) // 8


def pack_word(slots: Array, order: NibbleOrder) -> Array:
    """Codes uint8 [8, ...], slot by slot, as words int32 [...]; of two words together [16, ...] as int64, the first at the low end."""
    word, kind = None, "int64" if words_together(order) == 2 else "int32"
    for slot, bits in enumerate(NIBBLES[order]):
        code = cast(slots[slot], kind)
        for shift, mask in _moves(bits):
            part = (code & mask) << shift
            word = part if word is None else word | part
    return word


def unpack_word(words: Array, order: NibbleOrder) -> Array:
    """The inverse of `pack_word`."""
    slots = []
    for bits in NIBBLES[order]:
        code = sum((words >> shift) & mask for shift, mask in _moves(bits))
        slots.append(cast(code, "uint8"))
    return namespace(words).stack(slots)


def _moves(bits: Bits) -> list[tuple[int, int]]:
    """(shift to the left, mask of the code's bits) of those bits that move together."""
    shifts = [target - source for source, target in enumerate(bits)]
    return [(shift, sum(1 << source for source in range(4) if shifts[source] == shift)) for shift in sorted(set(shifts))]
