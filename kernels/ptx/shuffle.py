"""Values from other lanes of the warp, without shared memory. All 32 lanes take part."""

from __future__ import annotations

from perfmodel.kernels.ptx.asm import F32, U32, Immediate, asm


@asm("shfl.sync.idx.b32 $out, $word, $lane, 31, 0xffffffff;", effect="ordered")
def shuffle(word: U32, lane: U32) -> U32:
    """The word that lane `lane` holds; each lane may name another. PTX ISA 9.7.9.6, shfl.sync."""


@asm("shfl.sync.idx.b32 $out, $value, $lane, 31, 0xffffffff;", effect="ordered")
def shuffle_f32(value: F32, lane: U32) -> F32:
    """The float that lane `lane` holds; each lane may name another. PTX ISA 9.7.9.6, shfl.sync."""


@asm("shfl.sync.bfly.b32 $out, $word, $mask, 31, 0xffffffff;", effect="ordered")
def shuffle_xor(word: U32, mask: Immediate) -> U32:
    """The word of the lane whose number differs in the bits of `mask`: five of them make a reduction. PTX ISA 9.7.9.6, shfl.sync."""
