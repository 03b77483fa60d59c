"""Attention of many new tokens (FlashAttention): tiles of queries that walk over the keys they see.

total = fixed + passes + (compute^p + memory^p)^(1/p). A tile of `tile_q` queries of one head takes its fixed time and, for each key, the
slower of both products on the tensor cores and the exponentials on the special-function units. Tiles of a causal mask differ in length:
the SMs take max(the longest tile, the mean + what the end of the last tile leaves idle).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.ops.activation import BF16
from perfmodel.ops.attention import Shapes, attention_format, byte_time, exponential_rate, fixed_time, floor_time, wide_efficiency
from perfmodel.ops.grouped_gemm import smooth_maximum
from perfmodel.ops.op import Op, OpTime, Parameter, Use
from perfmodel.units import MICROSECOND, NANOSECOND
from perfmodel.workload.expectation import Array

PARAMETERS = {
    "fixed_us": Parameter(10.0, 0.5, 0.5, 100.0, "what no size explains: launches, fill, drain [us]"),
    "dim_us": Parameter(0.5, 1.5, 0.001, 20.0, "more for every 128 columns of a head: the first loads, the last stores [us]"),
    "sequence_us": Parameter(0.02, 2.0, 0.0001, 5.0, "for each sequence of the batch: bookkeeping [us]"),
    "tile_fixed_us": Parameter(1.0, 1.0, 0.01, 40.0, "prologue and epilogue of a tile [us]"),
    "tail": Parameter(0.3, 1.0, 0.01, 1.0, "of the longest tile, by which SMs end apart"),
    "window_us": Parameter(0.3, 2.0, 0.001, 20.0, "more where there is a window: its own table of pages [us]"),
    "window_waste": Parameter(0.001, 3.0, 1e-6, 1.0, "of the keys outside the window, those that the kernel walks over all the same"),
    "wide_loss": Parameter(0.2, 1.0, 0.001, 3.0, "efficiency falls as (128 / dim) to this power where heads are wider than 128"),
    "compute_efficiency": Parameter(0.7, 0.3, 0.05, 1.0, "of the dense tensor peak, in the main loop"),
    "exponentials": Parameter(1.3, 0.4, 0.2, 20.0, "softmax of one pair, in exponentials of the special-function units"),
    "softmax_exponent": Parameter(3.0, 0.8, 1.0, 20.0, "p that joins products and softmax: 1 adds them up"),
    "query_pass_bytes": Parameter(4.0, 1.5, 0.01, 40.0, "moved before the kernel for each element of Q: rotation, quantisation [B]"),
    "cache_pass_bytes": Parameter(4.0, 1.5, 0.01, 80.0, "moved before the kernel for each new element of K and V: rotation, cache [B]"),
    "token_ns": Parameter(0.3, 1.5, 0.001, 50.0, "for each new token in the passes before the kernel: a thread block of its own [ns]"),
    "bandwidth_efficiency": Parameter(0.8, 0.2, 0.1, 1.0, "of the DRAM bandwidth"),
    "l2_efficiency": Parameter(0.6, 0.4, 0.05, 1.0, "of the L2 bandwidth, for what stays there from call to call"),
    "l2_kept": Parameter(0.7, 0.4, 0.1, 1.5, "of the L2 capacity that survives from call to call"),
    "overlap_exponent": Parameter(3.0, 0.8, 1.0, 30.0, "p that joins compute and memory: 1 adds them up"),
}
SIZES = ("batch", "context", "prefix", "heads", "kv_heads", "key_dim", "value_dim", "cache_dim", "window")
"""`prefix`: tokens of the context that are cached already."""
KEY_BLOCK = 64.0
"""Keys are taken in blocks of at least so many."""


@dataclass(frozen=True)
class Tiling:
    """How queries are cut into tiles: rows of a tile, queries that they stand for, tiles of one head (or KV head), such heads."""

    rows: float
    span: Array
    tiles: Array
    heads: Array

    @classmethod
    def of(cls, shapes: Shapes, rows: float, pack: bool) -> Tiling:
        """Tiles of `rows` rows; where a library packs, the query heads of a KV head fill a tile together."""
        together = shapes.group if pack else np.ones_like(shapes.group)
        return cls(rows, rows / together, np.ceil(shapes.queries * together / rows), shapes.heads / together)


def prefill_time(use: Use, sizes: Mapping[str, Array], p: Mapping[str, float]) -> OpTime:
    """Seconds of attention of the last context - prefix tokens of `batch` sequences, [n rows]."""
    form, gpu = attention_format(use.format), use.gpu
    shapes = Shapes.of(sizes, sizes["context"] - sizes["prefix"])
    compute = np.full_like(shapes.batch, np.inf)
    for rows in use.menus["tile_q"]:
        compute = np.minimum(compute, _tiles_time(shapes, Tiling.of(shapes, float(rows), "pack" in use.menus), use, p))
    tokens = shapes.batch * shapes.queries
    moved = shapes.cache_elements() * form.cache_bytes + shapes.query_elements() * form.query_bytes
    new = shapes.heads * shapes.key_dim * p["query_pass_bytes"] + shapes.kv_heads * shapes.cache_dim * p["cache_pass_bytes"]
    byte = byte_time(moved + tokens * shapes.kv_heads * shapes.cache_dim * BF16, gpu, p)
    memory, passes = moved * byte, tokens * (new * byte + p["token_ns"] * NANOSECOND)
    total = fixed_time(shapes, p) + passes + smooth_maximum(compute, memory, p["overlap_exponent"])
    floor = floor_time(shapes, form, gpu)
    return OpTime(np.maximum(total, floor), floor, compute, memory + passes)


def _tiles_time(shapes: Shapes, tiling: Tiling, use: Use, p: Mapping[str, float]) -> Array:
    """Seconds for all tiles over the SMs."""
    keys, longest = walked_keys(shapes, tiling, p["window_waste"])
    key = _key_time(shapes, tiling.rows, use, p)
    fixed = p["tile_fixed_us"] * MICROSECOND
    mean = shapes.batch * tiling.heads * (tiling.tiles * fixed + keys * key) / use.gpu.sm_count
    last = fixed + longest * key
    return np.maximum(last, mean + p["tail"] * last)


def walked_keys(shapes: Shapes, tiling: Tiling, waste: float) -> tuple[Array, Array]:
    """As `tile_keys`, by a kernel that walks over `waste` of the keys outside the window as well."""
    keys, longest = tile_keys(shapes, tiling, shapes.window)
    all_keys, all_longest = tile_keys(shapes, tiling, np.full_like(keys, np.inf))
    return keys + waste * (all_keys - keys), longest + waste * (all_longest - longest)


def tile_keys(shapes: Shapes, tiling: Tiling, window: Array) -> tuple[Array, Array]:
    """Keys that all tiles of a head and sequence walk over, and keys of the longest: up to its last query, from the window of its first."""
    prefix, span, tiles = shapes.context - shapes.queries, tiling.span, tiling.tiles
    most = window + span
    growing = np.clip(np.floor((most - prefix) / span), 0.0, tiles)
    keys = growing * prefix + span * growing * (growing + 1.0) / 2.0
    keys = keys + np.where(growing < tiles, (tiles - growing) * np.where(np.isinf(most), 0.0, most), 0.0)
    end = np.ceil(shapes.context / KEY_BLOCK) * KEY_BLOCK  # the last tile stops where the context does
    beyond = np.where(growing == tiles, np.maximum(prefix + tiles * span - end, 0.0), 0.0)
    return keys - beyond, np.minimum(np.minimum(prefix + tiles * span, end), most)


def _key_time(shapes: Shapes, rows: float, use: Use, p: Mapping[str, float]) -> Array:
    """Seconds for one key of a tile on one SM: products and softmax."""
    rate = use.gpu.peak_flops(attention_format(use.format).math) / use.gpu.sm_count * p["compute_efficiency"]
    products = rows * 2.0 * (shapes.key_dim + shapes.value_dim) / (rate * wide_efficiency(shapes, p["wide_loss"]))
    softmax = np.full_like(products, rows * p["exponentials"] / exponential_rate(use.gpu))
    return smooth_maximum(products, softmax, p["softmax_exponent"])


PREFILL = Op("attention-prefill", SIZES, "context", ("tile_q", "pack"), PARAMETERS, prefill_time, needs=(("tile_q",),))
