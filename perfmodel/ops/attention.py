"""What prefill and decode of attention share: sizes, formats, pairs of the mask, bytes, and how fast they come from L2 or DRAM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.hardware import GpuSpec
from perfmodel.ops.activation import BF16
from perfmodel.ops.op import l2_bandwidth
from perfmodel.units import MICROSECOND
from perfmodel.workload.expectation import Array

EXPONENTIALS_PER_CLOCK = {"10.3": 32.0}
"""Of the special-function units of one SM, by compute capability: Blackwell Ultra doubles them (NVIDIA, "Inside Blackwell Ultra")."""
USUAL_EXPONENTIALS = 16.0
"""CUDA programming guide, throughput of native arithmetic instructions, 7.x to 12.0."""


@dataclass(frozen=True)
class AttentionFormat:
    """Arithmetic type of both products, bytes of an element of Q and of the cache."""

    math: str
    query_bytes: float
    cache_bytes: float


FORMATS: Mapping[str, AttentionFormat] = {
    "bf16": AttentionFormat("bf16", BF16, BF16),
    "bf16-fp8kv": AttentionFormat("bf16", BF16, 1.0),
    "fp8": AttentionFormat("fp8", BF16, 1.0),
}
"""bf16-fp8kv: Q in bf16 over a cache in FP8. Q and the output of `fp8` are bf16 outside the kernel."""


@dataclass(frozen=True)
class Shapes:
    """Sizes of attention, vectors over rows."""

    batch: Array
    context: Array
    """Tokens that the last query sees without a window."""
    queries: Array
    """New tokens of each sequence, the last ones of its context."""
    heads: Array
    kv_heads: Array
    key_dim: Array
    value_dim: Array
    cache_dim: Array
    """Elements of the cache for each token and KV head: keys and values, or the latent vector that is both."""
    window: Array
    """Keys that a query sees at most, itself included; infinite without a window."""

    @classmethod
    def of(cls, sizes: Mapping[str, Array], queries: Array) -> Shapes:
        """Shapes from sizes by name; a window of 0 is none."""
        names = ("batch", "context", "heads", "kv_heads", "key_dim", "value_dim", "cache_dim")
        window = np.where(sizes["window"] > 0, sizes["window"], np.inf)
        return cls(**{name: sizes[name] for name in names}, queries=queries, window=window)

    @property
    def group(self) -> Array:
        """Query heads of one KV head."""
        return self.heads / self.kv_heads

    def seen(self) -> Array:
        """Keys that some query of a sequence sees."""
        return np.minimum(self.context, self.window + self.queries - 1)

    def flops(self) -> Array:
        """FLOPs of both products under the mask: 2 (key + value dims) for each pair."""
        return self.batch * self.heads * masked_pairs(self.queries, self.context, self.window) * 2.0 * (self.key_dim + self.value_dim)

    def cache_elements(self) -> Array:
        """Elements of the cache that are read at least once."""
        return self.batch * self.kv_heads * self.seen() * self.cache_dim

    def query_elements(self) -> Array:
        """Elements of Q and of the output."""
        return self.batch * self.queries * self.heads * (self.key_dim + self.value_dim)


def masked_pairs(queries: Array, context: Array, window: Array) -> Array:
    """Pairs of query and key of one sequence and head: query i of the last `queries` sees min(its place, window) keys."""
    first = context - queries
    below = np.clip(window - first, 0.0, queries)  # queries whose past is shorter than the window
    growing = below * first + below * (below + 1.0) / 2.0
    return growing + np.where(below < queries, (queries - below) * np.where(np.isinf(window), 0.0, window), 0.0)


def attention_format(name: str) -> AttentionFormat:
    """The format with this name. Raises PerfModelError with the nearest."""
    if name not in FORMATS:
        raise PerfModelError("attention has no such format", field="format", value=name, mend=did_you_mean(name, FORMATS))
    return FORMATS[name]


def exponential_rate(gpu: GpuSpec) -> float:
    """exp/s of one SM's special-function units, at the clock of tensor work."""
    return EXPONENTIALS_PER_CLOCK.get(gpu.compute_capability, USUAL_EXPONENTIALS) * gpu.tensor_peak_clock


def fixed_time(shapes: Shapes, p: Mapping[str, float]) -> Array:
    """Seconds that neither products nor bytes explain: of the call, of the width of heads, of each sequence, of a window."""
    windowed = np.isfinite(shapes.window)
    time: Array = (
        p["fixed_us"] + p["dim_us"] * shapes.key_dim / 128.0 + p["sequence_us"] * shapes.batch + p["window_us"] * windowed
    ) * MICROSECOND
    return time


def wide_efficiency(shapes: Shapes, loss: float) -> Array:
    """Share of the tensor rate that is left where heads are wider than 128: their accumulators leave room for smaller tiles only."""
    efficiency: Array = (128.0 / np.maximum(shapes.key_dim, 128.0)) ** loss
    return efficiency


def floor_time(shapes: Shapes, form: AttentionFormat, gpu: GpuSpec) -> Array:
    """Seconds that physics asks for: FLOPs at the peak, and the bytes that L2 cannot have kept from DRAM."""
    bytes_ = shapes.cache_elements() * form.cache_bytes + shapes.query_elements() * form.query_bytes
    beyond = np.maximum(bytes_ - (gpu.l2_capacity or 0.0), 0.0)
    return np.maximum(products_time(shapes, form, gpu), beyond / gpu.dram_bandwidth)


def products_time(shapes: Shapes, form: AttentionFormat, gpu: GpuSpec) -> Array:
    """Seconds of both products at the peak. A cache in FP8 lets the library compute in FP8 whatever the format of Q."""
    math = "fp8" if form.cache_bytes < BF16 and "fp8" in gpu.math_types else "bf16"
    return shapes.flops() / gpu.peak_flops(math)


FADES = 1.5
"""Bytes over those that L2 holds at which nothing of them is left in it: who goes round finds what was read last."""


def byte_time(working_set: Array, gpu: GpuSpec, p: Mapping[str, float]) -> Array:
    """Seconds for one byte of a `working_set` [B] that call after call goes through.

    From L2 while it fits into what calls leave of it (`l2_kept`), from DRAM where it is FADES times that.
    """
    dram = gpu.dram_bandwidth * p["bandwidth_efficiency"]
    l2 = max(l2_bandwidth(gpu) * p["l2_efficiency"], dram)
    share = np.clip((FADES - working_set / (p["l2_kept"] * (gpu.l2_capacity or 1.0))) / (FADES - 1.0), 0.0, 1.0)
    return share / l2 + (1.0 - share) / dram
