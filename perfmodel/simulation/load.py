"""What comes when: drawn at random, or read from a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.simulation.arrivals import arrival_times
from perfmodel.simulation.lengths import draw_lengths
from perfmodel.simulation.request import MOST_REQUESTS, SimulationRequest
from perfmodel.simulation.traces import read_trace
from perfmodel.workload.expectation import Array

DEFAULT_REQUESTS = 2000
LONGEST_S = 1e9
"""Of arrivals: beyond it, 64 bits tell no microseconds apart."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of the requests."""

    prompt: Array
    cached: Array
    """Those of the prompt that are found in the cache; at least the last one is not."""
    output: Array


@dataclass(frozen=True)
class Load:
    """The requests."""

    arrival: Array
    """Seconds, in order; all 0 in a closed loop, whose clients the simulation itself lets come back."""
    lengths: Lengths
    notes: tuple[str, ...] = ()


def draw_load(request: SimulationRequest) -> Load:
    """Arrivals and lengths of `request`. Raises PerfModelError for a trace that is none."""
    load = _traced(request) if request.trace is not None else _drawn(request)
    if load.arrival[-1] > LONGEST_S:
        field, value = ("trace", request.trace) if request.rate is None else ("rate", request.rate)
        mend = "Give a higher rate or fewer requests."
        raise PerfModelError("lets requests come for more than 30 years", field=field, value=value, mend=mend)
    return load


def _drawn(request: SimulationRequest) -> Load:
    """Each of arrivals, prompts, answers has random numbers of its own: another choice for one leaves the others as they were."""
    streams = [np.random.default_rng(seed) for seed in np.random.SeedSequence(request.seed).spawn(3)]
    count = request.requests or DEFAULT_REQUESTS
    prompt = draw_lengths(request.lengths, request.isl or 1, count, streams[1])
    output = draw_lengths(request.lengths, request.osl or 1, count, streams[2])
    arrival = np.zeros(count) if request.rate is None else arrival_times(request.arrivals, request.rate, count, streams[0])
    return Load(arrival, _with_cache(prompt, output, request.prefix_cache))


def _traced(request: SimulationRequest) -> Load:
    """The trace, sped up or slowed down to a rate that is asked for."""
    path = str(request.trace)
    trace = read_trace(path, request.requests or MOST_REQUESTS)
    arrival, notes = trace.arrival, [f"{trace.arrival.size:,} requests of a trace of the {trace.form} form"]
    if trace.skipped:
        notes.append(f"{trace.skipped:,} requests without a prompt or an answer are left out")
    if request.rate is not None:
        if arrival[-1] <= 0:
            mend = "Leave the rate out: all requests come at once."
            raise PerfModelError("its requests have no rate to scale", file=path, field="rate", value=request.rate, mend=mend)
        arrival = arrival * ((arrival.size - 1) / arrival[-1] / request.rate)
    return Load(arrival, _with_cache(trace.prompt, trace.output, request.prefix_cache), tuple(notes))


def _with_cache(prompt: Array, output: Array, share: float) -> Lengths:
    return Lengths(prompt, np.minimum(np.floor(prompt * share), prompt - 1), output)
