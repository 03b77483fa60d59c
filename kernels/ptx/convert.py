"""Numbers into other numbers: narrow floats in pairs, bytes and bits of words, bit patterns, fast approximations.

Of a pair the low half (the even element in memory) comes first among the parameters. None of these flushes subnormals.
"""

from __future__ import annotations

from perfmodel.kernels.ptx.asm import F32, U16, U32, Immediate, asm


@asm("cvt.rn.bf16x2.f32 $out, $high, $low;", effect="none")
def pack_bf16x2(low: F32, high: F32) -> U32:
    """Two floats to bfloat16, to nearest even. PTX ISA 9.7.9.21, cvt."""


@asm("cvt.rn.f16x2.f32 $out, $high, $low;", effect="none")
def pack_f16x2(low: F32, high: F32) -> U32:
    """Two floats to half precision, to nearest even. PTX ISA 9.7.9.21, cvt."""


@asm("cvt.rn.satfinite.e4m3x2.f32 $out, $high, $low;", effect="none", needs="sm_89")
def pack_e4m3x2(low: F32, high: F32) -> U16:
    """Two floats to E4M3, to nearest even; beyond 448 becomes 448. PTX ISA 9.7.9.21, cvt."""


@asm("cvt.rn.f16x2.e4m3x2 $out, $pair;", effect="none", needs="sm_89")
def unpack_e4m3x2(pair: U16) -> U32:
    """Two E4M3 to half precision, exactly. PTX ISA 9.7.9.21, cvt."""


@asm("{ .reg .b8 pair, rest; mov.b16 {pair, rest}, $nibbles; cvt.rn.f16x2.e2m1x2 $out, pair; }", effect="none", needs="sm_100")
def unpack_e2m1x2(nibbles: U16) -> U32:
    """The two E2M1 of the low byte to half precision, exactly; the low nibble is the low half. PTX ISA 9.7.9.21, cvt."""


@asm("cvt.rn.bf16.f32 $out, $value;", effect="none")
def to_bf16(value: F32) -> U16:
    """A float to bfloat16, to nearest even. PTX ISA 9.7.9.21, cvt."""


@asm("mov.b32 $out, $value;", effect="none")
def float_bits(value: F32) -> U32:
    """The bits of a float. PTX ISA 9.7.9.3, mov."""


@asm("mov.b32 $out, $bits;", effect="none")
def bits_float(bits: U32) -> F32:
    """The float of these bits; that of a bfloat16 shifted left by 16 is its value. PTX ISA 9.7.9.3, mov."""


@asm("mul.rn.bf16x2 $out, $a, $b;", effect="none", needs="sm_90")
def mul_bf16x2(a: U32, b: U32) -> U32:
    """Two products. PTX ISA 9.7.4.3, mul."""


@asm("fma.rn.bf16x2 $out, $a, $b, $c;", effect="none")
def fma_bf16x2(a: U32, b: U32, c: U32) -> U32:
    """Two a b + c, rounded once; with c = 0x80008000 (two -0.0) a product where `mul_bf16x2` is missing. PTX ISA 9.7.4.4, fma."""


@asm("mul.rn.f16x2 $out, $a, $b;", effect="none")
def mul_f16x2(a: U32, b: U32) -> U32:
    """Two products. PTX ISA 9.7.4.3, mul."""


@asm("fma.rn.f16x2 $out, $a, $b, $c;", effect="none")
def fma_f16x2(a: U32, b: U32, c: U32) -> U32:
    """Two a b + c, rounded once. PTX ISA 9.7.4.4, fma."""


@asm("prmt.b32 $out, $a, $b, $selector;", effect="none")
def permute_bytes(a: U32, b: U32, selector: U32) -> U32:
    """Four bytes picked from the eight of `a` (0 to 3) and `b` (4 to 7): nibble i of `selector` names byte i. PTX ISA 9.7.9.7, prmt.

    Bit 3 of a nibble repeats the sign of the byte instead. As a table of eight bytes it turns four 3-bit codes into values at once.
    """


@asm("lop3.b32 $out, $a, $b, $c, $table;", effect="none")
def logic(a: U32, b: U32, c: U32, table: Immediate) -> U32:
    """Any bitwise function of three words: `table` is that function of 0xF0, 0xCC, 0xAA. PTX ISA 9.7.8.6, lop3."""


@asm("shf.l.wrap.b32 $out, $low, $high, $count;", effect="none")
def funnel_left(low: U32, high: U32, count: U32) -> U32:
    """The upper word of `high:low` shifted left by `count` modulo 32. PTX ISA 9.7.8.7, shf."""


@asm("ex2.approx.f32 $out, $x;", effect="none")
def exp2_approx(x: F32) -> F32:
    """2 ** x within 2 ulp. PTX ISA 9.7.3.21, ex2."""


@asm("rcp.approx.f32 $out, $x;", effect="none")
def reciprocal_approx(x: F32) -> F32:
    """1 / x within 1 ulp. PTX ISA 9.7.3.13, rcp."""
