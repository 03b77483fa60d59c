"""Addresses, and loads and stores of 4, 8 and 16 bytes. A global address is 64 bits wide, a shared one 32.

An address must be a multiple of the bytes that one instruction moves. Words are `uint32`, whatever they hold.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.cuda.extending import intrinsic

from perfmodel.kernels.ptx.asm import F32, U16, U32, U64, U32x2, U32x4, asm


def _array_address(_context: Any, array: Any) -> Any:
    """The generic 64-bit address of an array's first element; of a global array that is its global address."""
    if not isinstance(array, types.Array):
        return None

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.uint64(array), emit


array_address = intrinsic(_array_address)


@asm("{ .reg .u64 t; cvta.to.shared.u64 t, $generic; cvt.u32.u64 $out, t; }", effect="none")
def to_shared(generic: U64) -> U32:
    """The shared address of a generic one: `to_shared(array_address(shared_array))`. PTX ISA 9.7.9.20, cvta."""


@asm("ld.shared.b32 $out, [$address];")
def load_shared(address: U32) -> U32:
    """One word from shared memory. PTX ISA 9.7.9.8, ld."""


@asm("ld.shared.v2.b32 {$out}, [$address];")
def load_shared_x2(address: U32) -> U32x2:
    """Two words from shared memory. PTX ISA 9.7.9.8, ld."""


@asm("ld.shared.v4.b32 {$out}, [$address];")
def load_shared_x4(address: U32) -> U32x4:
    """Four words from shared memory; a warp reads 512 bytes without bank conflicts if they are contiguous. PTX ISA 9.7.9.8, ld."""


@asm("ld.shared.f32 $out, [$address];")
def load_shared_f32(address: U32) -> F32:
    """One float from shared memory. PTX ISA 9.7.9.8, ld."""


@asm("st.shared.b32 [$address], $word;")
def store_shared(address: U32, word: U32) -> None:
    """One word to shared memory. PTX ISA 9.7.9.11, st."""


@asm("st.shared.v2.b32 [$address], {$words};")
def store_shared_x2(address: U32, words: U32x2) -> None:
    """Two words to shared memory. PTX ISA 9.7.9.11, st."""


@asm("st.shared.v4.b32 [$address], {$words};")
def store_shared_x4(address: U32, words: U32x4) -> None:
    """Four words to shared memory. PTX ISA 9.7.9.11, st."""


@asm("st.shared.f32 [$address], $value;")
def store_shared_f32(address: U32, value: F32) -> None:
    """One float to shared memory. PTX ISA 9.7.9.11, st."""


@asm("ld.global.b32 $out, [$address];")
def load_global(address: U64) -> U32:
    """One word that this kernel may also write. PTX ISA 9.7.9.8, ld."""


@asm("ld.global.v4.b32 {$out}, [$address];")
def load_global_x4(address: U64) -> U32x4:
    """Four words that this kernel may also write. PTX ISA 9.7.9.8, ld."""


@asm("ld.global.nc.b32 $out, [$address];", effect="ordered")
def load_constant(address: U64) -> U32:
    """One word of data that nothing writes while the kernel runs. PTX ISA 9.7.9.9, ld.global.nc."""


@asm("ld.global.nc.v2.b32 {$out}, [$address];", effect="ordered")
def load_constant_x2(address: U64) -> U32x2:
    """Two words of data that nothing writes while the kernel runs. PTX ISA 9.7.9.9, ld.global.nc."""


@asm("ld.global.nc.v4.b32 {$out}, [$address];", effect="ordered")
def load_constant_x4(address: U64) -> U32x4:
    """Four words of data that nothing writes while the kernel runs. PTX ISA 9.7.9.9, ld.global.nc."""


@asm("ld.global.nc.f32 $out, [$address];", effect="ordered")
def load_constant_f32(address: U64) -> F32:
    """One float of data that nothing writes while the kernel runs. PTX ISA 9.7.9.9, ld.global.nc."""


@asm(
    "{ .reg .pred p; setp.ne.u32 p, $wanted, 0; mov.b32 $out[0], 0; mov.b32 $out[1], 0; mov.b32 $out[2], 0; mov.b32 $out[3], 0;\n"
    "@p ld.global.nc.v4.b32 {$out}, [$address]; }",
    effect="ordered",
    early=True,
)
def load_constant_x4_if(address: U64, wanted: U32) -> U32x4:
    """`load_constant_x4` where `wanted` is not 0, else four zeros and no access. PTX ISA 9.7.9.9, ld.global.nc."""


@asm("ld.global.nc.L1::no_allocate.b32 $out, [$address];", effect="ordered")
def load_once(address: U64) -> U32:
    """One word of constant data that this SM reads only once: L1 keeps no line for it. PTX ISA 9.7.9.9, ld.global.nc."""


@asm("ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {$out}, [$address];", effect="ordered")
def load_once_x4(address: U64) -> U32x4:
    """Four words that this SM reads only once, fetched into L2 by 128-byte lines. PTX ISA 9.7.9.9, ld.global.nc."""


@asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {$out}, [$address], $policy;", effect="ordered")
def load_once_x4_hinted(address: U64, policy: U64) -> U32x4:
    """`load_once_x4` under an L2 policy (`policy_evict_first`). PTX ISA 9.7.9.9, ld.global.nc."""


@asm("createpolicy.fractional.L2::evict_first.b64 $out, 1.0;", effect="none")
def policy_evict_first() -> U64:
    """L2 policy for data read once: its lines go first. PTX ISA 9.7.9.18, createpolicy."""


@asm("createpolicy.fractional.L2::evict_last.b64 $out, 1.0;", effect="none")
def policy_evict_last() -> U64:
    """L2 policy for data that other SMs will read again: its lines go last. PTX ISA 9.7.9.18, createpolicy."""


@asm("prefetch.global.L2 [$address];")
def prefetch_l2(address: U64) -> None:
    """Start to bring the line of a global address into L2. PTX ISA 9.7.9.15, prefetch."""


@asm("st.global.b16 [$address], $half;")
def store_global_b16(address: U64, half: U16) -> None:
    """Two bytes to global memory. PTX ISA 9.7.9.11, st."""


@asm("st.global.b32 [$address], $word;")
def store_global(address: U64, word: U32) -> None:
    """One word to global memory. PTX ISA 9.7.9.11, st."""


@asm("st.global.v2.b32 [$address], {$words};")
def store_global_x2(address: U64, words: U32x2) -> None:
    """Two words to global memory. PTX ISA 9.7.9.11, st."""


@asm("st.global.v4.b32 [$address], {$words};")
def store_global_x4(address: U64, words: U32x4) -> None:
    """Four words to global memory. PTX ISA 9.7.9.11, st."""


@asm("st.global.f32 [$address], $value;")
def store_global_f32(address: U64, value: F32) -> None:
    """One float to global memory. PTX ISA 9.7.9.11, st."""
