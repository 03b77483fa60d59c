"""What the compiled loop reads and writes: NumPy arrays and numbers, nothing else."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.workload.expectation import Array

Column = NDArray[Any]
"""Numbers, whole or not."""


class Side(NamedTuple):
    """The instances of one kind: those that do all, that only run prompts, or that only decode. Figures of one instance."""

    sequences: Array
    """Grid of the step times: sequences of an attention rank [ns], from 0."""
    context: Array
    """Their mean context, tokens [nc]."""
    prompt: Array
    """Prompt tokens of a rank [np]."""
    seen: Array
    """Tokens before a mean token of the prompt [nq]."""
    decode: Array
    """Seconds of a step without a prompt [ns, nc]."""
    mixed: Array
    """Seconds of a step with one [ns, nc, np, nq]."""
    stored: Array
    """Bytes of cache that a token of the context takes, by kind of layer [spans]."""
    kept: Array
    """Tokens of the context that such layers keep at most [spans]."""
    slope: float
    """Sum of `stored` where no layer forgets; NaN where some do, and the bytes have to be summed over the sequences."""
    state: float
    """Bytes of a sequence of any length."""
    room: float
    """Bytes for caches, of all attention ranks."""
    ranks: float
    """Attention ranks."""
    most_sequences: int
    most_tokens: int
    """Prompt tokens of a step and rank."""
    most_prompts: int
    """Prompts of a step and rank."""


class Rules(NamedTuple):
    """What is the same for all instances."""

    each: float
    """Tokens that a sequence gains in a decode step: 1 without speculation."""
    first: float
    """Seconds from arrival to queue, and from the first token to the client."""
    interference: float
    """Share of a prompt's time that running sequences wait for it."""
    transfer: float
    """Seconds of a cache's way from prefill to decode, and more for each byte:"""
    wire: float
    clients: int
    """Of a closed loop; 0 where arrivals are given."""
    prefillers: int
    """Instances, from 0 on, that only run prompts."""
    turns: bool
    """Requests go to the instances in turn; else to the one with the fewest."""


class State(NamedTuple):
    """All that changes. First by request [requests]."""

    arrival: Column
    """Seconds."""
    ready: Column
    """From when on its instance may take it up."""
    first: Column
    """The first token; NaN before it."""
    done: Column
    """The last one."""
    output: Column
    """Tokens of the answer."""
    todo: Column
    """Tokens of the prompt that are still to be computed, and"""
    past: Column
    """those before them that are in the cache."""
    left: Column
    """Tokens of the answer that are still to come when it joins the running ones."""
    base: Column
    """Its context, less what its instance's steps had given each sequence until it joined."""
    finish: Column
    """Number of the instance's step that ends it."""
    follower: Column
    """The next in the queue, -1 at its end."""
    holds: Column
    """Bytes reserved for a prompt that is being computed."""

    # By instance [instances].
    ends: Column
    """When its steps under way end; infinite while it idles."""
    begun: Column
    steps: Column
    """How many they are; 0 where it only waits for a request to be ready."""
    pace: Column
    """Seconds of the first of them, and how much longer each next one takes:"""
    growth: Column
    rest: Column
    """Seconds after the step until the first tokens of its prompts."""
    tokens: Column
    """Prompt tokens in it."""
    stepped: Column
    """Steps done."""
    running: Column
    """Sequences."""
    total: Column
    """Tokens of context of them all."""
    held: Column
    """Bytes reserved for prompts."""
    prompts: Column
    """Prompts that end with the step."""
    waiting: Column
    """Requests in the queue."""
    head: Column
    tail: Column
    blocked: Column
    """1 where a request waits for memory."""
    busy: Column
    """Seconds in steps."""

    # By instance and place [instances, most_sequences].
    sequence: Column
    """Requests that run."""
    ending: Column
    """Requests whose prompt ends with the step."""

    sums: Column
    """See SUMS."""
    halt: Column
    """1 where the simulation is to end early."""


SUMS = ("full", "bytes", "peak", "steps", "sequences", "context", "decoding", "preempted", "prompts", "prompt_tokens")
"""Sums over all steps: seconds a request waited for memory, bytes x seconds and most bytes of caches; of steps without
prompts: their number, sequences, tokens of context, seconds; preempted requests; steps with prompts, and tokens of these."""


def new_state(arrival: Array, prompt: Array, cached: Array, output: Array, instances: int, most_sequences: int) -> State:
    """Everybody still to come, all instances idle."""
    n, places = arrival.size, min(most_sequences, arrival.size)
    floats = {name: np.zeros(n) for name in ("ready", "base", "holds")}
    unknown = {name: np.full(n, np.nan) for name in ("first", "done")}
    seconds = ("begun", "pace", "growth", "rest", "total", "held", "busy")
    counts = ("steps", "tokens", "stepped", "running", "prompts", "waiting", "blocked")
    return State(
        arrival=arrival.astype(float), **floats, **unknown, output=output.astype(np.int64), todo=(prompt - cached).astype(np.int64),
        past=cached.astype(np.int64), left=output.astype(float), finish=np.zeros(n, np.int64), follower=np.full(n, -1),
        ends=np.full(instances, np.inf), **{name: np.zeros(instances) for name in seconds},
        **{name: np.zeros(instances, np.int64) for name in counts}, head=np.full(instances, -1), tail=np.full(instances, -1),
        sequence=np.zeros((instances, places), np.int64), ending=np.zeros((instances, places), np.int64), sums=np.zeros(len(SUMS)),
        halt=np.zeros(1, np.int64),
    )  # fmt: skip
