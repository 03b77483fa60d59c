"""The points of a part of the grid, solved with as few calls of the vectorised model as their scenarios allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perfmodel.api import layer_scenario
from perfmodel.attribution import GapRows, gap_rows
from perfmodel.causes import Causes
from perfmodel.errors import PerfModelError
from perfmodel.moe_layer import LayerRows
from perfmodel.scenario import Scenario, layer_rows
from perfmodel.sweeps.plan import Plan
from perfmodel.sweeps.request import AUTO, FAST, SLOW
from perfmodel.units import MICROSECOND
from perfmodel.workload.expectation import Array

TIMES = ("latency_us", "low_us", "high_us", "ideal_us", *(f"loss_{cause}_us" for cause in Causes._fields))
"""Columns of numbers; ideal and losses add up to the latency."""
FOUND = ("bound", "format_used", "kernel_used", "routing_used", "error")
"""Columns of words that the model finds."""
SIZES = ("hidden", "width", "inter", "shared_width", "experts", "topk")


@dataclass
class Words:
    """A column of few different words: a number a row, -1 for none."""

    codes: np.ndarray
    known: dict[str, int] = field(default_factory=dict)

    def put(self, rows: np.ndarray, word: str) -> None:
        """Write `word` to `rows`."""
        self.codes[rows] = self.known.setdefault(word, len(self.known))


class Points:
    """Points from `start` to `stop` of the grid: where each stands on every axis, and what was found there so far."""

    def __init__(self, plan: Plan, start: int, stop: int) -> None:
        self.plan = plan
        places = np.unravel_index(np.arange(start, stop), plan.shape)
        self.places = dict(zip((*SLOW, *FAST), places, strict=True))
        self.times = {name: np.full(stop - start, np.nan) for name in TIMES}
        self.words = {name: Words(np.full(stop - start, -1, dtype=np.int32)) for name in FOUND}

    def values(self, key: str, rows: np.ndarray) -> Array:
        """Numbers of a key at `rows`."""
        values: Array = np.asarray(self.plan.axes[key])[self.places[key][rows]]
        return values

    def layer_rows(self, rows: np.ndarray, gated: bool) -> LayerRows:
        """The layers at `rows`. Raises PerfModelError for ranks that do not divide them."""
        table = np.array([[getattr(layer, name) for name in SIZES] for layer in self.plan.layers])
        sizes = dict(zip(SIZES, table[self.places["model"][rows]].T, strict=True))
        sizes["shared_inter"] = sizes.pop("shared_width")
        return layer_rows({**sizes, **{key: self.values(key, rows) for key in FAST[1:]}}, gated=gated)

    def fill(self, rows: np.ndarray, scenario: Scenario, part: GapRows) -> None:
        """Write what one kernel profile predicts for `rows`."""
        parts = part.parts
        found = (parts.latency, part.low, part.high, parts.ideal, *parts.losses.values())
        for name, values in zip(TIMES, found, strict=True):
            self.times[name][rows] = values / MICROSECOND
        for bound in np.unique(parts.bound):
            self.words["bound"].put(rows[parts.bound == bound], str(bound))
        used = {"format_used": scenario.format.id, "kernel_used": part.profile.id, "routing_used": str(scenario.routing)}
        for name, word in used.items():
            self.words[name].put(rows, word)


def solve(plan: Plan, start: int, stop: int, halted: Callable[[], bool] = bool) -> Points:
    """The points from `start` to `stop` of the grid; one that cannot be holds the reason. Raises CancelledError where `halted`."""
    points = Points(plan, start, stop)
    for scenario, gated, rows in _scenarios(points, halted):
        _go_on(halted)
        _solve(points, scenario, gated, rows)
    return points


def _go_on(halted: Callable[[], bool]) -> None:
    if halted():
        raise CancelledError


def _scenarios(points: Points, halted: Callable[[], bool]) -> Iterator[tuple[Scenario, bool, np.ndarray]]:
    """The rows that one call of the model can take, as (scenario, gated, rows): models of the same kind, all ranks and tokens.

    Layers with and without shared experts go apart, since these add launches to the call. Rows that have no scenario get their error here.
    """
    keys = (*SLOW, "model")
    stacked = np.stack([points.places[key] for key in keys])
    settings, which = np.unique(stacked, axis=1, return_inverse=True)
    alike: dict[object, tuple[Scenario, bool, list[np.ndarray]]] = {}
    for number, setting in enumerate(settings.T.tolist()):
        _go_on(halted)
        rows = np.flatnonzero(which.ravel() == number)
        try:
            scenario = _scenario(points.plan, dict(zip(keys, setting, strict=True)))
        except PerfModelError as error:
            points.words["error"].put(rows, str(error))
            continue
        layer = points.plan.layers[setting[-1]]
        key = (*setting[:-1], scenario.format.id, scenario.routing, layer.gated, layer.shared_width > 0)
        alike.setdefault(key, (scenario, layer.gated, []))[2].append(rows)
    for scenario, gated, parts in alike.values():
        yield scenario, gated, np.concatenate(parts)


def _scenario(plan: Plan, place: dict[str, int]) -> Scenario:
    words: dict[str, Any] = {key: plan.axes[key][place[key]] for key in SLOW[1:]}
    words["redundant"] = int(words["redundant"])
    suited = {key: None for key in ("format", "routing") if words[key] == AUTO}
    contents = plan.contents
    return layer_scenario(contents.models[place["model"]], contents.gpus[place["gpu"]], **(words | suited))


def _solve(points: Points, scenario: Scenario, gated: bool, rows: np.ndarray) -> None:
    """Predict `rows` together; where one of them makes the call fail, those that fail are sought out and hold the reason."""
    try:
        parts = gap_rows(scenario, points.layer_rows(rows, gated))
    except PerfModelError as error:
        # only counts of a file can fit some token counts and not others, and what is wrong with the file itself is so for all
        alike = scenario.routing.kind != "counts" or error.file is not None
        pieces = _split(points, gated, rows, alike)
        if len(pieces) == 1:
            points.words["error"].put(rows, str(error))
            return
        for piece in pieces:
            _solve(points, scenario, gated, piece)
        return
    for part in parts:
        points.fill(rows[part.index], scenario, part)


def _split(points: Points, gated: bool, rows: np.ndarray, alike: bool) -> list[np.ndarray]:
    """`rows` in pieces of which some fail; one piece where all fail: a single row, or a single shape (model and ranks) if they fail alike.

    First come the shapes whose sizes do not fit, each a piece, then halves of the others.
    """
    shapes, which = np.unique(np.stack([points.places[key][rows] for key in FAST[:-1]]), axis=1, return_inverse=True)
    apart = [rows[which.ravel() == number] for number in range(shapes.shape[1])]
    if len(apart) == 1:
        return apart if alike else _halves(rows)
    fits = [_fits(points, gated, piece[:1]) for piece in apart]
    good = [piece for piece, fit in zip(apart, fits, strict=True) if fit]
    bad = [piece for piece, fit in zip(apart, fits, strict=True) if not fit]
    if bad:
        return [*bad, np.concatenate(good)] if good else bad
    return [np.concatenate(half) for half in (good[::2], good[1::2])]


def _halves(rows: np.ndarray) -> list[np.ndarray]:
    return [half for half in np.array_split(rows, 2) if half.size]


def _fits(points: Points, gated: bool, rows: np.ndarray) -> bool:
    try:
        points.layer_rows(rows, gated)
    except PerfModelError:
        return False
    return True
