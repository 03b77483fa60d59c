"""The queue of an instance, the sequences that run in it, and the memory of their caches; compiled."""

from __future__ import annotations

import numpy as np

from perfmodel.simulation.compiled import njit
from perfmodel.simulation.state import SUMS, Column, Rules, Side, State

PREEMPTED = SUMS.index("preempted")
SPARE = 0.01
"""Share of the room that stays free when a request is taken up, for the sequences that run: vLLM's watermark."""


@njit
def choose(s: State, rules: Rules, turn: Column, low: int, high: int) -> int:
    """The next in turn, or from there on the first with the fewest requests."""
    kind = 1 if low > 0 else 0
    start = low + int(turn[kind]) % (high - low)
    best = start
    if not rules.turns:
        for k in range(high - low):
            i = low + (start - low + k) % (high - low)
            if s.waiting[i] + s.running[i] + s.prompts[i] < s.waiting[best] + s.running[best] + s.prompts[best]:
                best = i
    turn[kind] = best - low + 1
    return best


@njit
def push(s: State, side: Side, i: int, r: int, ready: float) -> None:
    """Put a request at the end of an instance's queue, and end its steps where they reach the request."""
    s.ready[r] = ready
    s.follower[r] = -1
    alone = s.waiting[i] == 0
    if alone:
        s.head[i] = r
    else:
        s.follower[s.tail[i]] = r
    s.tail[i] = r
    s.waiting[i] += 1
    if not alone:
        return
    if np.isinf(s.ends[i]):
        s.begun[i], s.ends[i], s.steps[i] = ready, ready, 0
    elif s.running[i] < s.sequence.shape[1]:
        cut(s, i, ready)


@njit
def cut(s: State, i: int, time: float) -> None:
    """End a stretch of steps with the first that reaches `time`. Of n steps the time is n pace + growth n (n - 1) / 2."""
    if s.steps[i] <= 1 or s.ends[i] <= time:
        return
    a, b, c = s.growth[i] / 2, s.pace[i] - s.growth[i] / 2, time - s.begun[i]
    steps = 2 * c / (b + np.sqrt(max(b * b + 4 * a * c, 0.0)))
    n = max(min(int(np.ceil(steps - 1e-9)), s.steps[i]), 1)
    s.steps[i] = n
    s.ends[i] = s.begun[i] + n * s.pace[i] + s.growth[i] * n * (n - 1) / 2


@njit
def join(s: State, rules: Rules, i: int, r: int) -> None:
    """Let a request decode whose context is all in the cache."""
    s.sequence[i, s.running[i]] = r
    s.running[i] += 1
    s.total[i] += s.past[r]
    s.base[r] = s.past[r] - s.stepped[i] * rules.each
    s.finish[r] = s.stepped[i] + int(np.ceil(s.left[r] / rules.each - 1e-9))


@njit
def leave(s: State, rules: Rules, i: int, j: int) -> None:
    """Take the sequence at place j out of the running ones."""
    s.total[i] -= s.base[s.sequence[i, j]] + s.stepped[i] * rules.each
    s.running[i] -= 1
    s.sequence[i, j] = s.sequence[i, s.running[i]]


@njit
def cache_of(side: Side, context: float) -> float:
    """Bytes of a sequence of `context` tokens."""
    bytes_ = side.state
    for k in range(side.stored.size):
        bytes_ += side.stored[k] * min(context, side.kept[k])
    return bytes_


@njit
def caches(s: State, side: Side, rules: Rules, i: int) -> tuple[float, float]:
    """Bytes of the running sequences of an instance, and how many more a step takes at most."""
    n = s.running[i]
    if not np.isnan(side.slope):
        return side.state * n + side.slope * s.total[i], side.slope * rules.each * n
    bytes_, growth, done = side.state * n, 0.0, s.stepped[i] * rules.each
    for j in range(n):
        context = s.base[s.sequence[i, j]] + done
        for k in range(side.stored.size):
            bytes_ += side.stored[k] * min(context, side.kept[k])
            growth += side.stored[k] * rules.each if context < side.kept[k] else 0.0
    return bytes_, growth


@njit
def make_room(s: State, side: Side, rules: Rules, i: int) -> None:
    """Where the next step's tokens do not fit, put the youngest sequences back into the queue: their caches are computed again."""
    while s.running[i] > 0:
        bytes_, growth = caches(s, side, rules, i)
        if bytes_ + s.held[i] + growth <= side.room:
            return
        place = 0
        for j in range(s.running[i]):
            place = j if s.sequence[i, j] > s.sequence[i, place] else place
        r = s.sequence[i, place]
        s.past[r] = 0
        s.todo[r] = int(s.base[r] + s.stepped[i] * rules.each)
        s.left[r] = max((s.finish[r] - s.stepped[i]) * rules.each, 1.0)
        leave(s, rules, i, place)
        push_front(s, i, r)
        s.sums[PREEMPTED] += 1


@njit
def push_front(s: State, i: int, r: int) -> None:
    """Put a request at the head of the queue, or behind a head whose prompt is half computed and holds memory."""
    head = s.head[i]
    if head >= 0 and s.holds[head] > 0:
        s.follower[r], s.follower[head] = s.follower[head], r
        s.tail[i] = r if s.tail[i] == head else s.tail[i]
    else:
        s.follower[r], s.head[i] = head, r
        s.tail[i] = r if head < 0 else s.tail[i]
    s.waiting[i] += 1


@njit
def pop(s: State, i: int) -> None:
    """Take the head out of the queue."""
    r = s.head[i]
    s.head[i] = s.follower[r]
    s.follower[r] = -1
    s.waiting[i] -= 1
    if s.waiting[i] == 0:
        s.tail[i] = -1


@njit
def admit(s: State, side: Side, rules: Rules, i: int, now: float) -> tuple[float, float]:
    """Take up requests from the queue in its order, and the prompt tokens of the next step.

    Returns the most tokens of one prompt among them, and how many tokens a mean one of them looks back on.
    """
    longest, seen, prompts = 0, 0.0, 0
    s.tokens[i], s.blocked[i] = 0, 0
    while s.waiting[i] > 0 and s.ready[s.head[i]] <= now and s.running[i] + s.prompts[i] < s.sequence.shape[1]:
        r = s.head[i]
        take = min(s.todo[r], side.most_tokens, int(side.most_tokens * side.ranks) - s.tokens[i])
        if s.todo[r] > 0 and (take <= 0 or prompts >= side.most_prompts * side.ranks):
            break
        if s.holds[r] == 0 and not reserve(s, side, rules, i, r):
            s.blocked[i] = 1
            break
        seen += take * (s.past[r] + take / 2)
        longest = max(longest, take)
        s.tokens[i] += take
        s.todo[r] -= take
        s.past[r] += take
        if s.todo[r] > 0:
            break
        pop(s, i)
        prompts += 1 if take > 0 else 0
        settle(s, rules, i, r, take > 0)
    return longest, seen / max(s.tokens[i], 1)


@njit
def settle(s: State, rules: Rules, i: int, r: int, computed: bool) -> None:
    """Let a request that was taken up whole decode: at once, or when the step that computes the end of its prompt is done."""
    if computed:
        s.ending[i, s.prompts[i]] = r
        s.prompts[i] += 1
    else:
        s.held[i] -= s.holds[r]
        s.holds[r] = 0.0
        join(s, rules, i, r)


@njit
def reserve(s: State, side: Side, rules: Rules, i: int, r: int) -> bool:
    """Reserve memory for a request's prompt and first token, if it leaves enough to those that run."""
    bytes_, growth = caches(s, side, rules, i)
    wanted = cache_of(side, s.past[r] + s.todo[r] + 1.0)
    used = bytes_ + s.held[i]
    if used > 0 and used + wanted + growth + SPARE * side.room > side.room:
        return False
    s.holds[r] = wanted
    s.held[i] += wanted
    return True
