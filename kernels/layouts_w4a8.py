"""MXFP4 weights for kernels whose tensor cores take E4M3 operands (W4A8): tiles of `rows` weight rows x 128 of K.

A tile, contiguous in memory, 8,192 + 512 B for 128 rows:

    codes   [rows / 16][c 0..1][lane 0..31][f 0..1][h 0..1]   32-bit words: 16 B a lane for each 64 of K
            word (c, f, h) holds, of fragment 2 * c + f (k = 32 * (2 * c + f) ..), the lane's row r + 8 * h (r = lane // 4, q = lane % 4):
            k = 4 * q .. 4 * q + 3, register a[h], and k = 16 + 4 * q .., register a[2 + h], on the bits of "e2m1-to-e4m3"
    scales  [rows / 16][r][block 0..3][h]   bytes, of row r + 8 * h and k = 32 * block ..: one 64-bit load a lane

What the bytes of the scales mean: E4M3 holds code x 2**k exactly for k = -8 .. 6, and byte d = k + 8, so 0 .. 14. The largest scale of a
row is stored as 14; `row_scale` undoes it: weight = code x 2**(d - 8) x row_scale[e, n]. A block whose scale lies 15 binades or more below
the largest of its row does not fit: its codes are 0 in `tiles`, and `rest` holds them (see `levels`).

With x = word & 0x77777777 and the table of block byte d, bytes = E4M3 magnitudes of the codes 0 .. 7: `prmt(low, high, x)` gives register
a[h] without signs, `prmt(low, high, x >> 16)` register a[2 + h]; signs are word & 0x80808080 and word << 4 & 0x80808080. For d >= 3 the
table is low = d * 0x08080800 + 0xFBF7F000, high = d * 0x08080808 + 0x0C080400 (mod 2**32); below, subnormals need `E4M3_TABLE`. A kernel
without them packs with `binades=12`, and d is 3 .. 14.
Source: PTX ISA, "Matrix Fragments for mma.m16n8k32", "Register Fragments for wgmma.mma_async.m64nNk32".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfModelError
from perfmodel.kernels.arrays import Array, bitcast, cast, namespace, pad_to, permute
from perfmodel.kernels.fragments import pack_word, unpack_word
from perfmodel.kernels.layouts import check_block_scales, refuse
from perfmodel.kernels.levels import Rest, Window, by_row, collect_rest, occupied, split

TILE_K = 128
"""K of a tile of the W4A8 layout."""
TOP_BYTE, TOP_POWER = 14, 6
"""The byte of the largest scale of a row, and its k: 6 x 2**6 = 384 is the largest multiple of 6 in E4M3 by a power of two."""


@dataclass(frozen=True, eq=False)
class W4A8:
    """Packed weights of E experts [N, K] whose fragments a kernel makes E4M3."""

    format: str
    n: int
    k: int
    rows: int
    """Weight rows of a tile."""
    tiles: Array
    """uint8 [E, ceil(N / rows), ceil(K / 128), bytes of a tile]"""
    row_scale: Array
    """float32 [E, N padded to rows]: what the accumulators of a weight row are multiplied by; 0 beyond N."""
    rest: Rest | None = None
    """Tiles of the blocks that lie too far below the largest scale of their row; None where every block fits."""
    binades: int = 15
    """How far below the largest scale of its row a block of `tiles` may lie: a kernel must make E4M3 of as many."""


def pack_mxfp4_w4a8(codes: Array, scales: Array, rows: int = 128, binades: int = 15) -> W4A8:
    """E2M1 codes uint8 [E, N, K] and E8M0 scales uint8 [E, N, K / 32], every byte but 255, in the layout of the module's head.

    binades: how many below the largest scale of a row a kernel makes E4M3 of, at most 15. Raises PerfModelError for shapes that do not fit
    and for the NaN byte 255.
    """
    check_block_scales(codes, scales, 32, rows)
    refuse(scales == 255, "E8M0 scale is NaN (byte 255)")
    if not 1 <= binades <= 15:
        raise PerfModelError("E4M3 holds E2M1 over 1 to 15 binades", field="binades", value=binades)
    window = Window(top=TOP_BYTE, binades=binades)
    top, levels = by_row(codes, scales, window)
    stored = _scale_bytes(window.stored(scales, top, levels), rows)
    parts = split(codes, levels)
    tiles = [namespace(codes).concatenate([pack_codes(part, rows), stored], -1) for part in parts]
    rest = collect_rest(tiles[1:], [occupied(part, rows, TILE_K) for part in parts[1:]], binades)
    row_scale = cast(namespace(codes).ldexp(cast(top * 0 + 1, "float64"), top - 127 - TOP_POWER), "float32")[..., 0]
    padded = pad_to(row_scale, codes.shape[0], tiles[0].shape[1] * rows)
    return W4A8("mxfp4-w4a8", codes.shape[1], codes.shape[2], rows, tiles[0], padded, rest, binades)


def pack_codes(codes: Array, rows: int) -> Array:
    """Codes uint8 [E, N, K] as the codes of tiles, uint8 [E, ceil(N / rows), ceil(K / 128), rows * 64]."""
    experts, n, k = codes.shape
    down, across = -(-n // rows), -(-k // TILE_K)
    padded = pad_to(codes, experts, down * rows, across * TILE_K)
    #                        0        1     2           3  4  5       6  7  8  9  10
    axes = padded.reshape(experts, down, rows // 16, 2, 8, across, 2, 2, 2, 4, 4)  # e, tile, m16, h, r, tile, c, f, k16, q, byte
    slots = permute(axes, 8, 10, 0, 1, 5, 2, 6, 4, 9, 7, 3).reshape(8, experts, down, across, rows * 16)
    return bitcast(pack_word(slots, "e2m1-to-e4m3"), "uint8")


def unpack_codes(tiles: Array, rows: int) -> Array:
    """The inverse of `pack_codes`: tiles, with or without scales behind, as codes uint8 [E, N padded, K padded]."""
    experts, down, across, _ = tiles.shape
    slots = unpack_word(bitcast(tiles[..., : rows * 64], "int32"), "e2m1-to-e4m3")
    axes = slots.reshape(2, 4, experts, down, across, rows // 16, 2, 8, 4, 2, 2)  # k16, byte, e, tile, tile, m16, c, r, q, f, h
    return permute(axes, 2, 3, 5, 10, 7, 4, 6, 9, 0, 8, 1).reshape(experts, down * rows, across * TILE_K)


def unpack_scale_bytes(tiles: Array, rows: int) -> Array:
    """The scale bytes behind the codes of tiles, uint8 [E, N padded, K padded / 32]."""
    experts, down, across, _ = tiles.shape
    axes = tiles[..., rows * 64 :].reshape(experts, down, across, rows // 16, 8, 4, 2)
    return permute(axes, 0, 1, 3, 6, 4, 2, 5).reshape(experts, down * rows, across * 4)


def _scale_bytes(scales: Array, rows: int) -> Array:
    """Bytes uint8 [E, N, K / 32] in the order of tiles, uint8 [E, ceil(N / rows), ceil(K / 128), rows * 4]."""
    experts, n, blocks = scales.shape
    down, across = -(-n // rows), -(-blocks // 4)
    axes = pad_to(scales, experts, down * rows, across * 4).reshape(experts, down, rows // 16, 2, 8, across, 4)
    return permute(axes, 0, 1, 5, 2, 4, 6, 3).reshape(experts, down, across, rows * 4)


def _e4m3_table() -> NDArray[np.uint32]:
    import ml_dtypes

    magnitudes = np.arange(8, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    powers = np.ldexp(np.float32(1), np.arange(15) - 8)
    return np.asarray((powers[:, None] * magnitudes).astype(ml_dtypes.float8_e4m3fn).view("<u4"))


E4M3_TABLE = _e4m3_table()
"""uint32 [15, 2]: `low` and `high` for each byte d, the E4M3 codes of 0, .5, 1, 1.5, 2, 3, 4, 6 times 2**(d - 8), first in the low byte."""
