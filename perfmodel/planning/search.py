"""`perfmodel.plan`: the search for the best ways to serve a model within limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.hardware import GpuSpec
from perfmodel.planning.answer import answer
from perfmodel.planning.batches import mixes, single_batches
from perfmodel.planning.candidates import Table, build, factors_of
from perfmodel.planning.misses import no_memory, too_few
from perfmodel.planning.points import Points, Requests, apart, join, together
from perfmodel.planning.prices import load_prices
from perfmodel.planning.request import PlanRequest
from perfmodel.planning.results import PlanResult
from perfmodel.planning.services import Setting, services
from perfmodel.planning.sizes import Kind, check_whole, kinds_of
from perfmodel.scenario import as_gpu
from perfmodel.serving.anchored import Anchored, anchored_of, left_out
from perfmodel.serving.anchors import as_anchors
from perfmodel.serving.deployment import formats_on
from perfmodel.serving.engine import load_calibration
from perfmodel.validated import validate
from perfmodel.workload import load_model
from perfmodel.workload.model import ModelSpec


def plan(model: str | Path | ModelSpec, gpu: str | Path | GpuSpec | Sequence[str | Path | GpuSpec], **options: Any) -> PlanResult:
    """The best ways to serve `model` on each `gpu`. `options`: the other fields of PlanRequest (isl, osl, ttft_ms, rate, format ...).

    `anchors`, the user's own measurements, may also be the path of a file of them.

    Raises PerfModelError for bad input, where the weights do not fit, and where nothing keeps the limits (it names the nearest miss).
    """
    several = list(gpu) if isinstance(gpu, list | tuple) else [gpu]
    names = tuple(str(g) if isinstance(g, Path) else g for g in several)
    data = {"model": model, "gpu": names, **options}
    data |= {name: str(data[name]) for name in ("model", "prices") if isinstance(data.get(name), Path)}
    if "anchors" in data:
        data["anchors"] = as_anchors(data["anchors"])
    return search(validate(PlanRequest, data))


def search(request: PlanRequest) -> PlanResult:
    """The answer to a request. Raises PerfModelError as `plan` does."""
    model = request.model if isinstance(request.model, ModelSpec) else load_model(request.model)
    check_whole(model)
    asked = [gpu for at, gpu in enumerate(request.gpu) if gpu not in request.gpu[:at]]
    gpus = [as_gpu(gpu, request.changes) for gpu in asked]
    cached = request.prefix_cache * request.isl
    calibration = load_calibration()
    engine, prices = calibration.engine_of(request.backend), load_prices(request.prices)
    setting = Setting(request, Requests(request.isl - cached, cached, float(request.osl)), engine, prices)
    kinds, notes = kinds_of(model, gpus, request)
    forms = [formats_on(model, k.gpu, k.format, request.kv_format) for k in kinds]
    factors = [factors_of(calibration, model, k.gpu, k.format, request.backend) for k in kinds]
    anchored, said = _anchored(request, model, kinds, dict(zip(map(id, gpus), asked, strict=True)))
    notes += said
    parts = [(k.gpu, form, k.instance) for k, form in zip(kinds, forms, strict=True)]
    table = build(model, parts, float(request.isl + request.osl), factors, anchored, request.micro_batches)
    if not (table.most >= 1).any():
        raise no_memory(model, kinds, table)
    found = services(table, _points(table, kinds, setting), setting)
    return answer(model, table, kinds, found, setting, notes)


def _anchored(
    request: PlanRequest, model: ModelSpec, kinds: list[Kind], asked: Mapping[int, str | GpuSpec]
) -> tuple[list[Anchored | None], list[str]]:
    """The user's measurements of each kind, on its GPU as it is without what-ifs, and notes. asked: id of a GPU -> what names it."""
    if not request.anchors:
        return [None] * len(kinds), []
    of = {key: anchored_of(request.anchors, model, as_gpu(gpu), request.backend) for key, gpu in asked.items()}
    notes = left_out(request.anchors, list(of.values())) + [text for one in of.values() if one is not None for text in one.notes]
    return [of[id(kind.gpu)] for kind in kinds], notes


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
    if not parts:
        raise too_few(kinds)
    return join(parts)
