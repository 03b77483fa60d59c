"""Tensor cores of one warp: `mma.sync`, D = A B + C with C and D in single precision.

A is 16 x k (rows by k), B is k x 8, C and D are 16 x 8. With `group = lane // 4` and `member = lane % 4`, a lane holds

    A, 16-bit, k = 16: words of two neighbours in k, at row (group, group + 8, group, group + 8),
                       k = 2 member + (0, 0, 8, 8)
    B, 16-bit, k = 16: words at column group, k = 2 member + (0, 8)
    8-bit, k = 32:     the same with words of four neighbours: k = 4 member + (0, 0, 16, 16) and 4 member + (0, 16)
    C, D:              row (group, group, group + 8, group + 8), column 2 member + (0, 1, 0, 1)

Section 9.7.14.5 of the PTX ISA draws them.
"""

from __future__ import annotations

from perfmodel.kernels.ptx.asm import F32x4, U32x2, U32x4, asm


@asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {$out}, {$a}, {$b}, {$c};", effect="none", updates="c")
def mma_bf16(c: F32x4, a: U32x4, b: U32x2) -> F32x4:
    """c + a b with 16 x 16 and 16 x 8 bfloat16. PTX ISA 9.7.14.5.14, mma."""


@asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$out}, {$a}, {$b}, {$c};", effect="none", updates="c")
def mma_f16(c: F32x4, a: U32x4, b: U32x2) -> F32x4:
    """c + a b with 16 x 16 and 16 x 8 half floats. PTX ISA 9.7.14.5.14, mma."""


@asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {$out}, {$a}, {$b}, {$c};", effect="none", updates="c", needs="sm_89")
def mma_e4m3(c: F32x4, a: U32x4, b: U32x2) -> F32x4:
    """c + a b with 16 x 32 and 32 x 8 E4M3 bytes; on Ada the sum keeps fewer bits than single precision. PTX ISA 9.7.14.5.14, mma."""
