"""`perfmodel.plan`: the search for the best ways to serve a model within limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.hardware import GpuSpec
from perfmodel.planning.advice import advise
from perfmodel.planning.batches import front, mixes, single_batches, thin
from perfmodel.planning.candidates import Table, build, factors_of
from perfmodel.planning.describe import describe
from perfmodel.planning.flags import repository
from perfmodel.planning.formats import all_formats
from perfmodel.planning.misses import nearest, no_memory, no_plan
from perfmodel.planning.points import Points, Requests, apart, join, together
from perfmodel.planning.prices import load_prices
from perfmodel.planning.request import PlanRequest
from perfmodel.planning.results import LimitEffect, PlanResult
from perfmodel.planning.services import Services, Setting, over, services
from perfmodel.planning.sizes import Kind, check_whole, kinds_of
from perfmodel.scenario import as_gpu
from perfmodel.serving.engine import load_calibration
from perfmodel.validated import validate
from perfmodel.workload import load_model
from perfmodel.workload.expectation import Array
from perfmodel.workload.model import ModelSpec

MOST_FRONT = 24
"""Points of each GPU's Pareto front that are shown."""


def plan(model: str | Path | ModelSpec, gpu: str | Path | GpuSpec | Sequence[str | Path | GpuSpec], **options: Any) -> PlanResult:
    """The best ways to serve `model` on each `gpu`. `options`: the other fields of PlanRequest (isl, osl, ttft_ms, rate, format ...).

    Raises PerfModelError for bad input, where the weights do not fit, and where nothing keeps the limits (it names the nearest miss).
    """
    several = [gpu] if isinstance(gpu, str | Path | GpuSpec) else list(gpu)
    names = tuple(str(g) if isinstance(g, Path) else g for g in several)
    data = {"model": str(model) if isinstance(model, Path) else model, "gpu": names, **options}
    return search(validate(PlanRequest, data))


def search(request: PlanRequest) -> PlanResult:
    """The answer to a request. Raises PerfModelError as `plan` does."""
    model = request.model if isinstance(request.model, ModelSpec) else load_model(request.model)
    check_whole(model)
    gpus = [as_gpu(gpu, request.changes) for gpu in request.gpu]
    cached = request.prefix_cache * request.isl
    calibration = load_calibration()
    engine, prices = calibration.engine_of(request.backend), load_prices(request.prices)
    setting = Setting(request, Requests(request.isl - cached, cached, float(request.osl)), engine, prices)
    kinds, notes = kinds_of(model, gpus, request)
    forms = [all_formats(k.format, model, k.gpu, request.kv_format) for k in kinds]
    factors = [factors_of(calibration, model, k.gpu, k.format, request.backend) for k in kinds]
    parts = [(k.gpu, form, k.instance) for k, form in zip(kinds, forms, strict=True)]
    table = build(model, parts, float(request.isl + request.osl), factors)
    if not (table.most >= 1).any():
        raise no_memory(model, kinds, table)
    found = services(table, _points(table, kinds, setting), setting)
    return _answer(model, table, kinds, found, setting, notes)


def _points(table: Table, kinds: list[Kind], setting: Setting) -> Points:
    """Every point of the search, aggregated ones first."""
    request, parts = setting.request, []
    fits = np.flatnonzero(table.most >= 1)
    if request.mode != "disaggregated":
        most = np.array([k.total for k in kinds])[table.kind]
        rows, batch, copies = single_batches(table, fits, request.concurrency, most)
        parts.append(together(table, rows, batch, copies, setting.requests, setting.engine))
    if request.mode != "aggregated":
        for number, kind in enumerate(kinds):
            own = fits[table.kind[fits] == number]
            if len(own) and 2 * table.gpus[own].min() <= kind.mixed:
                m = mixes(table, own, setting.requests, setting.engine, request.concurrency, kind.mixed)
                parts.append(apart(table, m.prefill, m.prefillers, m.decoding, m.decoders, m.clients, setting.requests, setting.engine))
    return join(parts)


def _answer(model: ModelSpec, table: Table, kinds: list[Kind], found: Services, setting: Setting, notes: list[str]) -> PlanResult:
    request, limits = setting.request, setting.request.limits
    total = np.array([k.total for k in kinds])[table.kind][found.points.decode]
    able = found.points.steady & (found.gpus <= total)
    found_able = found.take(able)
    broken = over(found_able, limits)
    kept = ~np.any(list(broken.values()), axis=0) if broken else np.ones(len(found_able), dtype=bool)
    if not kept.any():
        raise no_plan(table, found_able, limits)
    gpu_of = _gpu_numbers(table)
    best = _best(found_able, kept, gpu_of, request.top)
    shown = describe(table, found_able.take(best), setting)
    advice = advise(table, found_able.take(best).points, setting)
    plans = tuple(p.model_copy(update={"binds": binds, "helps": helps}) for p, (binds, helps) in zip(shown, advice, strict=True))
    fronts = _fronts(found_able, gpu_of)
    notes += _missing(table, kinds, found_able, kept, limits, gpu_of)
    return PlanResult(
        model=model.id, weights=repository(model), isl=request.isl, osl=request.osl, currency=setting.prices.currency, searched=len(found), plans=plans,
        pareto=tuple(describe(table, found_able.take(fronts), setting)),
        limits=_effects(found_able, broken, limits), notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _gpu_numbers(table: Table) -> Array:
    """For each row of the table, the number of its GPU: the same id with other facts is another one."""
    seen: dict[int, int] = {}
    return np.array([seen.setdefault(id(d.gpu), len(seen)) for d in table.deployments])


def _best(found: Services, kept: Array, gpu_of: Array, top: int) -> Array:
    """Rows of the best services, best first: of each GPU and mode the `top` best ways to share the model, each at its best batch."""
    points = found.points
    order = np.lexsort((np.arange(len(found)), found.latency_ms, -found.per_gpu))
    shown: dict[tuple[int, bool], list[set[tuple[float, ...]]]] = {}
    rows = []
    for at in order[kept[order]].tolist():
        ways = shown.setdefault((int(gpu_of[points.decode[at]]), bool(points.prefill[at] >= 0)), [])
        way, figures = (points.decode[at], points.prefill[at]), (found.per_gpu[at], found.latency_ms[at])
        if len(ways) < top and not any(way in known or figures in known for known in ways):
            ways.append({way, figures})
            rows.append(at)
    return np.array(rows)


def _fronts(found: Services, gpu_of: Array) -> Array:
    """Rows of each GPU's Pareto front of tokens a second and GPU against those of a user, the fastest for a user first."""
    numbers = gpu_of[found.points.decode]
    parts = []
    for number in np.unique(numbers):
        own = np.flatnonzero(numbers == number)
        parts.append(own[thin(front(1.0 / found.points.tpot[own], found.per_gpu[own]), MOST_FRONT)])
    return np.concatenate(parts)


def _effects(found: Services, broken: dict[str, Array], limits: dict[str, float]) -> tuple[LimitEffect, ...]:
    """What each limit costs, the dearest first; those that cost nothing are left out."""

    def best(names: list[str]) -> float:
        kept = ~np.any([broken[name] for name in names], axis=0) if names else np.ones(len(found), dtype=bool)
        return float(found.per_gpu[kept].max())

    now = best(list(limits))
    effects = []
    for name, limit in limits.items():
        without = best([other for other in limits if other != name])
        if without > now * (1 + 1e-9):
            effects.append(LimitEffect(limit=name, value=limit, without=without, gain=without / now - 1))
    return tuple(sorted(effects, key=lambda effect: -effect.gain))


def _missing(table: Table, kinds: list[Kind], found: Services, kept: Array, limits: dict[str, float], gpu_of: Array) -> list[str]:
    """A note for each GPU that the plans are without: no memory, or the nearest miss."""
    notes = []
    own = gpu_of[found.points.decode]
    for number, kind in {int(gpu_of[row]): kinds[int(table.kind[row])] for row in range(len(gpu_of))}.items():
        mine = own == number
        if not mine.any():
            notes.append(f"{kind.gpu.id}: the model does not fit {kind.instance} GPUs, or no way to run it lasts")
        elif not (mine & kept).any():
            notes.append(f"{kind.gpu.id}: no plan keeps the limits: {nearest(table, found.take(mine), limits)}")
    return notes
