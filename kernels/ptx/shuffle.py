"""Values from other lanes of the warp, without shared memory. All 32 lanes take part."""

from __future__ import annotations

from perfmodel.kernels.ptx.asm import F32, U32, asm


@asm("shfl.sync.idx.b32 $out, $word, $lane, 31, 0xffffffff;", effect="ordered")
def shuffle(word: U32, lane: U32) -> U32:
    """The word that lane `lane` holds; each lane may name another. PTX ISA 9.7.9.6, shfl.sync."""


@asm("shfl.sync.idx.b32 $out, $value, $lane, 31, 0xffffffff;", effect="ordered")
def shuffle_f32(value: F32, lane: U32) -> F32:
    """The float that lane `lane` holds; each lane may name another. PTX ISA 9.7.9.6, shfl.sync."""


@asm("redux.sync.max.u32 $out, $word, 0xffffffff;", effect="ordered")
def largest_of_warp(word: U32) -> U32:
    """The largest word of the warp, unsigned, in every lane. PTX ISA 9.7.13.8, redux.sync."""
