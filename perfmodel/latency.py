"""Latencies of millions of MoE layers: the same model as `gap`, in chunks over the cores, memory bounded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from perfmodel.attribution import bounds, interval
from perfmodel.causes import ON
from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec
from perfmodel.moe_layer import layer_time
from perfmodel.ops.activation import BF16
from perfmodel.ops.grouped_gemm import GemmShape, grouped_gemm
from perfmodel.ops.machine import Machine
from perfmodel.profiles import TileMenu
from perfmodel.scenario import Scenario, layer_rows, resolve
from perfmodel.workload.expectation import Array
from perfmodel.workload.loads import TwoLevelLoad

CHUNK = 16_384
"""Rows at once: a vector of them fits the core's cache."""


def moe_latency(
    gpu: str | Path | GpuSpec,
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
    changes: Sequence[str] = (),
) -> Array:
    """Seconds of MoE layers; hidden, inter, experts, topk, tokens, tp and ep broadcast against each other like NumPy arrays.

    tokens: entering the layer over the whole expert-parallel group, before top-k. The figure is the busiest rank's.
    Returns an array of the broadcast shape. Raises PerfModelError for sizes that are not whole, positive or do not fit together,
    and for a GPU, format, kernel or routing that does not exist or run.
    """
    if not isinstance(gated, bool | np.bool_):
        raise PerfModelError("must be True or False", field="gated", value=gated, mend="Give gated=True or gated=False.")
    scenario = resolve(gpu, format, kernel, routing=routing, launch=launch, comm=comm, clock=clock, changes=changes)
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
    """Fill `out` (flat) with the fastest profile's seconds."""

    def one(start: int, stop: int) -> None:
        rows = layer_rows({name: view.flat[start:stop] for name, view in views.items()}, gated=gated)
        times = [layer_time(scenario.layer(rows, profile)[0], ON) for profile in scenario.profiles_for(rows)]
        out[start:stop] = np.minimum.reduce(times)

    in_chunks(out.size, one)


def in_chunks(count: int, work: Callable[[int, int], None]) -> None:
    """Call work(start, stop) over `count` rows, chunk by chunk, on all cores. An interrupt stops at the next chunk."""
    starts = range(0, count, CHUNK)
    if len(starts) <= 1:
        if count:
            work(0, count)
        return
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
        for _ in _drain(pool, lambda start: work(start, min(start + CHUNK, count)), starts):
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
    """Seconds: the prediction, the floor under it and its 80 % interval."""

    latency: Array
    floor: Array
    low: Array
    high: Array


def predict_layers(scenario: Scenario, columns: dict[str, np.ndarray], *, gated: bool = True) -> Predicted:
    """What `gap` says of latency, floor and interval, for columns of sizes as `moe_latency` takes them, without the attribution."""
    count = len(columns["tokens"])
    out = np.empty((4, count))

    def one(start: int, stop: int) -> None:
        rows = layer_rows({name: column[start:stop] for name, column in columns.items()}, gated=gated)
        out[:, start:stop] = np.inf
        for profile in scenario.profiles_for(rows):
            layer, _ = scenario.layer(rows, profile)
            latency = layer_time(layer, ON)
            low, high = interval(scenario, profile, latency, layer.floor, bounds(layer))
            faster = latency < out[0, start:stop]
            for place, values in enumerate((latency, layer.floor, low, high)):
                out[place, start:stop] = np.where(faster, values, out[place, start:stop])

    in_chunks(count, one)
    return Predicted(*out)


def predict_grouped_gemm(
    gpu: str | Path | GpuSpec,
    kernel: str,
    format: str,
    *,
    experts: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    tokens_per_expert: ArrayLike,
    tile: int | None = None,
    clock: str = "burst",
) -> Predicted:
    """One grouped GEMM alone, every expert with the same tokens: [T, K] x [K, N] for each of `experts`, seconds.

    Activations are counted in their 16-bit or quantised form, nothing but the GEMM is timed. `tile`: rows of the tile that runs, where that
    is known; the kernel's own choice otherwise. Raises PerfModelError as `resolve` does, and for a tile that the kernel does not have.
    """
    scenario = resolve(gpu, format, kernel, clock=clock)
    count, columns, depth, tokens = _grouped_sizes(experts, n, k, tokens_per_expert)
    load, gemm = _equal_experts(count, columns, depth, tokens)
    best = np.full((4, count.size), np.inf)
    for profile in scenario.profiles:
        machine = scenario.machine(profile)
        if tile is not None:
            machine = replace(machine, tiles=machine.tiles.only(tile))
        time = grouped_gemm(load, gemm, machine, ON)
        weights = count * columns * depth * (machine.weight_bytes + machine.scale_bytes)
        moved = weights + count * tokens * (depth * machine.act_bytes + columns * BF16)
        floor = np.maximum(2.0 * count * tokens * columns * depth / machine.peak, moved / machine.bandwidth)
        latency = np.maximum(time.total, floor)
        bound = np.where(time.compute > time.memory, "compute", "weights")
        found = np.array([latency, floor, *interval(scenario, profile, latency, floor, bound)])
        best = np.where(latency < best[0], found, best)
    return Predicted(*best)


def gemm_seconds(machine: Machine, experts: ArrayLike, n: ArrayLike, k: ArrayLike, tokens_per_expert: ArrayLike) -> Array:
    """Seconds of the grouped GEMM of `predict_grouped_gemm` on a machine that is already built, with the fastest of its tiles."""
    load, gemm = _equal_experts(*_grouped_sizes(experts, n, k, tokens_per_expert))
    return grouped_gemm(load, gemm, machine, ON).total


def predict_tiles(
    gpu: str | Path | GpuSpec,
    kernel: str,
    format: str,
    *,
    experts: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    tokens_per_expert: ArrayLike,
) -> dict[tuple[int, int], Array]:
    """(m, n) of each tile of the kernel's menu -> seconds of the grouped GEMM of `predict_grouped_gemm` with that tile.

    kernel: one profile, not `auto`. Raises PerfModelError as `resolve` does.
    """
    scenario = resolve(gpu, format, kernel)
    (profile,) = scenario.profiles
    machine = scenario.machine(profile)
    times = {}
    for columns, with_them in machine.tiles.rows_by_columns().items():
        for rows in with_them:
            tile = TileMenu(m=(rows,), n=(columns,), waves=machine.tiles.waves)
            times[rows, columns] = gemm_seconds(replace(machine, tiles=tile), experts, n, k, tokens_per_expert)
    return times


def _grouped_sizes(*sizes: ArrayLike) -> list[Array]:
    return [np.atleast_1d(np.asarray(a, float)) for a in np.broadcast_arrays(*sizes)]


def _equal_experts(experts: Array, n: Array, k: Array, tokens: Array) -> tuple[TwoLevelLoad, GemmShape]:
    """Every expert with the same tokens."""
    return TwoLevelLoad(tokens, experts, np.zeros_like(experts), tokens), GemmShape(n, k, experts * tokens, experts, experts * tokens)
