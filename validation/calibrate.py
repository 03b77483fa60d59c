"""Fitting kernel profiles to measured layers: few rows, chosen by a hash of their shape, bounded and robust; then intervals by regime.

A family is a kernel on an architecture in a format. Of its shapes some percent fix the parameters, half as many the 80 % intervals, of both
no more than some rows, and all others are there to be predicted; more of a small family than of a large one. A shape (sizes, parallelism,
all but the tokens) is on one side only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from perfmodel.attribution import bounds
from perfmodel.causes import ON
from perfmodel.formats import get_format
from perfmodel.hardware import load_gpu
from perfmodel.moe_layer import Layer, layer_time
from perfmodel.ops.machine import parameters_si
from perfmodel.ops.op import Parameter
from perfmodel.profiles import Fit, Parameters, Profile, load_profile, profile_ids
from perfmodel.profiles.profile import Provenance
from perfmodel.scenario import layer_rows, resolve
from perfmodel.validation.fitting import LEAST_ROWS, draw, hashed_share, intervals, limits, provenance, rest_of, solve
from perfmodel.validation.measurements import Floats, Integers, Mask, Measurements, group_ids

MOST_ROWS, MOST_APART = 1500, 700
"""Of a family, drawn at random from its shares for parameters and for intervals: many shapes of few rows tell more than the reverse."""
PRIORS: Mapping[str, tuple[float, float]] = {
    "fixed_us": (8.0, 1.0), "gemm_latency_us": (2.5, 0.7), "tile_fixed_us": (1.5, 1.0), "bandwidth_efficiency": (0.9, 0.2),
    "compute_efficiency": (0.7, 0.5), "l2_efficiency": (0.8, 0.4), "activation_bandwidth": (0.8, 1.0), "overlap_exponent": (3.0, 0.8),
    "routing_ps": (7.0, 1.0), "dequantise_ps": (8.0, 1.0), "in_flight_KiB": (32.0, 1.2),
    "token_bandwidth": (0.8, 1.0), "expert_ns": (10.0, 1.5), "sort_us": (0.3, 1.0),
}  # fmt: skip
"""Parameter -> what it is expected to be, and the spread of its logarithm: about the middle of the starting values before any fit."""
LIMITS: Mapping[str, tuple[float, float]] = {
    "fixed_us": (0.01, 200.0), "gemm_latency_us": (0.01, 40.0), "tile_fixed_us": (0.01, 40.0), "bandwidth_efficiency": (0.3, 1.0),
    "compute_efficiency": (0.02, 1.0), "l2_efficiency": (0.05, 1.0), "activation_bandwidth": (0.02, 8.0), "overlap_exponent": (1.0, 30.0),
    "routing_ps": (0.01, 300.0), "dequantise_ps": (0.01, 300.0), "in_flight_KiB": (1.0, 2000.0),
    "token_bandwidth": (0.02, 8.0), "expert_ns": (0.01, 1000.0), "sort_us": (0.001, 20.0),
}  # fmt: skip
REGIMES = ("launch", "weights", "activations", "compute", "scheduling")
PREDICTED = ("gpu", "format", "routing", "caches", "gated")
"""Labels of rows that go through the model together."""
SHAPE = ("hidden", "inter", "topk", "num_experts", "tp", "ep")


@dataclass(frozen=True)
class Family:
    """A kernel on an architecture in a format."""

    kernel: str
    architecture: str
    format: str


@dataclass(frozen=True)
class Fitted:
    """What a family's rows gave."""

    family: Family
    fit: Fit
    rows: int
    """Used, for parameters and intervals."""
    errors: Mapping[str, float]
    """Standard error of the logarithm of each parameter; infinite where the rows say nothing of it."""


@cache
def architecture_of(gpu: str) -> str:
    """Of a GPU of the catalogue."""
    return load_gpu(gpu).architecture


def shape_share(rows: Measurements) -> Integers:
    """[n] a number from 0 to 999 for each row, by a hash of its shape."""
    return hashed_share([rows.sizes[name] for name in SHAPE])


def families(rows: Measurements, usable: Mask) -> dict[Family, Integers]:
    """Family -> its usable rows, for families that have a profile."""
    if not len(rows):
        return {}
    gpu, kernel, form = (rows.labels[name] for name in ("gpu", "kernel", "format"))
    archs = [architecture_of(text) for text in gpu.values]
    found: dict[Family, list[Integers]] = {}
    ids = group_ids([gpu.codes, kernel.codes, form.codes])
    order = np.argsort(ids, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(ids[order])) + 1):
        one = int(group[0])
        family = Family(kernel[one], archs[int(gpu.codes[one])], form[one])
        found.setdefault(family, []).append(group[usable[group]])
    joined = {family: np.sort(np.concatenate(parts)) for family, parts in found.items()}
    return {family: index for family, index in joined.items() if len(index)}


class Batch:
    """Rows of a family as layers, ready to be timed again and again with other parameters."""

    def __init__(self, rows: Measurements, index: Integers, profile: Profile) -> None:
        """`profile` must have a fit for the family."""
        self.measured = rows.latency[index]
        self.parts: list[tuple[Integers, Layer, bool]] = []
        ids = group_ids([rows.labels[name].codes[index] for name in PREDICTED])
        for number in range(int(ids.max(initial=-1)) + 1):
            place = np.flatnonzero(ids == number)
            mine = index[place]
            gpu, form, routing, caches, gated = (rows.labels[name][int(mine[0])] for name in PREDICTED)
            scenario = replace(resolve(gpu, form, "generic-unfused", routing=routing, caches=caches), profiles=(profile,))
            columns = {name.removeprefix("num_"): column[mine].astype(float) for name, column in rows.sizes.items()}
            layer, _ = scenario.layer(layer_rows(columns, gated=gated == "true"), profile)
            self.parts.append((place, layer, get_format(form).execution(architecture_of(gpu)) == "dequantised"))
        self.floors = [layer.floor for _, layer, _ in self.parts]

    def layers(self, parameters: Parameters) -> Iterator[tuple[Integers, Layer]]:
        """(places, layers) with these parameters."""
        for place, layer, dequantises in self.parts:
            yield place, replace(layer, machine=replace(layer.machine, **parameters_si(parameters, dequantises)))

    def predict(self, parameters: Parameters) -> Floats:
        """[n] seconds."""
        out = np.empty(len(self.measured))
        for (place, layer), floor in zip(self.layers(parameters), self.floors, strict=True):
            out[place] = np.maximum(layer_time(layer, ON), floor)
        return out

    def regimes(self, parameters: Parameters) -> Any:
        """[n] what bounds each layer."""
        out = np.empty(len(self.measured), dtype=object)
        for place, layer in self.layers(parameters):
            out[place] = bounds(layer)
        return out


def fit_family(rows: Measurements, index: Integers, share: Integers, family: Family, start: Profile) -> Fitted | None:
    """Parameters and intervals of a family from its share of `index`; None where there are too few rows. `start` gives tiles and stages."""
    fit, apart_to = limits(share[index])
    chosen = draw(index[share[index] < fit], MOST_ROWS)
    apart = draw(index[(share[index] >= fit) & (share[index] < apart_to)], MOST_APART)
    if len(chosen) < LEAST_ROWS:
        return None
    base = start.fit(family.architecture, family.format)
    single = _alone(start, base, family)
    batch = Batch(rows, chosen, single)
    parameters, errors = _solve(batch, get_format(family.format).execution(family.architecture) == "dequantised")
    solved = _with(single, parameters)
    held = Batch(rows, apart, solved) if len(apart) >= LEAST_ROWS else batch
    shapes = len(np.unique(share[apart])) if held is not batch else 4
    whole, parts = intervals(held.measured / held.predict(parameters), held.regimes(parameters), REGIMES, shapes)
    used = len(chosen) + (len(apart) if held is not batch else 0)
    made = solved.fits[0].model_copy(update={"interval": whole, "intervals": parts, "provenance": _provenance(batch, parameters, used)})
    return Fitted(family, made, used, errors)


def _alone(profile: Profile, fit: Fit, family: Family) -> Profile:
    """The profile with this family's fit only."""
    mine = fit.model_copy(update={"architectures": (family.architecture,), "formats": (family.format,)})
    return profile.model_copy(update={"fits": (mine,)})


def _with(profile: Profile, parameters: Parameters) -> Profile:
    return profile.model_copy(update={"fits": (profile.fits[0].model_copy(update={"parameters": parameters}),)})


def _solve(batch: Batch, dequantises: bool) -> tuple[Parameters, dict[str, float]]:
    unknowns = {name: Parameter(*PRIORS[name], *LIMITS[name]) for name in PRIORS if name != "dequantise_ps" or dequantises}

    def parameters(values: Mapping[str, float]) -> Parameters:
        return Parameters(**({"dequantise_ps": 0.0} | dict(values)))

    values, errors = solve(lambda values: batch.predict(parameters(values)), batch.measured, unknowns)
    return parameters(values), errors


def _provenance(batch: Batch, parameters: Parameters, used: int) -> Provenance:
    error = np.abs(batch.predict(parameters) / batch.measured - 1.0)
    return provenance(used, float(np.median(error)), "moe_perf")


def calibrate(
    rows: Measurements, usable: Mask, heard: Callable[[Family, Fitted | None], None] = lambda family, fitted: None
) -> list[Fitted]:
    """A fit for each family of the usable rows that has a profile to start from and rows enough; `heard` hears of each as it is done."""
    share, found = shape_share(rows), []
    for family, index in families(rows, usable).items():
        fitted = None
        if family.kernel in profile_ids():
            start = load_profile(family.kernel)
            if start.supports(family.architecture, family.format):
                fitted = fit_family(rows, index, share, family, start)
        heard(family, fitted)
        found += [fitted] if fitted else []
    return found


def refitted(profile: Profile, fits: Iterable[Fitted]) -> Profile:
    """The profile with these fits in place of its own for their architectures and formats."""
    mine = [fitted for fitted in fits if fitted.family.kernel == profile.id]
    taken = {(fitted.family.architecture, fitted.family.format) for fitted in mine}
    return profile.model_copy(update={"fits": (*(fitted.fit for fitted in mine), *rest_of(profile.fits, taken))})
