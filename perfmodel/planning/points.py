"""Points of a search: deployments under a load, with their steady state. Vectors over points."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from perfmodel.planning.candidates import Table
from perfmodel.planning.pulls import Places
from perfmodel.planning.types import Flags, Rows
from perfmodel.serving.anchored import lanes
from perfmodel.serving.engine import Engine
from perfmodel.serving.steady import Load, Side, aggregated, disaggregated
from perfmodel.serving.step import decode, step_time
from perfmodel.workload.expectation import Array

SATURATED = 0.85
"""Share of the time that prompts may take from running sequences; beyond it a queue grows and the steady state is none."""
PREFILL_FULL = 0.95
"""The same of prefill instances."""


@dataclass(frozen=True)
class Requests:
    """Mean tokens of a request: `prompt` new ones after `cached` ones, `output` answered."""

    prompt: float
    cached: float
    output: float

    def load(self, clients: Array) -> Load:
        """A closed loop of these requests."""
        return Load(clients, *(np.full_like(clients, value) for value in (self.prompt, self.cached, self.output)))

    @property
    def context(self) -> float:
        """Tokens that a running sequence has behind it, on average."""
        return self.cached + self.prompt + self.output / 2


@dataclass(frozen=True)
class Points:
    """Seconds, requests, GPUs; of all instances that serve as one: several aggregated ones only under a concurrency."""

    decode: Rows
    """Row of the table of the instances that decode."""
    prefill: Rows
    """Of those that run prompts; -1 where the same do."""
    batch: Array
    """Requests at a time of one instance that decodes."""
    decoders: Array
    prefillers: Array
    clients: Array
    ttft: Array
    tpot: Array
    gpus: Array
    steady: Flags
    """Whether prompts leave the instances time to answer; elsewhere a queue grows for ever."""
    output: float

    @property
    def latency(self) -> Array:
        """From a request to its last token."""
        return self.ttft + (self.output - 1) * self.tpot

    @property
    def requests_per_s(self) -> Array:
        """Answers a second that the clients get."""
        return self.clients / self.latency

    @property
    def tokens_per_s_per_gpu(self) -> Array:
        """Tokens answered."""
        return self.requests_per_s * self.output / self.gpus

    @property
    def disaggregated(self) -> Flags:
        """Whether prompts have instances of their own."""
        found: Flags = self.prefill >= 0
        return found

    def take(self, rows: Any) -> Points:
        """The points `rows`."""
        return Points(**{n: getattr(self, n)[rows] for n in COLUMNS}, output=self.output)

    def __len__(self) -> int:
        return len(self.batch)


COLUMNS = tuple(f.name for f in fields(Points) if f.name != "output")


def join(parts: list[Points]) -> Points:
    """All points of `parts`, in their order."""
    return Points(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in COLUMNS}, output=parts[0].output)


def together(table: Table, rows: Rows, batch: Array, copies: Array, requests: Requests, engine: Engine) -> Points:
    """Aggregated instances: `copies` of the deployment `rows` with `batch` requests at a time each."""
    sub = table.take(rows)
    split = lanes(sub.work.pp, batch)
    load = requests.load(batch / split)
    steady = aggregated(sub.work, sub.rates, engine, load, sub.most / split)
    running = np.maximum(steady.running / sub.work.dp, np.minimum(steady.running, 1.0))
    alone = step_time(sub.work, sub.rates, engine, decode(running, np.full_like(running, requests.context)))
    calm = (1.0 - alone / steady.tpot) < SATURATED
    none, zero = np.full(len(batch), -1), np.zeros_like(batch)
    ttft, tpot = sub.factors[:, :2].T * pulled(table, Places(rows, none, zero, zero, batch), requests)
    return Points(
        rows, none, batch, copies, zero, batch * copies, ttft * steady.ttft, tpot * steady.tpot, sub.gpus * copies,
        calm, requests.output,
    )  # fmt: skip


def apart(
    table: Table, prefill: Rows, prefillers: Array, decoding: Rows, decoders: Array, clients: Array, requests: Requests, engine: Engine
) -> Points:
    """Disaggregated instances: `prefillers` of the deployment `prefill` beside `decoders` of `decoding`, for `clients` in all."""
    first, second = table.take(prefill), table.take(decoding)
    an_instance = clients / decoders
    stages = lanes(second.work.pp, an_instance)
    sides = (
        Side(first.work, first.rates, prefillers * first.work.pp, first.most),
        Side(second.work, second.rates, decoders * stages, second.most / stages),
    )
    steady = disaggregated(*sides, engine, requests.load(clients))
    batch = np.ceil(np.maximum(steady.running / decoders, 1.0))
    gpus = prefillers * first.gpus + decoders * second.gpus
    ttft, tpot = second.factors[:, 2:].T * pulled(table, Places(decoding, prefill, decoders, prefillers, clients), requests)
    busy = clients / (steady.ttft + requests.output * steady.tpot) * steady.prefill / (prefillers * first.work.pp * first.work.dp)
    return Points(
        decoding, prefill, batch, decoders, prefillers, clients, ttft * steady.ttft, tpot * steady.tpot, gpus, busy < PREFILL_FULL,
        requests.output,
    )  # fmt: skip


def pulled(table: Table, places: Places, requests: Requests) -> Array:
    """[2, n] what a user's own measurements multiply TTFT and TPOT by; 1 without any."""
    if table.pulls is None:
        return np.ones((2, len(places.decode)))
    return table.pulls.at(places, requests.context, requests.prompt + requests.cached)[0]


def places_of(points: Points) -> Places:
    """Where points lie among measurements."""
    mixed = ~points.disaggregated
    decoders, prefillers = (np.where(mixed, 0.0, values) for values in (points.decoders, points.prefillers))
    return Places(points.decode, points.prefill, decoders, prefillers, np.where(mixed, points.batch, points.clients))
