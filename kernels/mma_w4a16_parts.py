"""Parts of the device code of `mma_w4a16`: where things lie in shared memory, copies of activations, loads and products of packed tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda  # isort: skip

from perfmodel.kernels.dequant_ampere import FRAGMENTS, HALVES, PARTIAL_SCALES
from perfmodel.kernels.mma_tile import ROW_BYTES, add_partial, hand_over, multiply, multiply_folded, opaque, store_partial
from perfmodel.kernels.mma_w4a16 import GROUPED, ROWS, SCALE_WORDS, TILE_K, Config
from perfmodel.kernels.ptx.bulk import copy_async_16_of
from perfmodel.kernels.ptx.memory import (
    load_constant,
    load_constant_f32,
    load_constant_x2,
    load_once_x4,
    load_shared,
    load_shared_x2,
    load_shared_x4,
    store_global_x4,
    store_shared,
    store_shared_f32,
    store_shared_x2,
)
from perfmodel.kernels.schedule import TABLE_BYTES

U = np.uint32
U64 = np.uint64
ALIGNMENT = 128
"""Of what lies in shared memory."""
PADDING = 16
"""Bytes between the rows of the output in shared memory: eight rows then lie in different banks."""


@dataclass(frozen=True)
class Plan:
    """Where things lie in shared memory, in bytes from its start."""

    config: Config

    @property
    def tile(self) -> int:
        """Of activations: 64 of K of all tokens."""
        return self.config.columns * ROW_BYTES

    @property
    def stage(self) -> int:
        """Bytes of a stage."""
        return self.config.stage_tiles * self.tile

    @property
    def place(self) -> int:
        """The tile of the CTA: expert, strip of weight rows, first token, tokens; its number."""
        return TABLE_BYTES

    @property
    def x_rows(self) -> int:
        """Address of the activations of each token, 64 bits."""
        return self.place + 32

    @property
    def out_rows(self) -> int:
        """Row of the output of each token."""
        return self.x_rows + 8 * self.config.columns

    @property
    def factors(self) -> int:
        """Routing weight of each token."""
        return self.out_rows + 4 * self.config.columns

    @property
    def work(self) -> int:
        """The stages; after the main loop partial sums, then the output."""
        return -(-(self.factors + 4 * self.config.columns) // ALIGNMENT) * ALIGNMENT

    @property
    def sums(self) -> int:
        """Of d in one warp, 128 bytes a register."""
        return self.config.blocks * self.config.columns // 2 * 128

    @property
    def output(self) -> int:
        """The finished rows of the output, behind the partial sums."""
        return self.work + (self.config.splits - 1) * self.config.row_warps * self.sums

    @property
    def pitch(self) -> int:
        """From one row of the output to the next."""
        return self.config.features * 2 + PADDING

    @property
    def bytes(self) -> int:
        """All of it, and room to align the start."""
        work = max(self.work + self.config.stages * self.stage, self.output + self.config.columns * self.pitch)
        return work + ALIGNMENT


def make_lane_parts(config: Config) -> Callable[..., Any]:
    """Device function of `mma_tile.matrix_lane`."""
    ROW, eight = U(ROW_BYTES), config.columns == 8

    @cuda.jit(device=True, forceinline=True)
    def lane_parts(lane):
        inside = lane & U(7)
        matrix = lane >> U(3)
        if eight:
            return inside * ROW, (matrix ^ inside) * U(16)
        return ((matrix >> U(1)) * U(8) + inside) * ROW, ((matrix & U(1)) ^ inside) * U(16)

    return lane_parts


def make_note_rows(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: where the activations of a tile's tokens lie, and where their results go, into shared memory."""
    COLUMNS, gather, scatter = U(config.columns), config.gather, config.epilogue == "scatter"
    X_ROWS, OUT_ROWS, FACTORS = U(plan.x_rows), U(plan.out_rows), U(plan.factors)

    @cuda.jit(device=True, forceinline=True)
    def note_rows(base, start, count, source, x_rows, out_rows, factors):
        token = U(cuda.threadIdx.x)
        if token < COLUMNS:
            x, k = source
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
    crowded = config.columns >= 64  # addresses made anew for each stage, so that accumulators have the registers
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
            copy_async_16_of(U(target + U(turn) * NEXT_TARGET), (U64(high) << U64(32) | U64(low)) + U64(at) * U64(2), given)

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


def make_finish(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: adds the sums of the groups of warps, and stores the tile's rows of the output, 16 bytes a thread and turn."""
    count_of = config.blocks * config.columns // 2
    store_sum, add_sum = store_partial(count_of), add_partial(count_of)
    hand = hand_over(config.columns, config.blocks, plan.pitch, config.epilogue)
    splits, per_token = config.splits, config.features // 8
    turns = -(-config.columns * per_token // config.threads)
    WORK, SUMS, GROUP_SUMS, OUTPUT = U(plan.work), U(plan.sums), U(plan.sums * config.row_warps), U(plan.output)
    PITCH, WARP_FEATURES, FACTORS, OUT_ROWS = U(plan.pitch), U(2 * config.features // config.row_warps), U(plan.factors), U(plan.out_rows)
    THREADS, ROW_WARPS, PER_TOKEN, FEATURES = U(config.threads), U(config.row_warps), U(per_token), U(config.features)
    fused, scatter = config.epilogue == "swiglu", config.epilogue == "scatter"

    @cuda.jit(device=True, forceinline=True)
    def finish(d, alpha, target, base):
        out, n, strip, start, count = target
        thread = opaque(U(cuda.threadIdx.x))
        lane = U(thread & U(31))
        split = U((thread >> U(5)) // ROW_WARPS)
        warp = U((thread >> U(5)) % ROW_WARPS)
        cuda.syncthreads()  # the last stage has been read
        if splits > 1:
            mine = base + WORK + warp * SUMS + lane * U(4)
            if split > U(0):
                store_sum(d, mine + (split - U(1)) * GROUP_SUMS)
            cuda.syncthreads()
            if split == U(0):
                for other in range(splits - 1):
                    d = add_sum(d, mine + U(other) * GROUP_SUMS)
        if split == U(0):
            hand(
                d,
                alpha,
                base + OUTPUT + (lane >> U(2)) * PITCH + warp * WARP_FEATURES + (lane & U(3)) * U(4),
                base + FACTORS + (lane & U(3)) * U(8),
            )
        cuda.syncthreads()
        width = U(n >> U(1)) if fused else n
        for turn in range(turns):
            piece = U(thread + U(turn) * THREADS)
            token = U(piece // PER_TOKEN)
            part = U(piece % PER_TOKEN)
            feature = U(strip * FEATURES + part * U(8))
            if (token < count) & (feature < width):
                row = U(start + token)
                if scatter:
                    row = load_shared(base + OUT_ROWS + token * U(4))
                words = load_shared_x4(base + OUTPUT + token * PITCH + part * U(16))
                store_global_x4(out + (U64(row) * U64(width) + U64(feature)) * U64(2), words)

    return finish
