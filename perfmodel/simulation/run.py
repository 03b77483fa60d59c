"""`perfmodel.simulate(...)` returns the object that `perfmodel simulate --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec
from perfmodel.scenario import as_gpu, default_format
from perfmodel.simulation.arrivals import arrival_times
from perfmodel.simulation.deploy import Instances, Lengths, instances, side_of
from perfmodel.simulation.engine import loop
from perfmodel.simulation.lengths import draw_lengths
from perfmodel.simulation.request import SimulationRequest
from perfmodel.simulation.state import Rules, State, new_state
from perfmodel.units import MICROSECOND
from perfmodel.validated import validate
from perfmodel.workload import load_model
from perfmodel.workload.expectation import Array
from perfmodel.workload.model import ModelSpec

DEFAULT_REQUESTS = 2000


@dataclass(frozen=True)
class Load:
    """What comes when."""

    arrival: Array
    """Seconds; of a closed loop only the first of each client."""
    lengths: Lengths
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """A simulation that is done."""

    request: SimulationRequest
    load: Load
    prefill: Instances | None
    decoding: Instances
    state: State
    room: float
    """Bytes for caches of an instance that decodes, of all attention ranks."""


def draw_load(request: SimulationRequest) -> Load:
    """Arrivals and lengths of `request`. Each has random numbers of its own: another choice for one leaves the others as they were."""
    streams = [np.random.default_rng(seed) for seed in np.random.SeedSequence(request.seed).spawn(3)]
    count = request.requests or DEFAULT_REQUESTS
    assert request.isl is not None and request.osl is not None  # noqa: PT018  (checked in the request)
    prompt = draw_lengths(request.lengths, request.isl, count, streams[1])
    output = draw_lengths(request.lengths, request.osl, count, streams[2])
    arrival = np.zeros(count) if request.rate is None else arrival_times(request.arrivals, request.rate, count, streams[0])
    return Load(arrival, Lengths(prompt, np.minimum(np.floor(prompt * request.prefix_cache), prompt - 1), output))


def execute(request: SimulationRequest, model: ModelSpec, gpu: GpuSpec, form: str, load: Load) -> Outcome:
    """Run the simulation."""
    prefill = None
    if request.prefill_gpus is not None:
        prefill = instances(request, model, gpu, form, request.prefill_gpus)
    decoding = instances(request, model, gpu, form, request.gpus - (request.prefill_gpus or 0))
    other = side_of(decoding, load.lengths, request)
    first = other if prefill is None else side_of(prefill, load.lengths, request)
    lengths, count = load.lengths, (prefill.count if prefill else 0) + decoding.count
    state = new_state(load.arrival, lengths.prompt, lengths.cached, lengths.output, count, request.max_sequences)
    served = loop()(state, first, other, rules_of(request, prefill, decoding))
    if served != load.arrival.size:
        raise AssertionError(f"{served} of {load.arrival.size} requests were served")
    return Outcome(request, load, prefill, decoding, state, other.room)


def rules_of(request: SimulationRequest, prefill: Instances | None, decoding: Instances) -> Rules:
    """What is the same for all instances."""
    engine, rates = decoding.deployment.engine, decoding.deployment.rates
    return Rules(
        each=request.speculation.each,
        first=engine.first_us * MICROSECOND,
        interference=engine.interference,
        transfer=engine.transfer_us * MICROSECOND,
        wire=1.0 / float(rates.network[0] * engine.link),
        clients=request.concurrency or 0,
        prefillers=prefill.count if prefill else 0,
        turns=request.dispatch == "round-robin",
    )


def simulate(
    model: str | Path | ModelSpec, gpu: str | Path | GpuSpec, *, changes: Sequence[str] = (), rates: Sequence[float] = (), **options: Any
) -> dict[str, Any]:
    """Serve requests with `model` on GPUs, and give percentiles of what clients see.

    options: fields of SimulationRequest. `rates`: several loads, for a curve. Raises PerfModelError for anything that does not fit.
    """
    from perfmodel.simulation.summary import as_object

    request = validate(SimulationRequest, {name: value for name, value in options.items() if value is not None})
    request.check()
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    if spec.vocab is None:
        raise PerfModelError("is one layer, not a whole model", field="MODEL", value=spec.id, mend="Choose one of `perfmodel models`.")
    gpu_spec = as_gpu(gpu, changes)
    form = request.format or default_format(spec.format, gpu_spec)
    outcome = execute(request, spec, gpu_spec, form, draw_load(request))
    return as_object(outcome, spec, gpu_spec, form)
