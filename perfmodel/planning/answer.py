"""The result of a search: the best plans, the Pareto fronts, what limits cost, and notes on what is missing."""

from __future__ import annotations

import numpy as np

from perfmodel.planning.advice import advise
from perfmodel.planning.batches import front, thin
from perfmodel.planning.candidates import Table
from perfmodel.planning.describe import describe
from perfmodel.planning.flags import repository
from perfmodel.planning.misses import nearest, no_plan
from perfmodel.planning.results import LimitEffect, PlanResult
from perfmodel.planning.services import Services, Setting, over
from perfmodel.planning.sizes import Kind
from perfmodel.planning.types import Flags, Rows
from perfmodel.serving.links import network_notes
from perfmodel.workload.model import ModelSpec

MOST_FRONT = 60
"""Points of each GPU's Pareto front that are shown."""


def answer(model: ModelSpec, table: Table, kinds: list[Kind], found: Services, setting: Setting, notes: list[str]) -> PlanResult:
    """The result of a search over `found`. Raises PerfModelError where nothing keeps the limits."""
    request, limits = setting.request, setting.request.limits
    total = np.array([k.total for k in kinds])[table.kind][found.points.decode]
    able = found.points.steady & (found.gpus <= total)
    found_able = found.take(able)
    broken = over(found_able, limits)
    kept = ~np.any(list(broken.values()), axis=0) if broken else np.ones(len(found_able), dtype=bool)
    if not kept.any():
        raise no_plan(table, found_able, limits)
    gpu_of = _gpu_numbers(table)
    best = _best(table, found_able, kept, gpu_of, request.top)
    shown = describe(table, found_able.take(best), setting)
    advice = advise(table, found_able.take(best).points, setting)
    plans = tuple(p.model_copy(update={"binds": binds, "helps": helps}) for p, (binds, helps) in zip(shown, advice, strict=True))
    fronts = _fronts(found_able, gpu_of, best)
    notes += _networks(table, found_able.take(best))
    notes += _missing(table, kinds, found_able, kept, limits, gpu_of)
    return PlanResult(
        model=model.id, weights=repository(model), isl=request.isl, osl=request.osl, changes=request.changes,
        currency=setting.prices.currency, searched=len(found), plans=plans,
        pareto=tuple(describe(table, found_able.take(fronts), setting)),
        limits=_effects(found_able, broken, limits), notes=tuple(dict.fromkeys(notes)),
    )  # fmt: skip


def _networks(table: Table, shown: Services) -> list[str]:
    """A note on each GPU whose file lacks the network that one of the plans needs."""
    points = shown.points
    wide = np.where(points.disaggregated, points.gpus, table.gpus[points.decode])
    gpus = (table.deployments[row].gpu for row in points.decode.tolist())
    return [text for gpu, most in zip(gpus, wide.tolist(), strict=True) for text in network_notes(gpu, int(most))]


def _gpu_numbers(table: Table) -> Rows:
    """For each row of the table, the number of its GPU: the same id with other facts is another one."""
    seen: dict[int, int] = {}
    return np.array([seen.setdefault(id(d.gpu), len(seen)) for d in table.deployments])


def _best(table: Table, found: Services, kept: Flags, gpu_of: Rows, top: int) -> Rows:
    """Rows of the best services, best first: of each GPU and mode the `top` best ways to share the model, each at its best batch."""
    points = found.points
    order = np.lexsort((np.arange(len(found)), found.latency_ms, -found.per_gpu))
    shown: dict[tuple[int, bool], set[tuple[object, ...]]] = {}
    rows = []
    for at in order[kept[order]].tolist():
        decode, prefill = int(points.decode[at]), int(points.prefill[at])
        ways = shown.setdefault((int(gpu_of[decode]), prefill >= 0), set())
        way = _way(table, decode) + (_way(table, prefill) if prefill >= 0 else ())
        if len(ways) < top and way not in ways:
            ways.add(way)
            rows.append(at)
    return np.array(rows)


def _way(table: Table, row: int) -> tuple[object, ...]:
    """What tells deployments apart for a reader; whole or split experts hardly do."""
    deployment = table.deployments[row]
    return deployment.formats.experts, deployment.parallel.tp, deployment.parallel.pp, deployment.parallel.dp


def _fronts(found: Services, gpu_of: Rows, best: Rows) -> Rows:
    """Rows of each GPU's Pareto front of tokens a second and GPU against those of a user, the fastest for a user first.

    Of a long front a part, with the points that are as good as the `best` plans or better.
    """
    numbers = gpu_of[found.points.decode]
    parts = []
    for number in np.unique(numbers):
        own = np.flatnonzero(numbers == number)
        whole = own[front(1.0 / found.points.tpot[own], found.per_gpu[own])]
        shown = best[numbers[best] == number]
        above = np.searchsorted(found.points.tpot[whole], found.points.tpot[shown], side="right") - 1
        places = np.arange(len(whole))
        parts.append(whole[np.union1d(thin(places, MOST_FRONT), above)])
    return np.concatenate(parts)


def _effects(found: Services, broken: dict[str, Flags], limits: dict[str, float]) -> tuple[LimitEffect, ...]:
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


def _missing(table: Table, kinds: list[Kind], found: Services, kept: Flags, limits: dict[str, float], gpu_of: Rows) -> list[str]:
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
