"""The device code of `quantise`: a CTA reads a row for its largest magnitude, then again, from L1, to write its codes."""

from __future__ import annotations

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.kernels.ptx.asm import F32, U32, U32x2, U32x4, asm
from perfmodel.kernels.ptx.convert import bits_float
from perfmodel.kernels.ptx.memory import (
    array_address,
    load_constant,
    load_constant_x4,
    load_shared,
    store_global_f32,
    store_global_x2,
    store_shared,
    to_shared,
)
from perfmodel.kernels.ptx.shuffle import largest_of_warp
from perfmodel.kernels.quantise import LARGEST, LEAST_POWER, THREADS

U = np.uint32
U64 = np.uint64
WARP = 32
WARPS = THREADS // WARP
PIECE = 8
"""Elements that a thread takes at once: 16 bytes of bf16, 8 bytes of E4M3."""
LEAST_BITS = U((127 + LEAST_POWER) << 23)
"""2**-100 as the bits of a float."""
TO_SCALE = np.float32(1 / LARGEST)
SIGNATURE = (types.uint64,) * 4 + (types.uint32,) * 2


@asm(
    """{ .reg .b32 m, t;
    and.b32 m, $words[0], 0x7FFF7FFF; shl.b32 t, m, 16; max.u32 $out[0], $held[0], m; max.u32 $out[1], $held[1], t;
    and.b32 m, $words[1], 0x7FFF7FFF; shl.b32 t, m, 16; max.u32 $out[0], $out[0], m; max.u32 $out[1], $out[1], t;
    and.b32 m, $words[2], 0x7FFF7FFF; shl.b32 t, m, 16; max.u32 $out[0], $out[0], m; max.u32 $out[1], $out[1], t;
    and.b32 m, $words[3], 0x7FFF7FFF; shl.b32 t, m, 16; max.u32 $out[0], $out[0], m; max.u32 $out[1], $out[1], t; }""",
    effect="none",
    updates="held",
    early=True,
)
def larger(held: U32x2, words: U32x4) -> U32x2:
    """The largest magnitudes of the upper and of the lower halves, in the upper halves, of `held` and four pairs of bf16.

    Without their signs floats are ordered as their bits are, NaN above all. Below the upper halves lie bits that mean nothing.
    """


@asm(
    """{ .reg .b32 t; .reg .f32 low, high; .reg .b16 first, second;
    shl.b32 t, $words[0], 16; mov.b32 low, t; and.b32 t, $words[0], 0xFFFF0000; mov.b32 high, t;
    mul.rn.f32 low, low, $factor; mul.rn.f32 high, high, $factor; cvt.rn.satfinite.e4m3x2.f32 first, high, low;
    shl.b32 t, $words[1], 16; mov.b32 low, t; and.b32 t, $words[1], 0xFFFF0000; mov.b32 high, t;
    mul.rn.f32 low, low, $factor; mul.rn.f32 high, high, $factor; cvt.rn.satfinite.e4m3x2.f32 second, high, low;
    mov.b32 $out, {first, second}; }""",
    effect="none",
    early=True,
    needs="sm_89",
)
def four_e4m3(words: U32x2, factor: F32) -> U32:
    """Four bf16 times `factor` as E4M3, to nearest even."""


@asm("div.rn.f32 $out, $a, $b;", effect="none")
def divided(a: F32, b: F32) -> F32:
    """a / b, to nearest even. PTX ISA 9.7.3.8, div."""


def quantise(x, codes, scales, rows, tokens, k):
    """See `perfmodel.kernels.quantise.build`."""
    shared = cuda.shared.array(WARPS, types.uint32)
    largest = to_shared(array_address(shared))
    thread = U(cuda.threadIdx.x)
    for token in range(U(cuda.blockIdx.x), tokens, U(cuda.gridDim.x)):
        row = U(token)
        if rows != U64(0):
            row = load_constant(rows + U64(token) * U64(4))
        source = x + U64(row) * U64(k) * U64(2)
        held = (U(0), U(0))
        for at in range(thread * U(PIECE), k, U(THREADS * PIECE)):
            held = larger(held, load_constant_x4(source + U64(at) * U64(2)))
        of_warp = largest_of_warp(max(held[0] & U(0xFFFF0000), held[1]))
        if thread & U(WARP - 1) == U(0):
            store_shared(largest + (thread // U(WARP)) * U(4), of_warp)
        cuda.syncthreads()
        amax = largest_of_warp(max(load_shared(largest + (thread % U(WARPS)) * U(4)), LEAST_BITS))
        amax = bits_float(amax)
        if thread == U(0):
            store_global_f32(scales + U64(token) * U64(4), amax * TO_SCALE)
        factor = divided(np.float32(LARGEST), amax)
        target = codes + U64(token) * U64(k)
        for at in range(thread * U(PIECE), k, U(THREADS * PIECE)):
            words = load_constant_x4(source + U64(at) * U64(2))
            store_global_x2(target + U64(at), (four_e4m3((words[0], words[1]), factor), four_e4m3((words[2], words[3]), factor)))
        cuda.syncthreads()
