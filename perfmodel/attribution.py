"""From the peak to the prediction: every lost microsecond with the name of its cause. The losses add up exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np

from perfmodel.causes import IDEAL, NAMES, NOT_NATIVE, ON, Causes
from perfmodel.errors import PerfModelError
from perfmodel.moe_layer import OPS, Layer, LayerRows, layer_ops, layer_time
from perfmodel.profiles import Profile
from perfmodel.profiles.profile import Bound
from perfmodel.scenario import Scenario, row_slice
from perfmodel.units import TFLOPS
from perfmodel.workload.expectation import Array

BOUND_OF = {
    "compute": ("clock", "tensor", "quantise"),
    "weights": ("weights", "ramp"),
    "activations": ("activations", "unfused"),
    "scheduling": ("padding", "scheduling", "imbalance"),
    "launch": ("launch",),
    "communication": ("communication",),
}
"""What bounds a row: the group of causes whose absence would save most. `compute` is absent when neither the FLOPs
nor feeding them from L2 takes time."""


@dataclass(frozen=True)
class Attribution:
    """Seconds over rows. `losses[cause]` in the order of Causes; ideal + their sum = latency. `saves`: that cause alone off."""

    latency: Array
    ideal: Array
    losses: dict[str, Array]
    saves: dict[str, Array]
    bound: np.ndarray


@dataclass(frozen=True)
class GapRows:
    """Some rows of a gap that one profile predicts."""

    index: np.ndarray
    """Their places among all rows."""
    profile: Profile
    layer: Layer
    imbalance: Array
    """Pairs of the busiest rank over the mean rank's."""
    parts: Attribution
    low: Array
    high: Array
    ops: dict[str, Array]


def attribute(layer: Layer, against: float | None = None) -> Attribution:
    """The losses of a layer, one cause after the other in the order of `Causes`: the model with it minus the model before.

    A cause that would give time back (a skew that happens to fill tiles) is netted against the one before it, so none is negative.
    `against` is another peak in FLOP/s to hold the layer against; what lies between it and the peak is `NOT_NATIVE`.
    """
    steps = [layer_time(layer, _first(count)) for count in range(len(ON) + 1)]
    latency = steps[-1]
    rising = np.minimum.accumulate(np.array(steps)[::-1])[::-1]
    losses = {name: rising[i + 1] - rising[i] for i, name in enumerate(Causes._fields)}
    saves = {name: np.maximum(latency - layer_time(layer, ON._replace(**{name: False})), 0.0) for name in Causes._fields}
    bound = bounds(layer)
    ideal = rising[0]
    if against is not None:
        ideal = layer.flops / against
        saves = {NOT_NATIVE: _saved_by_peak(layer, against, latency), **saves}
        losses = {NOT_NATIVE: rising[0] - ideal, **losses}
    return Attribution(latency, ideal, losses, saves, bound)


def _first(count: int) -> Causes:
    """The first `count` causes on, the others off."""
    return IDEAL._replace(**dict.fromkeys(Causes._fields[:count], True))


def _saved_by_peak(layer: Layer, against: float, latency: Array) -> Array:
    """Seconds that units with the other peak would save, all else equal."""
    faster = replace(layer, machine=replace(layer.machine, peak=against))
    return np.maximum(latency - layer_time(faster, ON), 0.0)


def bounds(layer: Layer) -> np.ndarray:
    """For each row the group of BOUND_OF without which the layer would be fastest."""
    free = replace(layer, machine=replace(layer.machine, peak=1e30, l2_bandwidth=None))
    times = []
    for bound, causes in BOUND_OF.items():
        without = ON._replace(**dict.fromkeys(causes, False))
        times.append(layer_time(free if bound == "compute" else layer, without))
    chosen: np.ndarray = np.array(list(BOUND_OF))[np.argmin(np.array(times), axis=0)]
    return chosen


def gap_rows(scenario: Scenario, rows: LayerRows, against: float | None = None) -> list[GapRows]:
    """The gap of each row with the fastest of the scenario's profiles, grouped by profile.

    Raises PerfModelError where `against` is under the peak of the units that run.
    """
    if against is not None and against < scenario.peak:
        raise PerfModelError(
            f"is under the {scenario.peak / TFLOPS:g} TFLOPS of the units that run {scenario.format.id} on {scenario.gpu.id}",
            field="against",
            value=against / TFLOPS,
            mend="Hold the layer against a peak at least as high, or leave --against out.",
        )
    profiles = scenario.profiles_for(rows)
    times = [layer_time(scenario.layer(rows, profile)[0], ON) for profile in profiles]
    fastest = np.argmin(np.array(times), axis=0)
    return [
        _one_profile(scenario, profile, row_slice(rows, index), index, against)
        for number, profile in enumerate(profiles)
        if (index := np.flatnonzero(fastest == number)).size
    ]


def _one_profile(scenario: Scenario, profile: Profile, rows: LayerRows, index: np.ndarray, against: float | None) -> GapRows:
    layer, imbalance = scenario.layer(rows, profile)
    parts = attribute(layer, against)
    low, high = interval(scenario, profile, parts.latency, layer.floor, parts.bound)
    names = [name if rows.gated else name.replace("gate_up", "up") for name in OPS]
    return GapRows(index, profile, layer, imbalance, parts, low, high, dict(zip(names, layer_ops(layer), strict=True)))


def interval(scenario: Scenario, profile: Profile, latency: Array, floor: Array, bound: Sequence[str] | np.ndarray) -> tuple[Array, Array]:
    """80 % interval in seconds: the fit's factors for what bounds each row, never under the floor."""
    fit = profile.fit(scenario.gpu.architecture, scenario.format.id)
    known = {b: fit.interval_on(scenario.gpu.id, b) for b in get_args(Bound)}
    factors = [known[str(b)] for b in bound]
    low = np.maximum(latency * np.array([f.low for f in factors]), np.minimum(floor, latency))
    return low, latency * np.array([f.high for f in factors])


def cause_name(key: str) -> str:
    """The name that users see."""
    return NAMES.get(key, key)
