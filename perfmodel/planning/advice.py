"""What keeps a plan from serving more, and what faster or larger hardware would bring it: the model asked again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.planning.candidates import Table
from perfmodel.planning.points import Points, apart, together
from perfmodel.planning.results import Help
from perfmodel.planning.services import WORDS, Setting
from perfmodel.planning.types import Flags
from perfmodel.serving.engine import NAMES, Engine
from perfmodel.serving.memory import most_sequences
from perfmodel.workload.expectation import Array

LOADS = np.array([0.5, 0.625, 0.75, 0.875, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0])
"""Clients that a changed plan is tried with, over those of the plan."""
MORE = 5
"""Place in LOADS of the search's next batch."""
LAUNCHES = (*(name for name in NAMES if name.endswith("layer_us")), "step_us", "sequence_us")
"""Times of the engine that launching and scheduling take."""
LEAST_GAIN = 0.01
"""Gains below this are not told."""
SPEEDS = ("ttft_ms", "tpot_ms", "latency_ms")


@dataclass(frozen=True)
class Trial:
    """Plans under LOADS: [plans, loads]."""

    ttft_ms: Array
    tpot_ms: Array
    latency_ms: Array
    per_gpu: Array
    steady: Flags
    fits: Flags

    def best(self, limits: dict[str, float]) -> Array:
        """Most tokens a second and GPU within the limits, for each plan; 0 where no load keeps them."""
        kept = self.steady & self.fits
        for name in SPEEDS:
            kept &= getattr(self, name) <= limits.get(name, np.inf)
        result: Array = np.where(kept, self.per_gpu, 0.0).max(axis=1)
        return result


def advise(table: Table, points: Points, setting: Setting) -> list[tuple[tuple[str, ...], tuple[Help, ...]]]:
    """For each point, what binds it and what would help it."""
    limits = setting.request.limits
    context = float(setting.request.isl + setting.request.osl)
    plain = _trial(table, points, setting, setting.engine)
    base = plain.best(limits)
    gains: dict[str, Array] = {}
    for name, changed, engine in _changes(table, setting.engine, context):
        gains[name] = _trial(changed, points, setting, engine).best(limits) / np.maximum(base, 1e-30) - 1.0
    found = []
    for i in range(len(points)):
        helps = [Help(change=name, gain=float(gain[i])) for name, gain in gains.items() if gain[i] > LEAST_GAIN]
        helps.sort(key=lambda h: -h.gain)
        found.append((_binds(plain, i, limits, helps), tuple(helps)))
    return found


def _changes(table: Table, engine: Engine, context: float) -> list[tuple[str, Table, Engine]]:
    rates = table.rates
    peaks = {name: 2.0 * getattr(rates, name) for name in ("dense_peak", "expert_peak", "attention_peak")}
    capacity = 2.0 * table.capacity
    most = most_sequences(table.work, capacity, np.full_like(capacity, context))
    launches = {name: getattr(engine, name) / 2 for name in LAUNCHES}
    return [
        ("twice the DRAM bandwidth", replace(table, rates=replace(rates, bandwidth=2.0 * rates.bandwidth)), engine),
        ("twice the FLOPS", replace(table, rates=replace(rates, **peaks)), engine),
        ("twice the links", replace(table, rates=replace(rates, link=2.0 * rates.link, network=2.0 * rates.network)), engine),
        ("twice the memory", replace(table, capacity=capacity, most=most), engine),
        ("half the launch and scheduling time", table, replace(engine, **launches)),
    ]


def _trial(table: Table, points: Points, setting: Setting, engine: Engine) -> Trial:
    """Every point under all LOADS."""
    count = len(LOADS)
    shape = (len(points), count)
    every = points.take(np.repeat(np.arange(len(points)), count))
    factor = np.tile(LOADS, len(points))
    columns = {name: np.zeros(shape) for name in ("ttft", "tpot", "per_gpu", "running")}
    steady = np.zeros(shape, dtype=bool)
    for apart_ in (False, True):
        rows = np.flatnonzero(every.disaggregated == apart_)
        if not len(rows):
            continue
        new = _again(table, every.take(rows), factor[rows], setting, engine)
        running = new.clients / new.decoders * (new.output * new.tpot / (new.ttft + new.output * new.tpot) if apart_ else 1.0)
        for name, values in (("ttft", new.ttft), ("tpot", new.tpot), ("per_gpu", new.tokens_per_s_per_gpu), ("running", running)):
            columns[name].ravel()[rows] = values
        steady.ravel()[rows] = new.steady
    fits = columns["running"] <= table.most[points.decode][:, None]
    ttft, tpot = columns["ttft"] * 1e3, columns["tpot"] * 1e3
    return Trial(ttft, tpot, ttft + (points.output - 1) * tpot, columns["per_gpu"], steady, fits)


def _again(table: Table, points: Points, factor: Array, setting: Setting, engine: Engine) -> Points:
    if points.disaggregated.all():
        clients = np.maximum(points.clients * factor, points.decoders)
        return apart(
            table, points.prefill, points.prefillers, points.decode, points.decoders, clients, setting.requests, engine,
        )  # fmt: skip
    batch = np.maximum(points.batch * factor, 1.0)
    return together(table, points.decode, batch, points.decoders, setting.requests, engine)


def _binds(plain: Trial, at: int, limits: dict[str, float], helps: list[Help]) -> tuple[str, ...]:
    """What the next larger batch would break, then the resource that more of would help most."""
    found = [WORDS[name] for name in SPEEDS if getattr(plain, name)[at, MORE] > limits.get(name, np.inf)]
    if not plain.fits[at, MORE]:
        found.append("memory")
    if not plain.steady[at, MORE]:
        found.append("prompts")
    if helps and helps[0].change != "twice the memory":
        found.append(helps[0].change.removeprefix("twice the ").removeprefix("half the "))
    return tuple(found)
