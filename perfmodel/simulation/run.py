"""`perfmodel.simulate(...)` returns the object that `perfmodel simulate --json` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec
from perfmodel.scenario import as_gpu
from perfmodel.serving.anchored import Anchored, anchored_of, left_out
from perfmodel.serving.anchoring import Anchoring
from perfmodel.serving.anchors import as_anchors
from perfmodel.serving.deployment import serving_format
from perfmodel.serving.links import network_notes
from perfmodel.simulation.deploy import Instances, instances, side_of
from perfmodel.simulation.engine import loop
from perfmodel.simulation.load import Load, draw_load
from perfmodel.simulation.pulled import anchoring, pulled
from perfmodel.simulation.request import SimulationRequest
from perfmodel.simulation.state import Rules, Side, State, new_state
from perfmodel.units import MICROSECOND
from perfmodel.validated import validate
from perfmodel.workload import load_model
from perfmodel.workload.model import ModelSpec

MOST_RATES = 100
PATIENCE = 1.5
"""Seconds after which a compilation is told of."""
MOST_PLACES = 2**26
"""Instances x sequences at a time: half a gigabyte for each table of them."""


@dataclass(frozen=True)
class Outcome:
    """A simulation that is done."""

    request: SimulationRequest
    model: ModelSpec
    gpu: GpuSpec
    format: str
    load: Load
    prefill: Instances | None
    decoding: Instances
    state: State
    anchored: Anchoring | None = None
    notes: tuple[str, ...] = ()
    """On the deployment."""


def simulate(
    model: str | Path | ModelSpec,
    gpu: str | Path | GpuSpec,
    *,
    changes: str | Sequence[str] = (),
    rates: Sequence[float] = (),
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Serve requests with `model` on GPUs, and give percentiles of what clients see.

    options: fields of SimulationRequest. `rates`: several rates in place of one; the result then has a `curve`, and is of the last one
    otherwise. `anchors`, the user's own measurements, may be the path of a file; `tell` is called with what a person at a terminal
    should know. Returns the JSON object of `perfmodel simulate`. Raises PerfModelError for anything that does not fit.
    """
    from perfmodel.simulation.summary import as_object, point

    given = {name: str(value) if isinstance(value, Path) else value for name, value in options.items() if value is not None}
    if "anchors" in given:
        given["anchors"] = as_anchors(given["anchors"])
    changes = (changes,) if isinstance(changes, str) else changes
    requests = _requests(given, rates)
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    if spec.vocab is None or not spec.attention:
        raise PerfModelError("is one layer, not a whole model", field="MODEL", value=spec.id, mend="Choose one of `perfmodel models`.")
    gpu_spec = as_gpu(gpu, changes)
    form = requests[0].format or serving_format(spec.format, gpu_spec)
    held = anchored_of(requests[0].anchors, spec, as_gpu(gpu), requests[0].backend)
    results = [as_object(execute(request, spec, gpu_spec, form, held, tell)) for request in requests]
    curve = {"curve": [point(result) for result in results]} if len(rates) else {}
    return {**results[-1], **curve, "changes": list(changes)}


def _requests(options: dict[str, Any], rates: Sequence[float]) -> list[SimulationRequest]:
    """One for each rate, checked before any of them runs."""
    if isinstance(rates, str) or not isinstance(rates, Sequence | np.ndarray):
        raise PerfModelError("is no list of numbers", field="rates", value=rates, mend="Give rates=[1.0, 2.0], say.")
    if len(rates) and "rate" in options:
        raise PerfModelError("goes with no rate", field="rates", value=list(rates), mend="Give one of them.")
    if len(rates) > MOST_RATES:
        raise PerfModelError(f"at most {MOST_RATES} rates a call", field="rates", value=len(rates), mend="Give fewer.")
    loads = [{**options, "rate": rate} for rate in rates] if len(rates) else [options]
    requests = [validate(SimulationRequest, load) for load in loads]
    for request in requests:
        request.check()
    return requests


def execute(
    request: SimulationRequest,
    model: ModelSpec,
    gpu: GpuSpec,
    form: str,
    held: Anchored | None = None,
    tell: Callable[[str], None] | None = None,
) -> Outcome:
    """Run one simulation, pulled to the measurements `held`."""
    load = draw_load(request)
    lengths = load.lengths
    prefill = instances(request, model, gpu, form, request.prefill_gpus) if request.prefill_gpus else None
    decoding = instances(request, model, gpu, form, request.gpus - (request.prefill_gpus or 0))
    notes = (*network_notes(gpu, _span(request, decoding)), *left_out(request.anchors, [held]), *(held.notes if held else ()))
    told = None if held is None else anchoring(held, request, model, gpu, form, load, (prefill, decoding))
    if told is not None:
        decoding, prefill = pulled(decoding, told), pulled(prefill, told) if prefill else None
    other = side_of(decoding, lengths, request)
    first = other if prefill is None else side_of(prefill, lengths, request)
    count = decoding.count + (prefill.count if prefill else 0)
    if count * min(request.max_sequences, load.arrival.size) > MOST_PLACES:
        mend = "Simulate fewer instances at a share of the load, or give --max-sequences."
        raise PerfModelError("too many instances for that many sequences", field="gpus", value=request.gpus, mend=mend)
    state = new_state(load.arrival, lengths.prompt, lengths.cached, lengths.output, count, request.max_sequences)
    served = _serve(state, first, other, rules_of(request, prefill, decoding), tell)
    if served != load.arrival.size:
        raise AssertionError(f"{served} of {load.arrival.size} requests were served")
    return Outcome(request, model, gpu, form, load, prefill, decoding, state, told, notes)


def _span(request: SimulationRequest, decoding: Instances) -> int:
    """GPUs that send each other messages: those of an instance, or all where caches travel."""
    return decoding.parallel.gpus if request.mode == "aggregated" else request.gpus


def _serve(state: State, first: Side, other: Side, rules: Rules, tell: Callable[[str], None] | None) -> int:
    """Run the compiled loop, beside this thread: Python notices a Ctrl-C in none that is within compiled code."""
    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(lambda: loop()(state, first, other, rules))
        try:
            if tell is not None and not wait([served], PATIENCE).done and not loop().signatures:  # type: ignore[attr-defined]
                tell("compiling the simulator, once: a minute or less")
            return served.result()
        finally:
            state.halt[0] = 1


def rules_of(request: SimulationRequest, prefill: Instances | None, decoding: Instances) -> Rules:
    """What is the same for all instances."""
    engine, rates = decoding.deployment.engine, decoding.deployment.rates
    return Rules(
        each=float(request.speculation.each),
        first=engine.first_us * MICROSECOND,
        interference=float(np.clip(engine.interference, 0.0, 1.0)),
        transfer=engine.transfer_us * MICROSECOND,
        wire=1.0 / float(rates.network[0] * engine.link),
        clients=request.concurrency or 0,
        prefillers=prefill.count if prefill else 0,
        turns=request.dispatch == "round-robin",
    )
