"""Steady state of a service under a closed loop of clients: TTFT, TPOT, what runs at a time.

Running sequences decode step by step; each arriving prompt is put into steps of its own kind and delays them. Equations: the closed form
of a queue whose server slows down with what it serves; see docs/serving.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.serving.engine import Engine
from perfmodel.serving.step import Batch, Rates, decode, step_time
from perfmodel.serving.work import Work
from perfmodel.units import MICROSECOND
from perfmodel.workload.expectation import Array

ROUNDS = 24
"""Of the fixed point in the sequences that run, and in the prompts that share a step."""
CROWD_TOKENS = 8192.0
"""Of prompts that share a step where many wait: the engines' usual limit."""


@dataclass(frozen=True)
class Load:
    """Requests in a closed loop, vectors over deployments: `clients` of each instance send the next as soon as one is answered."""

    clients: Array
    prompt: Array
    """Mean tokens of a prompt that are not in the prefix cache."""
    cached: Array
    """Mean tokens of it that are."""
    output: Array
    """Mean tokens of an answer."""


@dataclass(frozen=True)
class Steady:
    """Seconds, and sequences; of one instance."""

    ttft: Array
    tpot: Array
    running: Array
    """Sequences that decode at a time."""
    prefill: Array
    """Seconds of a prompt alone."""


@dataclass(frozen=True)
class Side:
    """The instances that run prompts, or those that decode; vectors over deployments."""

    work: Work
    rates: Rates
    instances: Array
    most: Array
    """Sequences that fit the memory of one."""


def aggregated(work: Work, rates: Rates, engine: Engine, load: Load, most: Array) -> Steady:
    """Steady state where the same GPUs run prompts and decode; `most` sequences of an instance fit their memory at a time."""
    context = load.cached + load.prompt + load.output / 2
    prefill = prompt_time(work, rates, engine, load)
    burst = engine.burst * 0.5 * load.clients * crowded_time(work, rates, engine, load) / work.dp
    fixed, each = engine.first_us * MICROSECOND + prefill + burst, 0.5 + _queue(load, most, 1.0)  # TTFT = fixed + each TPOT
    others = np.maximum(load.clients - 1, 0.0)
    waits = engine.interference * (1.0 - 0.5 * np.minimum(engine.burst, 1.0)) * others
    running, sharing = np.minimum(load.clients, most), np.ones_like(prefill)
    ttft, tpot = prefill, np.zeros_like(prefill)
    for _ in range(ROUNDS):
        a_rank = np.maximum(running / work.dp, np.minimum(running, 1.0))
        alone = step_time(work, rates, engine, decode(a_rank, context))
        mixed = step_time(work, rates, engine, Batch(a_rank, context, load.prompt * sharing, load.cached, sharing))
        added = np.maximum(mixed - alone, 0.0) / sharing / work.dp  # prompts of several attention ranks run side by side
        # TPOT = alone / (1 - waits added / (TTFT + output TPOT)), for TPOT
        whole = load.output + each
        tpot = _root(whole, fixed - waits * added - alone * whole, -alone * fixed)
        ttft = fixed + each * tpot
        latency = ttft + load.output * tpot
        sharing = 0.5 * (sharing + np.clip(others / latency / work.dp * mixed, 1.0, most_sharing(work, load)))
        wanted = load.clients * load.output * tpot / latency
        running = 0.5 * (running + np.clip(wanted, np.minimum(load.clients, 1.0), most))
    return Steady(ttft, tpot, running, prefill)


def disaggregated(prefill: Side, decoding: Side, engine: Engine, load: Load) -> Steady:
    """Steady state where some instances run prompts and hand their caches to others that decode; figures of all of them together."""
    context = load.cached + load.prompt + load.output / 2
    alone = prompt_time(prefill.work, prefill.rates, engine, load)
    servers = prefill.instances * prefill.work.dp
    a_prompt = crowded_time(prefill.work, prefill.rates, engine, load) / servers
    burst = engine.burst * 0.5 * load.clients * a_prompt
    before = (engine.first_us + engine.transfer_us) * MICROSECOND + alone + burst
    most = decoding.most * decoding.instances
    together = np.maximum(load.clients - 1, 0.0) * a_prompt
    running = np.minimum(load.clients, most)
    ttft, tpot = alone, np.zeros_like(alone)
    for _ in range(ROUNDS):
        an_instance = running / decoding.instances
        a_rank = np.maximum(an_instance / decoding.work.dp, np.minimum(an_instance, 1.0))
        tpot = step_time(decoding.work, decoding.rates, engine, decode(a_rank, context))
        # latency = calm + wait busy / (1 - busy) a_prompt with busy = together / latency, for the latency
        calm = before + tpot + _queue(load, most, tpot) + load.output * tpot
        latency = _root(1.0, -(calm + together), together * (calm - engine.wait * a_prompt))
        ttft = latency - load.output * tpot
        running = 0.5 * (running + np.minimum(load.clients * load.output * tpot / latency, most))
    return Steady(ttft, tpot, running, alone)


def _root(a: Array | float, b: Array, c: Array) -> Array:
    """The larger x with a x^2 + b x + c = 0."""
    result: Array = (np.sqrt(np.maximum(b * b - 4.0 * a * c, 0.0)) - b) / (2.0 * a)
    return result


def _queue(load: Load, most: Array, tpot: Array | float) -> Array:
    """Seconds that a request waits because the cache is full: those beyond `most` are served one after the other."""
    result: Array = np.maximum(load.clients - most, 0.0) * load.output * tpot / np.maximum(most, 1.0)
    return result


def prompt_time(work: Work, rates: Rates, engine: Engine, load: Load) -> Array:
    """Seconds of a prompt that runs alone."""
    zero = np.zeros_like(load.prompt)
    return step_time(work, rates, engine, Batch(zero, zero, load.prompt, load.cached))


def crowded_time(work: Work, rates: Rates, engine: Engine, load: Load) -> Array:
    """Seconds of a prompt among as many waiting ones as share a step."""
    zero = np.zeros_like(load.prompt)
    together = most_sharing(work, load)
    result: Array = step_time(work, rates, engine, Batch(zero, zero, load.prompt * together, load.cached, together)) / together
    return result


def most_sharing(work: Work, load: Load) -> Array:
    """Prompts that share a step at most: those that fill its tokens, or all there are."""
    fill = np.floor(CROWD_TOKENS / np.maximum(load.prompt, 1.0))
    result: Array = np.clip(fill, 1.0, np.maximum(load.clients / work.dp, 1.0))
    return result
