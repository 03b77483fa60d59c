"""Whole 8 x 8 matrices of 16-bit elements between shared memory and the registers of a warp, laid out as `mma` wants them.

Lane `i` gives the address of one row of 16 bytes: lanes 0 to 7 those of the first matrix, 8 to 15 of the second, and so on. In registers,
lane `i` holds elements 2 (i % 4) and 2 (i % 4) + 1 of row i // 4 of each matrix; with `trans`, of the transposed matrix.
"""

from __future__ import annotations

from perfmodel.kernels.ptx.asm import U32, U32x2, U32x4, asm


@asm("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {$out}, [$address];")
def load_matrix_x2(address: U32) -> U32x2:
    """Two matrices; lanes 0 to 15 give the addresses. PTX ISA 9.7.14.5.15, ldmatrix."""


@asm("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$out}, [$address];")
def load_matrix_x4(address: U32) -> U32x4:
    """Four matrices: the A operand of a 16 x 16 `mma`. PTX ISA 9.7.14.5.15, ldmatrix."""


@asm("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$out}, [$address];")
def load_matrix_x4_trans(address: U32) -> U32x4:
    """Four matrices, each transposed on the way. PTX ISA 9.7.14.5.15, ldmatrix."""


@asm("stmatrix.sync.aligned.m8n8.x4.shared.b16 [$address], {$words};", needs="sm_90")
def store_matrix_x4(address: U32, words: U32x4) -> None:
    """Four matrices to shared memory. PTX ISA 9.7.14.5.16, stmatrix."""


@asm("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$address], {$words};", needs="sm_90")
def store_matrix_x4_trans(address: U32, words: U32x4) -> None:
    """Four matrices to shared memory, each transposed on the way: columns of D become rows. PTX ISA 9.7.14.5.16, stmatrix."""
