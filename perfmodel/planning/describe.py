"""Points as the plans that users read: every field of a `Plan`."""

from __future__ import annotations

import numpy as np

from perfmodel.planning.candidates import Table
from perfmodel.planning.points import places_of
from perfmodel.planning.results import Interval, Memory, Plan, Side
from perfmodel.planning.services import Services, Setting
from perfmodel.serving.anchored import lanes
from perfmodel.serving.anchoring import Anchoring
from perfmodel.serving.engine import load_calibration
from perfmodel.serving.memory import USABLE, memory_bytes
from perfmodel.serving.step import decode, step_ops
from perfmodel.units import GB
from perfmodel.workload.expectation import Array

ESTIMATED = {"ttft": (0.6, 1.6), "tpot": (0.8, 1.25)}
"""80 % intervals over the figure, where none were fitted."""


def factors(mode: str) -> tuple[dict[str, tuple[float, float]], str]:
    """(low and high factor of TTFT and TPOT in a mode, where they come from: `fitted` to measured services or `estimated`)."""
    fitted = load_calibration().interval.get(mode, {})
    if not set(ESTIMATED) <= set(fitted):
        return ESTIMATED, "estimated"
    return {name: fitted[name] for name in ESTIMATED}, "fitted"


def describe(table: Table, found: Services, setting: Setting) -> list[Plan]:
    """A Plan for each service, without advice."""
    points = found.points
    sub = table.take(points.decode)
    context = np.full(len(points), float(setting.request.isl + setting.request.osl))
    memory = memory_bytes(sub.work, np.minimum(points.batch, sub.most), context)
    steps = _steps(sub, found, setting)
    anchoring = _anchoring(table, found, setting)
    return [
        _plan(table, found, setting, at, {k: float(v[at]) for k, v in memory.items()}, steps[at], anchoring[at])
        for at in range(len(points))
    ]


def _anchoring(table: Table, found: Services, setting: Setting) -> list[tuple[Array, Anchoring | None]]:
    """For each service, what is left of the spread of its TTFT and TPOT, and how the user's own measurements pulled them."""
    if table.pulls is None:
        return [(np.ones(2), None)] * len(found)
    requests, rows = setting.requests, found.points.decode
    factor, spread, own = table.pulls.at(places_of(found.points), requests.context, requests.prompt + requests.cached)
    return [(spread[:, at], table.pulls.told(int(rows[at]), int(own[at]), factor[:, at])) for at in range(len(found))]


def _steps(sub: Table, found: Services, setting: Setting) -> list[dict[str, float]]:
    """Shares of a decode step's time by op."""
    points = found.points
    split = lanes(sub.work.pp, points.batch)
    a_rank = np.maximum(points.batch / (sub.work.dp * split), 1.0)
    ops = step_ops(sub.work, sub.rates, setting.engine, decode(a_rank, np.full_like(a_rank, setting.requests.context)))
    total: Array = np.sum(list(ops.values()), axis=0)
    return [{name: float(time[at] / total[at]) for name, time in ops.items()} for at in range(len(points))]


def _plan(
    table: Table,
    found: Services,
    setting: Setting,
    at: int,
    memory: dict[str, float],
    step: dict[str, float],
    anchoring: tuple[Array, Anchoring | None],
) -> Plan:
    spread, told = anchoring
    points, request = found.points, setting.request
    row = int(points.decode[at])
    deployment, apart = table.deployments[row], bool(points.disaggregated[at])
    copies, p = int(found.copies[at]), deployment.parallel
    capacity, used = float(table.capacity[row]), sum(memory.values())
    hour = None if np.isnan(found.budget[at]) else float(found.budget[at])
    tokens = float(found.served[at]) * request.osl
    ttft, tpot, tpot_s = float(found.ttft_ms[at]), float(found.tpot_ms[at]), float(points.tpot[at])
    return Plan(
        gpu=deployment.gpu.id, mode="disaggregated" if apart else "aggregated",
        format=deployment.formats.experts, dense_format=deployment.formats.dense, kv_format=deployment.formats.cache,
        tp=p.tp, pp=p.pp, ep=p.ep, dp=p.dp,
        batch=int(np.ceil(points.batch[at])), concurrency=round(float(points.clients[at]) * copies),
        instances=copies if apart else copies * int(points.decoders[at]), gpus=int(found.gpus[at]),
        prefill=_side(table, int(points.prefill[at]), int(points.prefillers[at]) * copies) if apart else None,
        decode=_side(table, row, int(points.decoders[at]) * copies) if apart else None,
        ttft_ms=ttft, tpot_ms=tpot, latency_ms=float(found.latency_ms[at]),
        tokens_per_s_per_gpu=float(found.per_gpu[at]), tokens_per_s_per_user=1.0 / tpot_s,
        requests_per_s=float(found.served[at]), most_requests_per_s=float(points.requests_per_s[at]) * copies,
        memory_GB_per_gpu=used / GB,
        memory_GB=Memory(**{k: v / GB for k, v in memory.items()}, free=(capacity * USABLE - used) / GB, capacity=capacity / GB),
        cost_per_million_tokens=None if hour is None else hour / (tokens * 3600.0) * 1e6, cost_per_hour=hour,
        watts_per_gpu=float(found.watts[at]), power_kW=float(found.power_kW[at]),
        interval=_interval(found, at, spread), anchored=told, step=step,
    )  # fmt: skip


def _side(table: Table, row: int, instances: int) -> Side:
    p = table.deployments[row].parallel
    return Side(tp=p.tp, pp=p.pp, ep=p.ep, dp=p.dp, instances=instances, gpus=instances * p.gpus)


def _interval(found: Services, at: int, left: Array) -> Interval:
    """`left`: of the spread of TTFT and TPOT.

    Of tokens a second: the same clients, with both times low or both high; no more than the rate that is asked for.
    """
    spread, status = factors("disaggregated" if found.points.disaggregated[at] else "aggregated")
    ttft, tpot, points = float(found.ttft_ms[at]), float(found.tpot_ms[at]), found.points
    factors_ = {name: [edge**part for edge in spread[name]] for name, part in zip(("ttft", "tpot"), left.tolist(), strict=True)}
    ranges = {name: (value * factors_[name][0], value * factors_[name][1]) for name, value in (("ttft", ttft), ("tpot", tpot))}
    now = ttft + (points.output - 1) * tpot
    can = float(points.requests_per_s[at] * found.copies[at])
    served = [can * now / (ranges["ttft"][i] + (points.output - 1) * ranges["tpot"][i]) for i in (1, 0)]
    asked = float(found.served[at]) if found.served[at] < can * (1 - 1e-12) else np.inf
    low, high = (min(rate, asked) * points.output / float(found.gpus[at]) for rate in served)
    return Interval(ttft_ms=ranges["ttft"], tpot_ms=ranges["tpot"], tokens_per_s_per_gpu=(low, high), status=status)
