"""Parts of the device code of `mma_w4a16`: which tile it is, copies of activations, loads and products of packed tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda  # isort: skip

from perfmodel.kernels.dequant_ampere import FRAGMENTS, HALVES, PARTIAL_SCALES
from perfmodel.kernels.mma_tile import ROW_BYTES, multiply, multiply_folded, opaque
from perfmodel.kernels.mma_w4a16 import GROUPED, ROWS, SCALE_WORDS, TILE_K, Config
from perfmodel.kernels.mma_w4a16_plan import Plan
from perfmodel.kernels.ptx.bulk import copy_async_16_of
from perfmodel.kernels.ptx.memory import (
    load_constant,
    load_constant_f32,
    load_constant_x2,
    load_once_x4,
    load_shared_x2,
    store_shared,
    store_shared_f32,
    store_shared_x2,
    store_shared_x4,
)
from perfmodel.kernels.schedule import find_expert, first_tile, offset_of

U = np.uint32
U64 = np.uint64


def make_lane_parts(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: bytes from the start of shared memory to a lane's row of its warp's first tile of a stage, and swizzled piece there.

    See `mma_tile.matrix_lane`.
    """
    WORK, TILE, WARPS = U(plan.work), U(plan.tile), U(config.row_warps)
    eight, crowded = config.columns == 8, config.crowded

    @cuda.jit(device=True, forceinline=True)
    def lane_parts():
        thread = opaque(U(cuda.threadIdx.x)) if crowded else U(cuda.threadIdx.x)
        first = U(WORK + (thread >> U(5)) // WARPS * TILE)
        inside = U(thread & U(7))
        matrix = U((thread >> U(3)) & U(3))
        if eight:
            return U(first + inside * U(ROW_BYTES)), U((matrix ^ inside) * U(16))
        return U(first + ((matrix >> U(1)) * U(8) + inside) * U(ROW_BYTES)), U(((matrix & U(1)) ^ inside) * U(16))

    return lane_parts


def make_lane_offsets(config: Config) -> Callable[..., Any]:
    """Device function: bytes from the start of a packed tile to a lane's codes and to its scales."""
    words = SCALE_WORDS[config.format]
    CODES, SCALES = U(512 * config.blocks), U(32 * words * config.blocks)
    FIRST, LANE, WARPS = U(ROWS * 32), U(4 * words), U(config.row_warps)

    @cuda.jit(device=True, forceinline=True)
    def lane_offsets(thread):
        warp = U((thread >> U(5)) % WARPS)
        lane = U(thread & U(31))
        return U(warp * CODES + lane * U(16)), U(FIRST + warp * SCALES + (lane >> U(2)) * LANE)

    return lane_offsets


def make_sources(config: Config) -> Callable[..., Any]:
    """Device function: where a lane finds its codes and scales of a strip of weights (`place` = expert x strips + strip)."""
    lane_offsets, grouped = make_lane_offsets(config), config.format in GROUPED
    TILE, GROUP, WARP_GROUP = U64(config.tile_bytes), U64(4 * ROWS), U(64 * config.blocks)
    parts, WARPS = U(2 if config.short_groups else 1), U(config.row_warps)

    @cuda.jit(device=True, forceinline=True)
    def sources(weights, group_scales, place, k_tiles, group_shift):
        thread = opaque(U(cuda.threadIdx.x))  # made anew for each tile
        strip = weights + U64(place) * U64(k_tiles) * TILE
        to_codes, to_scales = lane_offsets(thread)
        if grouped:
            groups = U(((k_tiles - U(1)) >> group_shift) * parts + parts)
            to_group = U((thread >> U(5)) % WARPS * WARP_GROUP + ((thread & U(31)) >> U(2)) * U(4))
            return strip + U64(to_codes), group_scales + U64(place) * U64(groups) * GROUP + U64(to_group)
        return strip + U64(to_codes), strip + U64(to_scales)

    return sources


def make_take_tile(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: find out what tile `tile` is, and note it in shared memory. Returns (expert x strips + strip, tokens).

    All threads call. What the last tile left in shared memory must no longer be needed by the caller; here they wait for the others.
    """
    note_rows = make_note_rows(config, plan)
    COLUMNS, PLACE = U(config.columns), U(plan.place)

    @cuda.jit(device=True, forceinline=True)
    def take_tile(base, tile, schedule, source, rows):
        offsets, experts, row_tiles = schedule
        token_tile = U(tile // row_tiles)
        strip = U(tile - token_tile * row_tiles)
        expert = find_expert(base, experts, token_tile)
        start = U(offset_of(offsets, expert) + (token_tile - first_tile(base, expert)) * COLUMNS)
        count = min(U(offset_of(offsets, expert + U(1)) - start), COLUMNS)
        cuda.syncthreads()
        if cuda.threadIdx.x == U(0):
            store_shared_x4(base + PLACE, (expert, strip, start, count))
            store_shared(base + PLACE + U(16), tile)
        note_rows(base, start, count, source, rows)
        cuda.syncthreads()
        return U(expert * row_tiles + strip), count

    return take_tile


def make_note_rows(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: where the activations of a tile's tokens lie, and where their results go, into shared memory."""
    COLUMNS, gather, scatter = U(config.columns), config.gather, config.epilogue == "scatter"
    X_ROWS, OUT_ROWS, FACTORS = U(plan.x_rows), U(plan.out_rows), U(plan.factors)

    @cuda.jit(device=True, forceinline=True)
    def note_rows(base, start, count, source, rows):
        token = U(cuda.threadIdx.x)
        if token < COLUMNS:
            x, k = source
            x_rows, out_rows, factors = rows
            row = U(start + token) if token < count else start  # beyond the last token nothing is read, but addresses are made
            x_row = load_constant(x_rows + U64(row) * U64(4)) if gather else row
            address = x + U64(x_row) * U64(k) * U64(2)
            store_shared_x2(base + X_ROWS + token * U(8), (U(address), U(address >> U64(32))))
            if scatter:
                store_shared(base + OUT_ROWS + token * U(4), load_constant(out_rows + U64(row) * U64(4)))
                store_shared_f32(base + FACTORS + token * U(4), load_constant_f32(factors + U64(row) * U64(4)))

    return note_rows


def make_copy_stage(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: start to copy the activations of a stage, 16 bytes a thread and turn; zeros beyond K and beyond the last token.

    A thread has the same 16 bytes of K in every turn, of a token `tokens` further; as these are a multiple of 8, the swizzle stays too.
    """
    per_token = 8 * config.stage_tiles
    tokens = config.threads // per_token
    if config.threads % per_token or tokens % 8 or config.columns % min(tokens, config.columns):
        raise ValueError(
            f"{config.name}: {config.threads} threads cannot share out a stage of {config.columns} x {per_token} pieces evenly"
        )
    PER_TOKEN, TOKENS, TILE, X_ROWS = U(per_token), U(tokens), U(plan.tile), U(plan.x_rows)
    turns = max(config.columns // tokens, 1)
    crowded = config.crowded
    COPIERS, surplus = U(config.columns * per_token), tokens > config.columns
    NEXT_ROW, NEXT_TARGET = U(8 * tokens), U(ROW_BYTES * tokens)

    @cuda.jit(device=True, forceinline=True)
    def copy_stage(base, stage, k, count, first_tile):
        thread = opaque(U(cuda.threadIdx.x)) if crowded else U(cuda.threadIdx.x)
        if surplus and thread >= COPIERS:
            return
        token = U(thread // PER_TOKEN)
        column = U(thread % PER_TOKEN)
        at = U(first_tile * U(TILE_K) + column * U(8))
        target = U(stage + (column >> U(3)) * TILE + token * U(ROW_BYTES) + (((column ^ token) & U(7)) << U(4)))
        row = U(base + X_ROWS + token * U(8))
        for turn in range(turns):
            low, high = load_shared_x2(U(row + U(turn) * NEXT_ROW))
            given = U(16) if (at < k) & (U(token + U(turn) * TOKENS) < count) else U(0)
            source = (U64(high) << U64(32) | U64(low)) + (
                U64(at) * U64(2) if given else U64(0)
            )  # nothing is read, but the hint is followed
            copy_async_16_of(U(target + U(turn) * NEXT_TARGET), source, given)

    return copy_stage


def make_load_block(config: Config) -> Callable[..., Any]:
    """Device function: words and scales of a lane for one block of 16 rows of a packed tile; tiles beyond K give the last one."""
    TILE, GROUP, LOWER = U64(config.tile_bytes), U64(4 * ROWS), U64(32)
    words, short = SCALE_WORDS[config.format], config.short_groups

    @cuda.jit(device=True, forceinline=True)
    def load_scales(scales, tile, group_shift):
        if words == 1:
            return (load_constant(scales + U64(tile) * TILE),)
        return load_constant_x2(scales + U64(tile) * TILE)

    @cuda.jit(device=True, forceinline=True)
    def load_group_scales(scales, tile, group_shift):
        if short:
            at = scales + U64(tile) * U64(2) * GROUP
            return (load_constant(at), load_constant(at + LOWER), load_constant(at + GROUP), load_constant(at + GROUP + LOWER))
        at = scales + U64(tile >> group_shift) * GROUP
        upper, lower = load_constant(at), load_constant(at + LOWER)
        return (upper, lower, upper, lower)

    get_scales = load_group_scales if config.format in GROUPED else load_scales

    @cuda.jit(device=True, forceinline=True)
    def load_block(codes, scales, tile, group_shift):
        return load_once_x4(codes + U64(tile) * TILE), get_scales(scales, tile, group_shift)

    return load_block


def make_load(config: Config) -> Callable[..., Any]:
    """Device function: words and scales of all blocks of a warp for one packed tile."""
    load_block, two = make_load_block(config), config.blocks == 2
    CODES, SCALES = U64(512), U64(64 if config.format in GROUPED else 32 * SCALE_WORDS[config.format])

    @cuda.jit(device=True, forceinline=True)
    def load(weights, tile):
        codes, scales, last, group_shift = weights
        tile = min(tile, last)
        first = load_block(codes, scales, tile, group_shift)
        if two:
            return (*first, *load_block(codes + CODES, scales + SCALES, tile, group_shift))
        return first

    return load


def make_step(config: Config) -> Callable[..., Any]:
    """Device function: d plus the products of one packed tile with 64 of K of the tokens, where the scales make bf16 weights."""
    half_0, half_1 = HALVES[config.format]
    multiply_0, multiply_1 = multiply(config.columns, config.blocks, 0), multiply(config.columns, config.blocks, 1)
    two = config.blocks == 2

    @cuda.jit(device=True, forceinline=True)
    def step(d, loaded, row, piece):
        if two:
            d = multiply_0(d, (*half_0(loaded[0], loaded[1]), *half_0(loaded[2], loaded[3])), row, piece)
            return multiply_1(d, (*half_1(loaded[0], loaded[1]), *half_1(loaded[2], loaded[3])), row, piece)
        d = multiply_0(d, half_0(loaded[0], loaded[1]), row, piece)
        return multiply_1(d, half_1(loaded[0], loaded[1]), row, piece)

    return step


def make_step_grouped(config: Config) -> Callable[..., Any]:
    """Device function: as `make_step`, where the scales multiply partial sums."""
    fragments, scales_of = FRAGMENTS[config.format], PARTIAL_SCALES[config.format]
    multiply = multiply_folded(config.columns, config.blocks, 32 if config.short_groups else 64)
    two = config.blocks == 2

    @cuda.jit(device=True, forceinline=True)
    def step(d, loaded, row, piece):
        if two:
            a = (*fragments(loaded[0], loaded[1]), *fragments(loaded[2], loaded[3]))
            return multiply(d, a, row, piece, (*scales_of(loaded[1]), *scales_of(loaded[3])))
        return multiply(d, fragments(loaded[0], loaded[1]), row, piece, scales_of(loaded[1]))

    return step
