"""One grouped GEMM: the tokens of each active expert times that expert's weights.

Time is that of tiles over SMs coupled to the weights that stream from DRAM. Formula and first values: the public MoE measurements
(aiconfigurator 0.12.0, Apache-2.0), as described in the profiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.causes import Causes
from perfmodel.ops.machine import Machine
from perfmodel.ops.tile_rules import RULES
from perfmodel.workload.expectation import Array
from perfmodel.workload.loads import EqualisedLoad, Load


@dataclass(frozen=True)
class GemmShape:
    """Columns N and depth K of the weights of one expert, vectors over rows. `rule_*` feed the library's tile rule."""

    n: Array
    k: Array
    rule_pairs: Array
    rule_experts: Array
    rule_tokens: Array
    from_dram: Array | float = 1.0
    """Share of the weights that DRAM must give; L2 still holds the others."""


@dataclass(frozen=True)
class GemmTime:
    """Seconds: tiles on tensor cores, weights from DRAM, and the two joined."""

    compute: Array
    memory: Array
    total: Array


def grouped_gemm(load: Load, shape: GemmShape, machine: Machine, on: Causes) -> GemmTime:
    """Time of the grouped GEMM in seconds, with the tile that the library would choose.

    total = (compute^p + memory^p)^(1/p) + fill and drain; without the cause `scheduling` the two overlap fully.
    """
    seen = load if on.imbalance else EqualisedLoad(load)
    menu = machine.tiles
    rows = None if menu.select == "best" else RULES[menu.select](shape.rule_pairs, shape.rule_experts, shape.rule_tokens, menu.m)
    best: GemmTime | None = None
    m_tiles = {m: seen.tiles(m) if on.padding else load.pairs / m for m in menu.m}
    for n, with_n in menu.rows_by_columns().items():
        columns = np.ceil(shape.n / n) if on.padding else shape.n / n
        memory = _weight_time(load, n, shape, machine, on)
        times = [_allowed(compute_time(m_tiles[m] * columns, m, n, shape.k, machine, on), rows, m) for m in with_n]
        candidate = _joined(np.minimum.reduce(times), memory, machine, on)
        best = candidate if best is None else _faster(best, candidate)
    assert best is not None
    return best


def _weight_time(load: Load, n: int, shape: GemmShape, machine: Machine, on: Causes) -> Array:
    """Seconds for the active experts' weights to come in strips of n columns."""
    if not on.weights:
        return np.zeros_like(load.active)
    return memory_time(load.active * shape.n * shape.k * shape.from_dram, load.active * np.ceil(shape.n / n), n, shape.k, machine, on)


def _joined(compute: Array, memory: Array, machine: Machine, on: Causes) -> GemmTime:
    """Tiles and weights overlapping as far as the kernel lets them, with fill and drain."""
    if not on.scheduling:
        return GemmTime(compute, memory, np.maximum(compute, memory))
    return GemmTime(compute, memory, smooth_maximum(compute, memory, machine.overlap_exponent) + machine.gemm_latency)


def compute_time(tiles: Array, m: int, n: int, k: Array, machine: Machine, on: Causes) -> Array:
    """Seconds for `tiles` tiles of m x n x k over the SMs.

    The slower of waves x MMA (2 m n k FLOP at one SM's rate) and both operands of all tiles through L2, joined with the dequantisation of a
    tile's n k weights as far as the kernel overlaps the two, and waves x fixed time of a tile. An SM that waits for L2 leaves its share to
    the others, so L2 counts tiles, not waves.
    """
    waves = tiles / machine.sm_count
    if on.scheduling and machine.tiles.waves == "whole":
        waves = np.ceil(waves - 1e-9)
    time = waves * (2.0 * m * n * k / machine.sm_flops(on))
    if on.ramp and machine.l2_bandwidth:
        operands = m * machine.act_bytes + n * (machine.weight_bytes + machine.scale_bytes)
        time = np.maximum(time, tiles * k * (operands / (machine.l2_efficiency * machine.l2_bandwidth)))
    if on.quantise and machine.dequantise:
        time = _with_conversion(time, waves * k * (n * machine.dequantise), machine.dequantise_overlap)
    return time + waves * machine.tile_fixed if on.scheduling else time


def _with_conversion(time: Array, conversion: Array, overlap: float) -> Array:
    """Tensor work with the conversion of weights: one after the other at an `overlap` of 1, side by side where it is large."""
    return time + conversion if overlap == 1.0 else smooth_maximum(time, conversion, overlap)


def memory_time(weights: Array, strips: Array, n: int, k: Array, machine: Machine, on: Causes) -> Array:
    """Seconds for `weights` weights (and their scales), in `strips` of n columns and k rows, to come from DRAM.

    Little's law: what is in flight over the DRAM latency bounds the rate. Each strip has no more in flight than it is long (tiles of
    other tokens read it through L2), all together no more than the SMs can hold. The two bounds join as a 4-norm of times.
    """
    per_weight = machine.weight_bytes + machine.scale_bytes
    time = weights * (per_weight / machine.weight_bandwidth(on))
    if on.ramp and machine.dram_latency:
        in_flight = np.minimum(strips * np.minimum(machine.in_flight, k * (n * per_weight)), machine.sm_count * machine.sm_in_flight)
        limited = weights * (per_weight * machine.dram_latency) / np.maximum(in_flight, 1.0)
        squared, other = time * time, limited * limited
        time = np.sqrt(np.sqrt(squared * squared + other * other))
    return time


def smooth_maximum(a: Array, b: Array, exponent: float) -> Array:
    """(a^p + b^p)^(1/p), never under the larger of the two."""
    high, low = np.maximum(a, b), np.minimum(a, b)
    ratio = low / np.maximum(high, 1e-30)
    result: Array = high * (1.0 + ratio**exponent) ** (1.0 / exponent)
    return result


def _allowed(compute: Array, rows: Array | None, m: int) -> Array:
    """Infinite where the library's rule chooses another tile than m; unchanged where it takes the fastest."""
    return compute if rows is None else np.where(rows == m, compute, np.inf)


def _faster(a: GemmTime, b: GemmTime) -> GemmTime:
    use_b = b.total < a.total
    return GemmTime(np.where(use_b, b.compute, a.compute), np.where(use_b, b.memory, a.memory), np.minimum(a.total, b.total))
