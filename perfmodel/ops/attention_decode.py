"""Attention of one new token a sequence (flash-decoding): the cache streams past a tile of query heads.

total = fixed + combine + (work^p + memory^p)^(1/p). The query heads of a KV head share a tile of `tile_m` rows. Where there are fewer
tiles than SMs the context is split, and a second step combines the parts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.ops.attention import Shapes, attention_format, byte_time, exponential_rate, fixed_time, floor_time, wide_efficiency
from perfmodel.ops.grouped_gemm import smooth_maximum
from perfmodel.ops.op import Op, OpTime, Parameter, Use
from perfmodel.units import GB, MICROSECOND
from perfmodel.workload.expectation import Array

PARAMETERS = {
    "fixed_us": Parameter(8.0, 0.5, 0.5, 100.0, "what no size explains: launches, fill, drain [us]"),
    "dim_us": Parameter(0.5, 1.5, 0.001, 20.0, "more for every 128 columns of a head: the first loads, the last stores [us]"),
    "sequence_us": Parameter(0.02, 2.0, 0.0001, 5.0, "for each sequence of the batch: bookkeeping, the new token's place [us]"),
    "combine_us": Parameter(1.5, 1.0, 0.01, 40.0, "to combine the parts of a context [us]"),
    "tile_fixed_us": Parameter(1.0, 1.0, 0.01, 40.0, "prologue and epilogue of a part [us]"),
    "row_us": Parameter(0.02, 1.5, 0.0001, 2.0, "for each query head of a part and 128 columns of it: Q in, output and maximum out [us]"),
    "tail": Parameter(0.3, 1.0, 0.01, 1.0, "of a part, by which SMs end apart"),
    "sm_bandwidth_GBps": Parameter(40.0, 0.6, 2.0, 400.0, "of the cache into one SM [GB/s]"),
    "least_keys": Parameter(256.0, 1.0, 16.0, 8192.0, "of a part, however many SMs are idle"),
    "slots": Parameter(1.0, 0.5, 0.5, 8.0, "parts that are made for each SM"),
    "most_parts": Parameter(64.0, 1.0, 1.0, 1024.0, "of a context"),
    "window_us": Parameter(0.3, 2.0, 0.001, 20.0, "more where there is a window: its own table of pages [us]"),
    "window_waste": Parameter(0.001, 3.0, 1e-6, 1.0, "of the keys outside the window, those that the kernel walks over all the same"),
    "wide_loss": Parameter(0.2, 1.0, 0.001, 3.0, "efficiency falls as (128 / dim) to this power where heads are wider than 128"),
    "compute_efficiency": Parameter(0.5, 0.5, 0.02, 1.0, "of the dense tensor peak, padded tiles counted in full"),
    "exponentials": Parameter(1.5, 0.7, 0.1, 40.0, "softmax of one pair, in exponentials of the special-function units"),
    "bandwidth_efficiency": Parameter(0.85, 0.2, 0.1, 1.0, "of the DRAM bandwidth"),
    "l2_efficiency": Parameter(0.6, 0.4, 0.05, 1.0, "of the L2 bandwidth, for what stays there from call to call"),
    "l2_kept": Parameter(0.7, 0.4, 0.1, 1.5, "of the L2 capacity that survives from call to call"),
    "overlap_exponent": Parameter(3.0, 0.8, 1.0, 30.0, "p that joins work and memory: 1 adds them up"),
}
SIZES = ("batch", "context", "heads", "kv_heads", "key_dim", "value_dim", "cache_dim", "window")
PRODUCTS_AND_ARRIVAL = 4.0
"""Exponent that joins both within one SM: two stages of a pipeline."""
KEY_BLOCK = 64
"""Keys are taken in blocks of so many where a profile says nothing of them."""


def decode_time(use: Use, sizes: Mapping[str, Array], p: Mapping[str, float]) -> OpTime:
    """Seconds of attention of the last token of `batch` sequences of `context` tokens, [n rows]."""
    form, gpu = attention_format(use.format), use.gpu
    shapes = Shapes.of(sizes, np.ones_like(sizes["batch"]))
    seen = shapes.seen() + p["window_waste"] * (shapes.context - shapes.seen())
    moved = shapes.cache_elements() * (seen / shapes.seen()) * form.cache_bytes + shapes.query_elements() * form.query_bytes
    memory = moved * byte_time(moved, gpu, p)
    work = np.full_like(memory, np.inf)
    for tile_m in use.menus["tile_m"]:
        work = np.minimum(work, _parts_time(shapes, seen, float(tile_m), use, p))
    total = fixed_time(shapes, p) + smooth_maximum(work, memory, p["overlap_exponent"])
    floor = floor_time(shapes, form, gpu)
    return OpTime(np.maximum(total, floor), floor, work, memory)


def _parts_time(shapes: Shapes, seen: Array, tile: float, use: Use, p: Mapping[str, float]) -> Array:
    """Seconds for all parts of all contexts over the SMs, and to combine them; `seen`: keys that the kernel walks over."""
    gpu = use.gpu
    tiles = shapes.batch * shapes.kv_heads * np.ceil(shapes.group / tile)
    block = use.menus.get("tile_k", (KEY_BLOCK,))[0]
    padded = np.ceil(seen / block) * block
    parts = np.clip(np.minimum(p["slots"] * gpu.sm_count / tiles, padded / p["least_keys"]), 1.0, p["most_parts"])
    keys = np.maximum(padded / parts, block)
    rows = np.minimum(shapes.group, tile) * shapes.value_dim / 128.0
    part = (p["tile_fixed_us"] + p["row_us"] * rows) * MICROSECOND + keys * _key_time(shapes, tile, use, p)
    combine = np.minimum(parts - 1.0, 1.0) * p["combine_us"] * MICROSECOND
    mean = tiles * parts * part / gpu.sm_count
    time: Array = combine + np.maximum(part, mean + p["tail"] * part)
    return time


def _key_time(shapes: Shapes, tile: float, use: Use, p: Mapping[str, float]) -> Array:
    """Seconds for one key of a tile on one SM: its elements of the cache arrive, products and softmax go on meanwhile."""
    form, gpu = attention_format(use.format), use.gpu
    rate = gpu.peak_flops(form.math) / gpu.sm_count * p["compute_efficiency"] * wide_efficiency(shapes, p["wide_loss"])
    products = tile * 2.0 * (shapes.key_dim + shapes.value_dim) / rate + tile * p["exponentials"] / exponential_rate(gpu)
    arrival = shapes.cache_dim * form.cache_bytes / (p["sm_bandwidth_GBps"] * GB)
    return smooth_maximum(products, arrival, PRODUCTS_AND_ARRIVAL)


DECODE = Op("attention-decode", SIZES, "context", ("tile_m", "tile_k"), PARAMETERS, decode_time, needs=(("tile_m",),))
