"""The compiled loop. Each instance runs steps: every running sequence gains a token, and prompts of the queue are computed beside them.

Steps between two events (an arrival, the end of an answer, a full memory) are alike but for the growing context: they are taken together,
and a stretch of steps that was begun is cut where a request comes. So the cost is by event, not by token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from perfmodel.simulation.compiled import kept, njit, sources
from perfmodel.simulation.queues import admit, cache_of, caches, choose, cut, join, leave, make_room, push
from perfmodel.simulation.state import SUMS, Column, Rules, Side, State
from perfmodel.simulation.table import a_rank, interpolate_decode, interpolate_mixed

FULL, BYTES, PEAK, STEPS, SEQUENCES, CONTEXT, DECODING, _, PROMPTS, PROMPT_TOKENS = range(len(SUMS))
LONGEST = 512
"""Steps of a stretch at most: within it the time of a step is taken to grow evenly."""


@cache
def loop() -> Callable[[State, Side, Side, Rules], int]:
    """The compiled `run`."""
    stamp = sources()

    @kept
    def whole(s: State, first: Side, other: Side, rules: Rules) -> int:
        return run(s, first, other, rules) if stamp >= 0 else 0  # names the stamp, so that numba's cache tells sources apart

    return whole


@njit
def run(s: State, first: Side, other: Side, rules: Rules) -> int:
    """Serve all requests; returns how many were. `first`: the prefill instances, or all; `other`: those that decode, or all."""
    requests = s.arrival.size
    known = min(rules.clients, requests) if rules.clients > 0 else requests
    come, completed, turn = 0, 0, np.zeros(2, np.int64)
    while completed < requests and s.halt[0] == 0:
        i = int(np.argmin(s.ends))
        now = s.ends[i]
        if come < known and s.arrival[come] <= now:
            enter(s, first, rules, turn, come, s.arrival[come], s.arrival[come] + rules.first)
            come += 1
            continue
        if np.isinf(now):
            break  # nothing can happen any more: a mistake of ours, which the caller reports
        side = first if i < rules.prefillers else other
        ended = finish(s, side, rules, i, now)
        if i < rules.prefillers:
            hand_over(s, side, other, rules, turn, i, now)
        completed += ended
        for _ in range(ended if known < requests else 0):
            s.arrival[known] = max(s.arrival[known - 1], now)
            known = min(known + 1, requests)
            if known == requests:
                break
        begin(s, side, rules, i, now)
    return completed


@njit
def enter(s: State, side: Side, rules: Rules, turn: Column, r: int, now: float, ready: float) -> None:
    """Send a request to an instance that runs prompts."""
    high = rules.prefillers if rules.prefillers > 0 else s.ends.size
    push(s, side, choose(s, rules, turn, 0, high), r, ready)


@njit
def hand_over(s: State, side: Side, other: Side, rules: Rules, turn: Column, i: int, now: float) -> None:
    """Send the requests whose prompts have ended, with their caches, to instances that decode."""
    for j in range(s.prompts[i]):
        r = s.ending[i, j]
        s.held[i] -= s.holds[r]
        s.holds[r] = 0.0
        ready = now + rules.transfer + rules.wire * cache_of(side, s.past[r])
        push(s, other, choose(s, rules, turn, rules.prefillers, s.ends.size), r, ready)
    s.prompts[i] = 0


@njit
def finish(s: State, side: Side, rules: Rules, i: int, now: float) -> int:
    """End the steps under way: count them, let go who has all tokens, let those join whose prompts have ended. Returns how many went."""
    steps = s.steps[i]
    if steps == 0:
        return 0
    account(s, side, rules, i, now)
    s.stepped[i] += steps
    s.total[i] += steps * rules.each * s.running[i]
    went, j = 0, 0
    while j < s.running[i]:
        r = s.sequence[i, j]
        if s.finish[r] <= s.stepped[i]:
            s.done[r] = now
            went += 1
            leave(s, rules, i, j)
        else:
            j += 1
    return went if i < rules.prefillers else went + join_prompts(s, rules, i, now)


@njit
def account(s: State, side: Side, rules: Rules, i: int, now: float) -> None:
    """Add the steps that end to the sums."""
    seconds, steps, n = now - s.begun[i], s.steps[i], s.running[i]
    s.busy[i] += seconds
    s.sums[FULL] += seconds * s.blocked[i]
    if i >= rules.prefillers:
        bytes_, growth = caches(s, side, rules, i)
        bytes_ += s.held[i]
        s.sums[BYTES] += seconds * (bytes_ + growth * steps / 2)
        s.sums[PEAK] = max(s.sums[PEAK], bytes_ + growth * steps)
    if s.tokens[i] > 0:
        s.sums[PROMPTS] += 1
        s.sums[PROMPT_TOKENS] += s.tokens[i]
    else:
        s.sums[STEPS] += steps
        s.sums[SEQUENCES] += steps * n
        s.sums[CONTEXT] += steps * (s.total[i] + rules.each * n * (steps - 1) / 2)
        s.sums[DECODING] += seconds


@njit
def join_prompts(s: State, rules: Rules, i: int, now: float) -> int:
    """Let the requests whose prompts have ended decode; returns how many have no more tokens to come."""
    went = 0
    for j in range(s.prompts[i]):
        r = s.ending[i, j]
        s.held[i] -= s.holds[r]
        s.holds[r] = 0.0
        if np.isnan(s.first[r]):
            s.first[r] = now + s.rest[i]
        s.left[r] -= 1
        if s.left[r] <= 0:
            s.done[r] = now + s.rest[i]
            went += 1
        else:
            s.past[r] += 1
            join(s, rules, i, r)
    s.prompts[i] = 0
    return went


@njit
def begin(s: State, side: Side, rules: Rules, i: int, now: float) -> None:
    """Begin the next step, or as many as are alike, or wait."""
    make_room(s, side, rules, i)
    before = s.running[i]
    longest, seen = admit(s, side, rules, i, now)
    n = s.running[i]
    s.begun[i], s.steps[i], s.growth[i], s.rest[i] = now, 1, 0.0, 0.0
    if s.tokens[i] > 0:
        mix(s, side, rules, i, longest, seen)
    elif n > 0:
        stretch(s, side, rules, i)
    else:
        s.steps[i] = 0
        s.ends[i] = max(s.ready[s.head[i]], now) if s.waiting[i] > 0 and s.ready[s.head[i]] > now else np.inf
    for j in range(before, n):  # their caches came from prefill instances: the first token is this step's
        if np.isnan(s.first[s.sequence[i, j]]):
            s.first[s.sequence[i, j]] = now + s.pace[i]


@njit
def mix(s: State, side: Side, rules: Rules, i: int, longest: float, seen: float) -> None:
    """Plan a step with prompts. Running sequences wait for a part of what these take on the mean rank; a prompt takes its rank's time."""
    n, context, mean = s.running[i], s.total[i] / max(s.running[i], 1), s.tokens[i] / side.ranks
    whole = mixed_time(side, n, context, max(mean, longest), seen)
    s.pace[i] = whole
    if n > 0:
        alone = decode_time(side, n, context)
        s.pace[i] = alone + rules.interference * max(mixed_time(side, n, context, mean, seen) - alone, 0.0)
    s.rest[i] = max(whole - s.pace[i], 0.0)
    s.ends[i] = s.begun[i] + s.pace[i]


@njit
def stretch(s: State, side: Side, rules: Rules, i: int) -> None:
    """Plan decode steps up to the next end of an answer, to where memory is full, or to the next request."""
    n = s.running[i]
    steps = LONGEST
    for j in range(n):
        steps = min(steps, s.finish[s.sequence[i, j]] - s.stepped[i])
    bytes_, growth = caches(s, side, rules, i)
    if growth * steps > side.room - s.held[i] - bytes_:
        steps = max(int((side.room - s.held[i] - bytes_) / growth), 1)
    context = s.total[i] / n
    s.pace[i] = decode_time(side, n, context)
    if steps > 1:
        s.growth[i] = (decode_time(side, n, context + (steps - 1) * rules.each) - s.pace[i]) / (steps - 1)
    s.steps[i] = steps
    s.ends[i] = s.begun[i] + steps * s.pace[i] + s.growth[i] * steps * (steps - 1) / 2
    if s.waiting[i] > 0 and s.ready[s.head[i]] > s.begun[i]:
        cut(s, i, s.ready[s.head[i]])


@njit
def decode_time(side: Side, n: int, context: float) -> float:
    """Seconds of a step of n sequences without a prompt."""
    return interpolate_decode(side.sequences, side.context, side.decode, a_rank(n, side.ranks), context)


@njit
def mixed_time(side: Side, n: int, context: float, prompt: float, seen: float) -> float:
    """Seconds of a step of n sequences with `prompt` tokens of the fullest rank."""
    axes = (side.sequences, side.context, side.prompt, side.seen)
    return interpolate_mixed(axes, side.mixed, (a_rank(n, side.ranks), context, prompt, seen))
