"""Latencies of millions of MoE layers: the same model as `gap`, in chunks over the cores, memory bounded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.causes import ON
from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec
from perfmodel.ops.grouped_gemm import GemmShape, grouped_gemm
from perfmodel.predict import layer_time
from perfmodel.scenario import Scenario, layer_rows, resolve
from perfmodel.workload.expectation import Array
from perfmodel.workload.loads import TwoLevelLoad
from perfmodel.workload.routing import SKEWED

CHUNK = 16_384
"""Rows at once: a vector of them fits the core's cache."""
SKEWED_CHUNK = 512
"""Rows at once where each carries counts of all its experts."""


def moe_latency(
    gpu: str | GpuSpec,
    *,
    hidden: ArrayLike,
    inter: ArrayLike,
    experts: ArrayLike,
    topk: ArrayLike,
    tokens: ArrayLike,
    format: str,
    kernel: str = "auto",
    tp: ArrayLike = 1,
    ep: ArrayLike = 1,
    routing: str = "uniform",
    gated: bool = True,
    launch: str = "graph",
    comm: str = "exclude",
    clock: str = "burst",
) -> Array:
    """Seconds of MoE layers; hidden, inter, experts, topk, tokens, tp and ep broadcast against each other like NumPy arrays.

    tokens: entering the layer over the whole expert-parallel group, before top-k. The figure is the busiest rank's.
    Returns an array of the broadcast shape. Raises PerfModelError for sizes that are not whole, positive or do not fit together,
    and for a GPU, format, kernel or routing that does not exist or run.
    """
    scenario = resolve(gpu, format, kernel, routing=routing, launch=launch, comm=comm, clock=clock)
    shape = {"hidden": hidden, "inter": inter, "experts": experts, "topk": topk, "tokens": tokens, "tp": tp, "ep": ep}
    columns = {name: _numbers(name, values) for name, values in shape.items()}
    try:
        full = np.broadcast_shapes(*(c.shape for c in columns.values()))
    except ValueError as error:
        raise PerfModelError(f"shapes do not broadcast: {error}", mend="Give scalars or arrays of one shape.") from error
    views = {name: np.broadcast_to(c, full) for name, c in columns.items()}
    out = np.empty(full)
    run_chunks(scenario, views, out.reshape(-1), gated)
    return out


def _numbers(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "iuf":
        raise PerfModelError("must be numbers", field=name, value=str(array.dtype), mend="Give a number or an array of numbers.")
    return array


def run_chunks(scenario: Scenario, views: dict[str, np.ndarray], out: Array, gated: bool) -> None:
    """Fill `out` (flat) with the fastest profile's seconds, chunk by chunk, on all cores. An interrupt stops at the next chunk."""
    size = SKEWED_CHUNK if scenario.routing.kind in SKEWED else CHUNK

    def one(start: int) -> None:
        stop = min(start + size, out.size)
        rows = layer_rows({name: view.flat[start:stop] for name, view in views.items()}, gated=gated)
        times = [layer_time(scenario.layer(rows, profile)[0], ON) for profile in scenario.profiles]
        out[start:stop] = np.minimum.reduce(times)

    starts = range(0, out.size, size)
    if len(starts) == 1:
        one(0)
        return
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
        for _ in _drain(pool, one, starts):
            pass


def _drain(pool: ThreadPoolExecutor, work: Callable[[int], None], starts: range) -> Iterator[None]:
    """Results in order; on an error or interrupt the chunks that have not begun are dropped."""
    try:
        yield from pool.map(work, starts)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


@dataclass(frozen=True)
class Predicted:
    """Seconds: the prediction, the floor under it and its 80 % interval. `bound` names what bounds each row."""

    latency: Array
    floor: Array
    low: Array
    high: Array
    bound: np.ndarray


def predict_grouped_gemm(
    gpu: str | GpuSpec, kernel: str, format: str, *, experts: ArrayLike, n: ArrayLike, k: ArrayLike, tokens_per_expert: ArrayLike
) -> Predicted:
    """One grouped GEMM alone, every expert with the same tokens: [T, K] x [K, N] for each of `experts`, seconds.

    Activations are counted in their 16-bit or quantised form, nothing but the GEMM is timed. Raises PerfModelError as `resolve` does.
    """
    scenario = resolve(gpu, format, kernel)
    shape = [np.asarray(a, float) for a in np.broadcast_arrays(experts, n, k, tokens_per_expert)]
    count, columns, depth, tokens = (np.atleast_1d(a) for a in shape)
    machine = scenario.machine(scenario.profiles[0])
    load = TwoLevelLoad(tokens, count, np.zeros_like(count), tokens)
    time = grouped_gemm(load, GemmShape(columns, depth, count * tokens, count, count * tokens), machine, ON)
    weights = count * columns * depth * (machine.weight_bytes + machine.scale_bytes)
    moved = weights + count * tokens * (depth * machine.act_bytes + columns * 2.0)
    flops = 2.0 * count * tokens * columns * depth
    floor = np.maximum(flops / machine.peak, moved / machine.bandwidth)
    latency = np.maximum(time.total, floor)
    bound = np.where(time.compute > time.memory, "compute", "weights")
    fit = scenario.profiles[0].fit(scenario.gpu.architecture, format)
    factors = [fit.intervals.get(b, fit.interval) for b in bound]
    low = np.maximum(latency * [f.low for f in factors], floor)
    return Predicted(latency, floor, low, latency * [f.high for f in factors], bound)
