"""What the instructions of PTX compute, on arrays of bits: one element a thread. See `emulator`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels.rounding import round_bf16

Bits = NDArray[Any]
UNSIGNED = {16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED = {16: np.int16, 32: np.int32, 64: np.int64}
FLOAT = {32: np.float32, 64: np.float64}


def compute(opcode: str, operands: list[Any]) -> Bits:
    """The result of an instruction of one thread. Raises KeyError for an instruction that is not known."""
    kind, *tail = opcode.split(".")
    if kind == "cvt":
        return _convert(tail, operands)
    if kind == "setp":
        return _compare(tail[0], [_typed(value, tail[-1]) for value in operands])
    if kind == "selp":
        yes, no = (_typed(value, tail[-1]) for value in operands[:2])
        return _bits(np.where(operands[2], yes, no))
    if kind == "cvta":
        return np.asarray(_typed(operands[0], "b64"))
    if tail[-1] == "pred":
        return np.asarray({"and": np.logical_and, "or": np.logical_or, "not": np.logical_not, "xor": np.logical_xor}[kind](*operands))
    if tail[-1] == "bf16x2":
        return _pairs(kind, operands)
    if kind in ("shl", "shr"):
        return _bits(_shift(kind, _typed(operands[0], tail[-1]), operands[1]))
    if "wide" in tail:
        return _wide(kind, tail[-1], operands)
    with np.errstate(all="ignore"):
        return _bits(OPERATIONS[kind](*(_typed(value, tail[-1]) for value in operands)))


def warp_wide(opcode: str, operands: list[list[Any]]) -> list[Bits]:
    """The results of an instruction of whole warps; operands are lists of registers, threads in the order of lanes."""
    kind = opcode.split(".")[0]
    if kind == "mma":
        return _mma(operands)
    if kind == "movmatrix":
        words = np.asarray(operands[0][0], np.uint32).reshape(-1, 32)
        halves = np.ascontiguousarray(words).view(np.uint16).reshape(-1, 8, 8)
        return [np.ascontiguousarray(halves.transpose(0, 2, 1)).reshape(-1, 64).view(np.uint32).reshape(-1)]
    if kind == "vote":  # ballot
        flags = np.broadcast_to(np.asarray(operands[0][0]), np.asarray(operands[1][0]).shape or (32,)).reshape(-1, 32).astype(np.uint32)
        return [np.repeat((flags << np.arange(32, dtype=np.uint32)).sum(axis=1, dtype=np.uint32), 32)]
    value, step = operands[0][0], np.asarray(operands[1][0]).reshape(-1)[0]
    lanes = np.asarray(value).reshape(-1, 32)
    if ".idx." in opcode:
        source = np.broadcast_to(np.asarray(operands[1][0]), np.asarray(value).shape).reshape(-1, 32).astype(np.int64) & 31
        return [np.take_along_axis(lanes, source, axis=1).reshape(-1)]
    source = np.arange(32) - int(step)
    return [np.where(source >= 0, lanes[:, source], lanes).reshape(-1)]


def repack(values: list[Any], count: int, whole: str = "b64") -> list[Bits]:
    """One register of type `whole` as two of half the bits, the low half first, or the other way round."""
    bits = int(whole[1:]) // 2
    if count == 2:
        return [np.asarray(_typed(_typed(values[0], whole) >> UNSIGNED[2 * bits](bits * i), f"b{bits}")) for i in range(2)]
    low, high = (_typed(_typed(value, f"b{bits}"), whole) for value in values)
    return [np.asarray(low | high << UNSIGNED[2 * bits](bits))]


def _typed(value: Any, kind: str) -> Any:
    """Bits as numbers of a PTX type (s32, u64, b32, f32)."""
    width = int(kind[1:])
    if isinstance(value, int):
        bits = np.array(value & ((1 << width) - 1), UNSIGNED[width])
    else:
        bits = np.asarray(value).astype(UNSIGNED[width])
    kinds: dict[str, Any] = {"s": SIGNED, "u": UNSIGNED, "b": UNSIGNED, "f": FLOAT}
    return bits.view(kinds[kind[0]][width])


def _bits(value: Any) -> Bits:
    array = np.asarray(value)
    return array.view(UNSIGNED[array.dtype.itemsize * 8])


def _convert(tail: list[str], operands: list[Any]) -> Bits:
    if "bf16x2" in tail:
        high, low = (np.asarray(_typed(value, "f32")).astype(np.float64) for value in operands)
        return to_pair(low, high)
    target, source = tail[-2:]
    return _bits(_typed(operands[0], source).astype(_typed(0, target).dtype))


def _compare(relation: str, pair: list[Any]) -> Bits:
    names: dict[str, Callable[..., Any]] = {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }
    return np.asarray(names[relation](*pair))


def _shift(kind: str, value: Any, by: Any) -> Any:
    """Shifts beyond the width give 0, or the sign."""
    by = np.asarray(by).astype(np.int64)
    width = value.dtype.itemsize * 8
    moved = (np.left_shift if kind == "shl" else np.right_shift)(value, np.minimum(by, width - 1).astype(value.dtype))
    lost = value >> (width - 1) if kind == "shr" and value.dtype.kind == "i" else np.zeros_like(value)
    return np.where(by < width, moved, lost)


def _wide(kind: str, source: str, operands: list[Any]) -> Bits:
    double = source[0] + str(2 * int(source[1:]))
    a, b = (_typed(value, source).astype(_typed(0, double).dtype) for value in operands[:2])
    product = a * b
    return _bits(product + _typed(operands[2], double) if kind == "mad" else product)


def pair_values(words: Any) -> tuple[Bits, Bits]:
    """The two bf16 of each word, as float64: low half, high half."""
    bits = np.asarray(_typed(words, "b32"))
    low, high = bits << np.uint32(16), bits & np.uint32(0xFFFF0000)
    return low.view(np.float32).astype(np.float64), high.view(np.float32).astype(np.float64)


def to_pair(low: Bits, high: Bits) -> Bits:
    """Words of the bf16 nearest to each two values."""
    with np.errstate(all="ignore"):
        bits = [np.asarray(round_bf16(np.asarray(part))).astype(np.float32).view(np.uint32) >> np.uint32(16) for part in (low, high)]
    return np.asarray(bits[0] | bits[1] << np.uint32(16))


def _pairs(kind: str, operands: list[Any]) -> Bits:
    halves = list(zip(*(pair_values(value) for value in operands), strict=True))
    with np.errstate(all="ignore"):
        low, high = (part[0] * part[1] + (part[2] if kind == "fma" else -0.0) for part in halves)
    return to_pair(np.asarray(low), np.asarray(high))


def _mma(operands: list[list[Any]]) -> list[Bits]:
    """m16n8k16 of bf16: fragments as the PTX ISA draws them."""
    a, b, c = ([np.asarray(register).reshape(-1, 32) for register in part] for part in operands)
    lane = np.arange(32)
    r, q = lane // 4, lane % 4
    left, right = np.zeros((len(a[0]), 16, 16)), np.zeros((len(a[0]), 8, 16))
    for index, register in enumerate(a):
        left[:, r + 8 * (index % 2), 2 * q + 8 * (index // 2)], left[:, r + 8 * (index % 2), 2 * q + 8 * (index // 2) + 1] = pair_values(
            register
        )
    for index, register in enumerate(b):
        right[:, r, 2 * q + 8 * index], right[:, r, 2 * q + 8 * index + 1] = pair_values(register)
    with np.errstate(all="ignore"):
        product = left @ right.transpose(0, 2, 1)
        sums = [register.view(np.float32) + product[:, r + 8 * (i // 2), 2 * q + i % 2] for i, register in enumerate(c)]
    return [part.astype(np.float32).view(np.uint32).reshape(-1) for part in sums]


def _lop3(a: Any, b: Any, c: Any, table: Any) -> Any:
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
    for row in range(8):
        if int(table) >> row & 1:
            term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            result |= term
    return result


def _prmt(a: Any, b: Any, selector: Any) -> Any:
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, selector.shape), np.uint32)
    for i in range(4):
        nibble = selector >> np.uint32(4 * i) & np.uint32(15)
        byte = (both >> (np.uint64(8) * (nibble & np.uint32(7)).astype(np.uint64)) & np.uint64(0xFF)).astype(np.uint32)
        sign = np.where(byte & np.uint32(0x80), np.uint32(0xFF), np.uint32(0))
        result |= np.where(nibble & np.uint32(8), sign, byte) << np.uint32(8 * i)
    return result


def _funnel(low: Any, high: Any, by: Any) -> Any:
    """shf.l.wrap: the upper word of two, shifted to the left by `by` modulo 32."""
    both = low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
    return (both << (by & np.uint32(31)).astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


def _bfi(field: Any, into: Any, position: Any, length: Any) -> Any:
    mask = ((1 << int(length)) - 1) << int(position)
    kind = into.dtype.type
    return into & ~kind(mask) | field << kind(int(position)) & kind(mask)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "mov": lambda a: a,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "mad": lambda a, b, c: a * b + c,
    "fma": lambda a, b, c: (a.astype(np.float64) * b + c).astype(a.dtype),
    "div": lambda a, b: a // b,
    "min": np.minimum,
    "max": np.maximum,
    "neg": lambda a: -a,
    "not": lambda a: ~a,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "ex2": np.exp2,
    "rcp": np.reciprocal,
    "lop3": _lop3,
    "prmt": _prmt,
    "shf": _funnel,
    "popc": lambda a: np.bitwise_count(a).astype(np.uint32),
    "bfi": _bfi,
}
"""Instruction -> function of numbers of its type."""
