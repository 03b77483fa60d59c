"""Weights as the kernels read them: tiles of `rows` weight rows x 64 (bf16 operand) or 128 (e4m3 operand) of K, one after the other.

A tile is what one step of the main loop takes, contiguous in memory: first the codes, then the scales of the block-scaled formats.

    codes   [rows / 16][lane 0..31][word 0..3]   32-bit words: 16 B a lane, 512 B for 16 rows; word j holds k = 16 * j .. 16 * j + 15
            of the lane's rows r and r + 8 (r = lane // 4) as `fragments` says: what `mma.sync` and `wgmma` want as A fragment j
    scales  MXFP4: [rows / 16][r][c][h]  bytes, of row r + 8 * h and k = 32 * c .. 32 * c + 31: one 32-bit load a lane
            NVFP4: [rows / 16][r][j][h]  bytes, of row r + 8 * h and k = 16 * j .. 16 * j + 15: one 64-bit load a lane
            INT4, NF4: none; `group_scales` lies apart, for its groups can be longer than a tile

A tile of 128 rows has 4096 + 256 B in MXFP4, 4096 + 512 B in NVFP4, 4096 B in INT4 and NF4. Rows beyond N and K beyond K are codes 0.

What the bytes of the scales mean ("|2" = the same bf16 in both halves of a register), and so what the GPU computes, all exact:

    MXFP4   byte d: d * 0x00800080 is bf16 |2 of 2**(d - 127).            weight = code x 2**-126 x that x alpha[e]
    NVFP4   byte u: u * 0x00100010 + 0x70007000 is bf16 |2 of scale x 2**119.  weight = code x 2**-126 x that x alpha[e]

(code x 2**-126 is the bf16 that masks make of a code.) The products, weight / alpha, lie within 2**-133 .. 12 and 2**-17 .. 21.
`alpha` is FP32 and belongs to the epilogue. Everything here takes NumPy arrays or torch tensors and gives the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import PerfModelError
from perfmodel.formats.scales import FP32_MAX
from perfmodel.kernels.arrays import Array, bitcast, cast, dtype_name, namespace, pad_to, permute
from perfmodel.kernels.fragments import NibbleOrder, pack_word, unpack_word, words_together
from perfmodel.kernels.levels import Rest, Window, by_expert, collect_rest, occupied, split

TILE_K = 64
"""K of a tile of the W4A16 layouts."""
MXFP4_WINDOW = Window(top=254, binades=134)
"""Stored bytes of MXFP4 scales, 121 .. 254: over that range code x 2**-126 x 2**(byte - 127) is exact in bf16, subnormals included."""
INT4_SCALE_MAX = 2.0**127
"""Of INT4: above it rounding the lowest four bits away may overflow."""
NVFP4_SHIFT = 7
"""NVFP4 weights come out 2**7 too small, so that the bf16 of the largest scale stays finite."""


@dataclass(frozen=True, eq=False)
class W4A16:
    """Packed weights of E experts [N, K] whose fragments a kernel makes bf16."""

    format: str
    """Id of the format: mxfp4-w4a16, nvfp4-w4a16, int4-w4a16 or nf4-w4a16."""
    n: int
    k: int
    rows: int
    """Weight rows of a tile."""
    tiles: Array
    """uint8 [E, ceil(N / rows), ceil(K / 64), bytes of a tile]"""
    alpha: Array
    """float32 [E]: what the accumulators are multiplied by."""
    group_scales: Array | None = None
    """INT4 and NF4: int32 [E, ceil(N / rows), groups of K, rows]; see `pack_group_scales`."""
    group: int = 0
    """INT4 and NF4: K of a group in `group_scales`, 32 or 64 x a power of two."""
    rest: Rest | None = None
    """MXFP4 whose scales spread over more than 134 binades in an expert: the tiles of what did not fit. None in any real checkpoint."""

    @property
    def group_shift(self) -> int:
        """log2(group / 64): a tile's index shifted right by it is the index of its group. 0 for groups of 32, and without groups."""
        return max(self.group // TILE_K, 1).bit_length() - 1


def pack_mxfp4_w4a16(codes: Array, scales: Array, rows: int = 128) -> W4A16:
    """E2M1 codes uint8 [E, N, K] and E8M0 scales uint8 [E, N, K / 32], every byte but 255, in the layout of the module's head.

    Scales are re-based by expert: the largest one over a block that is not all zeros gets the byte 254. `alpha` undoes it.
    Raises PerfModelError for shapes that do not fit and for the NaN byte 255.
    """
    check_block_scales(codes, scales, 32, rows)
    refuse(scales == 255, "E8M0 scale is NaN (byte 255)")
    top, levels = by_expert(codes, scales, MXFP4_WINDOW)
    stored = MXFP4_WINDOW.stored(scales, top, levels)

    def pack(part: Array) -> Array:
        return _with_scales(pack_codes(part, "e2m1", rows), _scale_bytes(stored, 32, rows))

    parts = split(codes, levels)
    tiles = [pack(part) for part in parts]
    rest = collect_rest(tiles[1:], [occupied(part, rows, TILE_K) for part in parts[1:]], MXFP4_WINDOW.binades)
    alpha = cast(namespace(codes).ldexp(cast(top * 0 + 1, "float64"), top - 128), "float32").reshape(-1)
    return W4A16("mxfp4-w4a16", codes.shape[1], codes.shape[2], rows, tiles[0], alpha, rest=rest)


def pack_nvfp4_w4a16(codes: Array, scales: Array, tensor_scale: Array, rows: int = 128) -> W4A16:
    """E2M1 codes uint8 [E, N, K], E4M3 scales uint8 [E, N, K / 16] and the FP32 scale [E] above them, in the layout of the module's head.

    E4M3 s = 1.m x 2**e, -9 <= e <= 8, subnormals normalised, is stored as (e + 22) << 3 | m: the exponent of its bf16 without the upper
    three bits, which are 7 throughout. Blocks of scale zero get codes zero. Raises PerfModelError for NaN and negative scales, for shapes
    that do not fit.
    """
    check_block_scales(codes, scales, 16, rows)
    refuse((scales & 0x7F) == 0x7F, "E4M3 scale is NaN")
    refuse(scales > 0x80, "E4M3 scale is negative")
    empty = (scales & 0x7F) == 0
    alpha = cast(tensor_scale, "float64").reshape(-1) * 2**NVFP4_SHIFT
    if tuple(alpha.shape) != (codes.shape[0],) or not bool(((alpha > 0) & (alpha <= FP32_MAX)).all()):
        raise PerfModelError("one positive FP32 scale under 2**121 for each expert", field="tensor_scale", value=tuple(tensor_scale.shape))
    kept = namespace(codes).where(_per_element(empty, 16), cast(codes * 0, "uint8"), codes)
    tiles = _with_scales(pack_codes(kept, "e2m1", rows), _scale_bytes(normalised_e4m3(scales), 16, rows))
    return W4A16("nvfp4-w4a16", codes.shape[1], codes.shape[2], rows, tiles, cast(alpha, "float32"))


def pack_int4_w4a16(codes: Array, scales: Array, zeros: Array | None = None, rows: int = 128) -> W4A16:
    """INT4 codes uint8 [E, N, K] (two's complement), float scales [E, N, K / group], zero points as codes in the shape of the scales.

    `tiles` hold code + 8, unsigned. A group scale is the FP32 scale with the zero point + 8 on its lowest 4 bits (8 where there are none),
    which FP16 and BF16 scales leave free and which FP32 scales are rounded to. A kernel subtracts the zero, exactly, and applies the
    scale to the group's partial sums in FP32. Raises PerfModelError for groups but 32 and multiples of 64, for scales not finite.
    """
    group = _check_groups(codes, scales, rows)
    if zeros is not None:
        if dtype_name(zeros) != "uint8" or tuple(zeros.shape) != tuple(scales.shape):
            raise PerfModelError(f"must be uint8 {tuple(scales.shape)}", field="zeros", value=(dtype_name(zeros), tuple(zeros.shape)))
        refuse(zeros > 15, "zero points have four bits", field="zeros")
    refuse(abs(cast(scales, "float32")) > INT4_SCALE_MAX, "scale is too large for the zero point on its lowest bits")
    offset = cast(codes ^ 8, "uint8")
    zero = cast(zeros ^ 8, "int32") if zeros is not None else cast(scales * 0, "int32") + 8
    words = ((bitcast(cast(scales, "float32"), "int32") + 8) & ~15) | zero
    return _grouped("int4-w4a16", "int4", offset, words, group, rows)


def pack_nf4_w4a16(codes: Array, scales: Array, rows: int = 128) -> W4A16:
    """NF4 codes uint8 [E, N, K], FP32 absmax [E, N, K / group], group 64. A kernel looks codes up as bf16 and scales partial sums in FP32.

    Raises PerfModelError for groups but 32 and multiples of 64, for scales not finite.
    """
    group = _check_groups(codes, scales, rows)
    return _grouped("nf4-w4a16", "nf4", codes, bitcast(cast(scales, "float32"), "int32"), group, rows)


def _grouped(format_id: str, order: NibbleOrder, codes: Array, words: Array, group: int, rows: int) -> W4A16:
    """`group_scales` [E, ceil(N / rows), groups, rows] from words [E, N, groups].

    Groups of 32 come in pairs, those beyond K are 0. Longer groups are cut to 64 x a power of two, for which kernels need a shift only.
    """
    experts, n, k = codes.shape
    if group > TILE_K:
        longest = TILE_K * (group // TILE_K & -(group // TILE_K))
        words, group = _per_element(words, group // longest), longest
    down, groups = -(-n // rows), -(-k // TILE_K) * 2 if group < TILE_K else k // group
    planes = permute(pad_to(words, experts, down * rows, groups).reshape(experts, down, rows, groups), 0, 1, 3, 2)
    alpha = cast(codes[:, 0, 0], "float32") * 0 + 1
    return W4A16(format_id, n, k, rows, pack_codes(codes, order, rows), alpha, bitcast(planes, "int32"), group)


def normalised_e4m3(scales: Array) -> Array:
    """E4M3 codes without sign, uint8, as bytes (exponent + 22) << 3 | mantissa in which subnormals are normal too; zero stays 0."""
    xp, code = namespace(scales), cast(scales & 0x7F, "int32")
    shift = (code < 4) * 1 + (code < 2) * 1 + 1  # of a subnormal m x 2**-9, m = 1..7: until its top bit is the hidden one
    subnormal = ((16 - shift) << 3) | ((code << shift) & 7)
    stored = xp.where(code < 8, subnormal, code + ((22 - 7) << 3))
    return cast(xp.where(code == 0, code, stored), "uint8")


def fused_rows(rows: Array) -> Array:
    """Gate and up rows [E, 2 * I, K], alternating as checkpoints have them (gate 0, up 0, ...), in the order of a fused activation.

    In every 16 rows the first 8 are gates, the other 8 their ups: rows r and r + 8 of a fragment, whose accumulators lie in one lane. Use
    it on codes and scales (and zero points) before packing. Raises PerfModelError where 2 * I is no multiple of 16.
    """
    experts, n, k = rows.shape
    if n % 16:
        raise PerfModelError("gate and up rows together must be a multiple of 16", field="N", value=n, mend="Pad the intermediate size.")
    return permute(rows.reshape(experts, n // 16, 8, 2, k), 0, 1, 3, 2, 4).reshape(experts, n, k)


def pack_codes(codes: Array, order: NibbleOrder, rows: int) -> Array:
    """Codes uint8 [E, N, K] as the codes of tiles, uint8 [E, ceil(N / rows), ceil(K / 64), rows * 32]."""
    experts, n, k = codes.shape
    down, across = -(-n // rows), -(-k // TILE_K)
    together = words_together(order)
    padded = pad_to(codes, experts, down * rows, across * TILE_K)
    #                        0        1     2           3  4  5       6              7         8  9  10
    axes = padded.reshape(
        experts, down, rows // 16, 2, 8, across, 4 // together, together, 2, 4, 2
    )  # e, tile, m16, h, r, tile, j, w, k8, q, p
    slots = permute(axes, 7, 8, 3, 10, 0, 1, 5, 2, 4, 9, 6).reshape(8 * together, experts, down, across, rows * 8 // together)
    return bitcast(pack_word(slots, order), "uint8")


def unpack_codes(tiles: Array, order: NibbleOrder, rows: int) -> Array:
    """The inverse of `pack_codes`: tiles, with or without scales behind, as codes uint8 [E, N padded, K padded]."""
    experts, down, across, _ = tiles.shape
    together = words_together(order)
    slots = unpack_word(bitcast(tiles[..., : rows * 32], "int64" if together == 2 else "int32"), order)
    axes = slots.reshape(
        together, 2, 2, 2, experts, down, across, rows // 16, 8, 4, 4 // together
    )  # w, k8, h, p, e, tile, tile, m16, r, q, j
    return permute(axes, 4, 5, 7, 2, 8, 6, 10, 0, 1, 9, 3).reshape(experts, down * rows, across * TILE_K)


def unpack_scale_bytes(tiles: Array, block: int, rows: int) -> Array:
    """The scale bytes behind the codes of tiles, uint8 [E, N padded, K padded / block]."""
    experts, down, across, _ = tiles.shape
    axes = tiles[..., rows * 32 :].reshape(experts, down, across, rows // 16, 8, TILE_K // block, 2)
    return permute(axes, 0, 1, 3, 6, 4, 2, 5).reshape(experts, down * rows, across * (TILE_K // block))


def _scale_bytes(scales: Array, block: int, rows: int) -> Array:
    """Bytes uint8 [E, N, K / block] in the order of tiles, uint8 [E, ceil(N / rows), ceil(K / 64), rows * 64 / block]."""
    experts, n, blocks = scales.shape
    per_tile = TILE_K // block
    down, across = -(-n // rows), -(-blocks // per_tile)
    padded = pad_to(scales, experts, down * rows, across * per_tile)
    axes = padded.reshape(experts, down, rows // 16, 2, 8, across, per_tile)
    return permute(axes, 0, 1, 5, 2, 4, 6, 3).reshape(experts, down, across, rows * per_tile)


def _with_scales(codes: Array, scales: Array) -> Array:
    return namespace(codes).concatenate([codes, scales], -1)


def _per_element(blocks: Array, block: int) -> Array:
    """[E, N, K / block] as [E, N, K]."""
    return namespace(blocks).stack([blocks] * block, -1).reshape(*blocks.shape[:-1], -1)


def _check_groups(codes: Array, scales: Array, rows: int) -> int:
    """Check codes and float scales [E, N, K / group]; returns the group."""
    if scales.ndim != 3 or not scales.shape[-1] or codes.shape[-1] % scales.shape[-1]:
        raise PerfModelError("must be [E, N, K / group]", field="scales", value=tuple(scales.shape))
    group = int(codes.shape[-1] // scales.shape[-1])
    if group != 32 and group % TILE_K:
        raise PerfModelError("a group holds 32 or a multiple of 64 elements", field="group", value=group, mend="Quantise in other groups.")
    refuse(~namespace(scales).isfinite(cast(scales, "float32")), "scale is not finite")
    check_block_scales(codes, cast(scales == 0, "uint8"), group, rows)
    return group


def check_block_scales(codes: Array, scales: Array, block: int, rows: int) -> None:
    """Raise PerfModelError unless codes are uint8 [E, N, K] under 16, scales uint8 [E, N, K / block] and rows a multiple of 16."""
    for name, array in (("codes", codes), ("scales", scales)):
        if dtype_name(array) != "uint8" or array.ndim != 3:
            raise PerfModelError("must be uint8 with three axes, [E, N, ..]", field=name, value=(dtype_name(array), tuple(array.shape)))
    experts, n, k = codes.shape
    if not (experts and n and k) or k % block:
        raise PerfModelError(f"K must be a multiple of the block of {block}, nothing empty", field="codes", value=tuple(codes.shape))
    if tuple(scales.shape) != (experts, n, k // block):
        raise PerfModelError(f"must be {(experts, n, k // block)}, one for {block} codes", field="scales", value=tuple(scales.shape))
    if rows < 16 or rows % 16:
        raise PerfModelError("a tile has a multiple of 16 rows", field="rows", value=rows, mend="The kernels take 128.")
    refuse(codes > 15, "codes have four bits", field="codes")


def refuse(wrong: Array, problem: str, field: str = "scales") -> None:
    """Raise PerfModelError that names the first place where `wrong` is true."""
    if bool(wrong.any()):
        where = tuple(int(i) for i in namespace(wrong).argwhere(wrong)[0])
        raise PerfModelError(problem, field=field, value=where, mend="The value is the first place [expert, row, block]: mend the weights.")
