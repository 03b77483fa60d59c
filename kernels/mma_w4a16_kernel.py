"""The device code of `mma_w4a16`: copies of activations, loads of weights, the main loop, the epilogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.kernels.dequant_ampere import FRAGMENTS, PARTIAL_SCALES
from perfmodel.kernels.layouts import MXFP4_WINDOW
from perfmodel.kernels.mma_tile import ROW_BYTES, add_partial, hand_over, multiply, multiply_folded, scale_sum, store_partial
from perfmodel.kernels.mma_w4a16 import GROUPED, ROWS, SCALE_WORDS, TILE_K, Config
from perfmodel.kernels.ptx.bulk import copy_async_16_of, copy_commit, copy_wait
from perfmodel.kernels.ptx.memory import (
    array_address,
    load_constant,
    load_constant_f32,
    load_constant_x2,
    load_once_x4,
    load_shared,
    load_shared_x4,
    store_global_x4,
    store_shared,
    store_shared_f32,
    to_shared,
)
from perfmodel.kernels.ptx.registers import zeros
from perfmodel.kernels.schedule import TABLE_BYTES, build_table, find_expert, first_tile, offset_of

U = np.uint32
U64 = np.uint64
ALIGNMENT = 128
"""Of what lies in shared memory."""
NO_ROW = U(0xFFFFFFFF)
"""In the table of rows of x: there is no such token, its activations are zeros."""
PADDING = 16
"""Bytes between the rows of the output in shared memory: eight rows then lie in different banks."""

POINTERS = ("x", "weights", "group_scales", "alphas", "offsets", "out", "x_rows", "out_rows", "factors", "rest_tiles", "rest_start", "rest_k_tile")
NUMBERS = ("experts", "n", "k", "row_tiles", "tiles_per_group")
PARAMETERS = POINTERS + NUMBERS
"""Of every kernel: addresses, 64 bits each, then numbers of 32 bits."""


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
    def x_rows(self) -> int:
        """Row of x of each token."""
        return TABLE_BYTES

    @property
    def out_rows(self) -> int:
        """Row of the output of each token."""
        return self.x_rows + 4 * self.config.columns

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


def make_kernel(config: Config) -> tuple[Callable[..., None], tuple[Any, ...], int]:
    """The kernel function of a configuration, its numba signature, its bytes of shared memory."""
    plan = Plan(config)
    note_rows, lane_parts = _note_rows(config, plan), _lane_parts(config)
    main_loop, rest_loop, finish = _main_loop(config, plan), _rest_loop(config, plan), _finish(config, plan)
    COLUMNS, ROW_WARPS = U(config.columns), U(config.row_warps)
    TILE, WARP_CODES, WARP_SCALES = U(config.tile_bytes), U(512 * config.blocks), U(32 * SCALE_WORDS[config.format] * config.blocks)
    SCALES, LANE_SCALES = U(ROWS * 32), U(4 * SCALE_WORDS[config.format])
    grouped = config.format in GROUPED
    GROUP_ROW, GROUP = U(64 * config.blocks), U(4 * ROWS)
    halves = U(2 if config.short_groups else 1)
    has_rest = config.rest
    zero = zeros(config.blocks * config.columns // 2)

    def kernel(
        x, weights, group_scales, alphas, offsets, out, x_rows, out_rows, factors, rest_tiles, rest_start, rest_k_tile,
        experts, n, k, row_tiles, tiles_per_group,
    ):  # fmt: skip
        shared = cuda.shared.array(0, types.uint8)
        base = (to_shared(array_address(shared)) + U(ALIGNMENT - 1)) & U(0x100000000 - ALIGNMENT)
        build_table(base, offsets, experts, COLUMNS)
        thread = U(cuda.threadIdx.x)
        lane = thread & U(31)
        split = (thread >> U(5)) // ROW_WARPS
        warp = (thread >> U(5)) - split * ROW_WARPS
        row, piece = lane_parts(lane)
        k_tiles = (k + U(TILE_K - 1)) // U(TILE_K)
        in_tile = warp * WARP_CODES + lane * U(16)
        scales_in_tile = SCALES + warp * WARP_SCALES + (lane >> U(2)) * LANE_SCALES
        last = first_tile(base, experts) * row_tiles
        tile = U(cuda.blockIdx.x)
        while tile < last:
            token_tile = tile // row_tiles
            strip = tile - token_tile * row_tiles
            expert = find_expert(base, experts, token_tile)
            start = offset_of(offsets, expert) + (token_tile - first_tile(base, expert)) * COLUMNS
            count = min(offset_of(offsets, expert + U(1)) - start, COLUMNS)
            cuda.syncthreads()  # the last tile's rows and output have been read
            note_rows(base, start, count, x_rows, out_rows, factors)
            cuda.syncthreads()
            place = expert * row_tiles + strip
            strip_weights = weights + U64(place) * U64(k_tiles) * U64(TILE)
            codes = strip_weights + U64(in_tile)
            if grouped:
                groups = ((k_tiles + tiles_per_group - U(1)) // tiles_per_group) * halves
                scales = group_scales + U64(place) * U64(groups) * U64(GROUP) + U64(warp * GROUP_ROW + (lane >> U(2)) * U(4))
            else:
                scales = strip_weights + U64(scales_in_tile)
            d = zero()
            if has_rest:
                rest = (rest_tiles + U64(in_tile), rest_tiles + U64(scales_in_tile), rest_start + U64(place) * U64(4), rest_k_tile)
                d = rest_loop(d, rest, (x, k), base, split, row, piece)
            d = main_loop(d, (codes, scales, k_tiles, tiles_per_group), (x, k), base, split, row, piece)
            alpha = load_constant_f32(alphas + U64(expert) * U64(4))
            finish(d, alpha, (out, n, strip, start, count), base, split, warp, lane)
            tile += U(cuda.gridDim.x)

    return kernel, (types.uint64,) * len(POINTERS) + (types.uint32,) * len(NUMBERS), plan.bytes


def _lane_parts(config: Config) -> Callable[..., Any]:
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


def _note_rows(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: which rows of x and of the output the tokens of a tile have, into shared memory."""
    COLUMNS, gather, scatter = U(config.columns), config.gather, config.epilogue == "scatter"
    X_ROWS, OUT_ROWS, FACTORS = U(plan.x_rows), U(plan.out_rows), U(plan.factors)

    @cuda.jit(device=True, forceinline=True)
    def note_rows(base, start, count, x_rows, out_rows, factors):
        token = U(cuda.threadIdx.x)
        if token < COLUMNS:
            row = NO_ROW
            if token < count:
                row = start + token
                if gather:
                    row = load_constant(x_rows + U64(row) * U64(4))
            store_shared(base + X_ROWS + token * U(4), row)
            if scatter:
                out_row = U(0)
                factor = np.float32(0)
                if token < count:
                    out_row = load_constant(out_rows + U64(start + token) * U64(4))
                    factor = load_constant_f32(factors + U64(start + token) * U64(4))
                store_shared(base + OUT_ROWS + token * U(4), out_row)
                store_shared_f32(base + FACTORS + token * U(4), factor)

    return note_rows


def _copy_stage(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: start to copy the activations of a stage, 16 bytes a thread and turn; zeros beyond K and beyond the last token."""
    per_token = 8 * config.stage_tiles
    pieces = per_token * config.columns
    THREADS, PER_TOKEN, PIECES, TILE = U(config.threads), U(per_token), U(pieces), U(plan.tile)
    turns = -(-pieces // config.threads)
    X_ROWS = U(plan.x_rows)

    @cuda.jit(device=True, forceinline=True)
    def copy_stage(base, stage, source, first_tile):
        x, k = source
        for turn in range(turns):
            piece = U(cuda.threadIdx.x) + U(turn) * THREADS
            if piece < PIECES:
                token = piece // PER_TOKEN
                column = piece % PER_TOKEN
                row = load_shared(base + X_ROWS + token * U(4))
                at = first_tile * U(TILE_K) + column * U(8)
                inside = (row != NO_ROW) & (at < k)
                address = x + (U64(row) * U64(k) + U64(at)) * U64(2) if inside else x
                target = stage + (column >> U(3)) * TILE + token * U(ROW_BYTES) + (((column ^ token) & U(7)) << U(4))
                copy_async_16_of(target, address, U(16) if inside else U(0))

    return copy_stage


def _load_block(config: Config) -> Callable[..., Any]:
    """Device function: words and scales of a lane for one block of 16 rows of a packed tile; tiles beyond K give the last one."""
    TILE, GROUP, LOWER = U64(config.tile_bytes), U64(4 * ROWS), U64(32)
    words, short = SCALE_WORDS[config.format], config.short_groups

    @cuda.jit(device=True, forceinline=True)
    def load_scales(scales, tile, tiles_per_group):
        if words == 1:
            return (load_constant(scales + U64(tile) * TILE),)
        return load_constant_x2(scales + U64(tile) * TILE)

    @cuda.jit(device=True, forceinline=True)
    def load_group_scales(scales, tile, tiles_per_group):
        if short:
            at = scales + U64(tile) * U64(2) * GROUP
            return (load_constant(at), load_constant(at + LOWER), load_constant(at + GROUP), load_constant(at + GROUP + LOWER))
        at = scales + U64(tile // tiles_per_group) * GROUP
        upper, lower = load_constant(at), load_constant(at + LOWER)
        return (upper, lower, upper, lower)

    get_scales = load_group_scales if config.format in GROUPED else load_scales

    @cuda.jit(device=True, forceinline=True)
    def load_block(codes, scales, tile, tiles_per_group):
        return load_once_x4(codes + U64(tile) * TILE), get_scales(scales, tile, tiles_per_group)

    return load_block


def _step(config: Config) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Device functions (load, step): all blocks of a warp for one packed tile, and their products with 64 of K of the tokens."""
    load_block, fragments = _load_block(config), FRAGMENTS[config.format]
    grouped = config.format in GROUPED
    CODES, SCALES = U64(512), U64(64 if grouped else 32 * SCALE_WORDS[config.format])
    plain = multiply(config.columns, config.blocks)
    folded = multiply_folded(config.columns, config.blocks, 32 if config.short_groups else 64)
    partial = PARTIAL_SCALES.get(config.format)

    @cuda.jit(device=True, forceinline=True)
    def load(weights, tile):
        codes, scales, k_tiles, tiles_per_group = weights
        tile = min(tile, k_tiles - U(1))
        return load_block(codes, scales, tile, tiles_per_group)

    @cuda.jit(device=True, forceinline=True)
    def load_two(weights, tile):
        codes, scales, k_tiles, tiles_per_group = weights
        tile = min(tile, k_tiles - U(1))
        first = load_block(codes, scales, tile, tiles_per_group)
        return (*first, *load_block(codes + CODES, scales + SCALES, tile, tiles_per_group))

    @cuda.jit(device=True, forceinline=True)
    def step(d, loaded, row, piece):
        words, scales = loaded
        if grouped:
            return folded(d, fragments(words, scales), row, piece, partial(scales))
        return plain(d, fragments(words, scales), row, piece)

    @cuda.jit(device=True, forceinline=True)
    def step_two(d, loaded, row, piece):
        words, scales, words_2, scales_2 = loaded
        a = (*fragments(words, scales), *fragments(words_2, scales_2))
        if grouped:
            return folded(d, a, row, piece, (*partial(scales), *partial(scales_2)))
        return plain(d, a, row, piece)

    return (load_two, step_two) if config.blocks == 2 else (load, step)


def _main_loop(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: d plus the products over all of K that this warp's group has.

    Weights are loaded a tile ahead, activations `stages` - 1 stages. The barrier of a stage also says that the stage filled next is free.
    """
    copy_stage, (load, step) = _copy_stage(config, plan), _step(config)
    WORK, STAGE, TILE = U(plan.work), U(plan.stage), U(plan.tile)
    STAGES, SPLITS, STAGE_TILES = U(config.stages), U(config.splits), U(config.stage_tiles)
    ahead, pending, two = config.stages - 1, config.stages - 2, config.tiles == 2

    @cuda.jit(device=True, forceinline=True)
    def main_loop(d, weights, source, base, split, row, piece):
        k_tiles = weights[2]
        for early in range(ahead):
            copy_stage(base, base + WORK + U(early) * STAGE, source, U(early) * STAGE_TILES)
            copy_commit()
        near = load(weights, split)
        far = load(weights, split + SPLITS)
        stage = U(0)
        free = U(ahead)
        for first in range(U(0), k_tiles, STAGE_TILES):
            copy_wait(pending)
            cuda.syncthreads()
            later = U(first) + U(ahead) * STAGE_TILES
            if later < k_tiles:
                copy_stage(base, base + WORK + free * STAGE, source, later)
            copy_commit()
            at = base + WORK + stage * STAGE + split * TILE + row
            following = U(first) + STAGE_TILES + split
            d = step(d, near, at, piece)
            if two:
                near = load(weights, following)
                d = step(d, far, at + SPLITS * TILE, piece)
                far = load(weights, following + SPLITS)
            else:
                near = far
                far = load(weights, following + SPLITS)
            free = stage
            stage = stage + U(1) if stage + U(1) < STAGES else U(0)
        return d

    return main_loop


def _rest_loop(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: d plus the products of a rest (`levels`), 2**134 too large, scaled down; tile by tile, since it is rare and short."""
    copy_stage, (load, step) = _copy_stage(config, plan), _step(config)
    scale = scale_sum(config.blocks * config.columns // 2)
    WORK, TILE, binades = U(plan.work), U64(config.tile_bytes), np.float32(2.0**-MXFP4_WINDOW.binades)

    @cuda.jit(device=True, forceinline=True)
    def rest_loop(d, rest, source, base, split, row, piece):
        codes, scales, start, k_tile = rest
        for i in range(load_constant(start), load_constant(start + U64(4))):
            copy_stage(base, base + WORK, source, load_constant(k_tile + U64(i) * U64(4)))
            copy_commit()
            copy_wait(0)
            cuda.syncthreads()
            if split == U(0):
                tile = (codes + U64(i) * TILE, scales + U64(i) * TILE, U(1), U(1))
                d = step(d, load(tile, U(0)), base + WORK + row, piece)
            cuda.syncthreads()
        return scale(d, binades)

    return rest_loop


def _finish(config: Config, plan: Plan) -> Callable[..., Any]:
    """Device function: adds the sums of the groups of warps, and stores the tile's rows of the output, 16 bytes a thread and turn."""
    count_of = config.blocks * config.columns // 2
    store_sum, add_sum = store_partial(count_of), add_partial(count_of)
    hand = hand_over(config.columns, config.blocks, plan.pitch, config.epilogue)
    splits, per_token = config.splits, config.features // 8
    turns = -(-config.columns * per_token // config.threads)
    WORK, SUMS, GROUP_SUMS, OUTPUT = U(plan.work), U(plan.sums), U(plan.sums * config.row_warps), U(plan.output)
    PITCH, WARP_FEATURES, FACTORS, OUT_ROWS = U(plan.pitch), U(2 * config.features // config.row_warps), U(plan.factors), U(plan.out_rows)
    THREADS, PER_TOKEN, FEATURES = U(config.threads), U(per_token), U(config.features)
    fused, scatter = config.epilogue == "swiglu", config.epilogue == "scatter"

    @cuda.jit(device=True, forceinline=True)
    def finish(d, alpha, target, base, split, warp, lane):
        out, n, strip, start, count = target
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
            hand(d, alpha, base + OUTPUT + (lane >> U(2)) * PITCH + warp * WARP_FEATURES + (lane & U(3)) * U(4), base + FACTORS + (lane & U(3)) * U(8))
        cuda.syncthreads()
        width = n >> U(1) if fused else n
        for turn in range(turns):
            piece = U(cuda.threadIdx.x) + U(turn) * THREADS
            token = piece // PER_TOKEN
            part = piece - token * PER_TOKEN
            feature = strip * FEATURES + part * U(8)
            if (token < count) & (feature < width):
                row = start + token
                if scatter:
                    row = load_shared(base + OUT_ROWS + token * U(4))
                words = load_shared_x4(base + OUTPUT + token * PITCH + part * U(16))
                store_global_x4(out + (U64(row) * U64(width) + U64(feature)) * U64(2), words)

    return finish
