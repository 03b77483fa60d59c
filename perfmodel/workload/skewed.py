"""Skewed routing: token counts drawn from a power law or read from a file, and experts of unequal popularity (Zipf)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.workload.counts import read_counts
from perfmodel.workload.expectation import Array, expected_active, expected_tiles
from perfmodel.workload.loads import CountLoad, Load
from perfmodel.workload.placement import place
from perfmodel.workload.routing import Problem, Routing

DRAWS = 5
"""Samples of the power law that are averaged, as in the public collector of measurements."""
SEED = 20260101
COUNTS_AT_ONCE = 2**17
"""Experts of all rows at once: their counts fit a core's cache."""
REMEMBERED = 64
"""Token counts of a shape up to which its loads are kept for the next question."""


@dataclass(frozen=True)
class UnequalLoad:
    """Local experts that tokens pick with unequal chances: `probability` [n, local experts], `draws` tokens [n]."""

    draws: Array
    probability: Array
    tokens: Array

    @property
    def pairs(self) -> Array:
        """Expected pairs."""
        total: Array = self.draws * self.probability.sum(-1)
        return total

    @property
    def active(self) -> Array:
        """Expected experts with tokens."""
        total: Array = expected_active(self.draws[:, None], self.probability).sum(-1)
        return total

    def tiles(self, rows: int) -> Array:
        """Expected tiles."""
        draws = np.broadcast_to(self.draws[:, None], self.probability.shape)
        each = expected_tiles(draws.ravel(), self.probability.ravel(), (rows,))[0]
        total: Array = each.reshape(self.probability.shape).sum(-1)
        return total


@dataclass(frozen=True)
class JoinedLoad:
    """Loads of several groups of rows put back into the order of the rows: `parts` are (row index, load)."""

    parts: tuple[tuple[np.ndarray, Load], ...]

    def _join(self, values: list[Array]) -> Array:
        out = np.empty(sum(index.size for index, _ in self.parts))
        for (index, _), value in zip(self.parts, values, strict=True):
            out[index] = value
        return out

    @property
    def pairs(self) -> Array:
        """Pairs."""
        return self._join([load.pairs for _, load in self.parts])

    @property
    def active(self) -> Array:
        """Experts with tokens."""
        return self._join([load.active for _, load in self.parts])

    @property
    def tokens(self) -> Array:
        """Tokens with an expert on the rank."""
        return self._join([load.tokens for _, load in self.parts])

    def tiles(self, rows: int) -> Array:
        """Tiles."""
        return self._join([load.tiles(rows) for _, load in self.parts])


@dataclass(frozen=True)
class TabulatedLoad:
    """What a load says, worked out once for rows that are alike: row i is entry `place[i]` of the tables."""

    place: np.ndarray
    table: tuple[Array, ...]
    """Pairs, active experts, tokens, then tiles for each of `heights`."""
    heights: tuple[int, ...]

    @property
    def pairs(self) -> Array:
        """Pairs."""
        pairs: Array = self.table[0][self.place]
        return pairs

    @property
    def active(self) -> Array:
        """Experts with tokens."""
        active: Array = self.table[1][self.place]
        return active

    @property
    def tokens(self) -> Array:
        """Tokens with an expert on the rank."""
        tokens: Array = self.table[2][self.place]
        return tokens

    def tiles(self, rows: int) -> Array:
        """Tiles; `rows` must be one of `heights`."""
        tiles: Array = self.table[3 + self.heights.index(rows)][self.place]
        return tiles


def skewed_load(routing: Routing, problem: Problem, menu: tuple[int, ...] = ()) -> Load:
    """The busiest rank's load, one group of rows of the same experts, top-k and ranks at a time.

    With a `menu` of tile heights, rows that are alike are counted once, and few enough at a time that memory stays bounded.
    """
    keys = np.stack([problem.experts, problem.topk, problem.ep, problem.tokens], axis=1)
    place = np.arange(len(keys))
    if menu:
        keys, place = np.unique(keys, axis=0, return_inverse=True)
    shapes, group = np.unique(keys[:, :3].astype(int), axis=0, return_inverse=True)
    parts: list[tuple[np.ndarray, Load]] = []
    table = np.empty((3 + len(menu), len(keys)))
    for number, (experts, topk, ep) in enumerate(shapes.tolist()):
        index = np.flatnonzero(group.ravel() == number)
        if menu:
            table[:, index] = _tabulated(routing, keys[index, 3], experts, topk, ep, menu)
        else:
            parts.append((index, _one_shape(routing, keys[index, 3], experts, topk, ep)))
    if menu:
        return TabulatedLoad(place.ravel(), tuple(table), menu)
    return parts[0][1] if len(parts) == 1 else JoinedLoad(tuple(parts))


def _tabulated(routing: Routing, tokens: Array, experts: int, topk: int, ep: int, menu: tuple[int, ...]) -> Array:
    """[3 + heights, n]: the table of `TabulatedLoad` for one shape."""
    if len(tokens) <= REMEMBERED and routing.kind != "counts":  # a file may change
        return _remembered(routing, tokens.tobytes(), experts, topk, ep, menu)
    size = max(1, COUNTS_AT_ONCE // experts)
    return np.concatenate([_count(routing, tokens[i : i + size], experts, topk, ep, menu) for i in range(0, len(tokens), size)], axis=1)


@lru_cache(maxsize=8192)
def _remembered(routing: Routing, tokens: bytes, experts: int, topk: int, ep: int, menu: tuple[int, ...]) -> Array:
    """Measured layers ask for the same few token counts again and again."""
    return _count(routing, np.frombuffer(tokens), experts, topk, ep, menu)


def _count(routing: Routing, tokens: Array, experts: int, topk: int, ep: int, menu: tuple[int, ...]) -> Array:
    load = _one_shape(routing, tokens, experts, topk, ep)
    return np.stack([load.pairs, load.active, load.tokens, *(load.tiles(rows) for rows in menu)])


def _one_shape(routing: Routing, tokens: Array, experts: int, topk: int, ep: int) -> Load:
    if routing.kind == "zipf":
        chance = zipf_probability(experts, topk, routing.parameter)[popular_order(experts)]
        local = place(np.broadcast_to(chance, (tokens.size, 1, experts)), ep, routing.placement, routing.redundant)[:, 0]
        return UnequalLoad(tokens, np.minimum(local, 1.0), _touched(tokens, tokens * local.sum(-1), topk))
    if routing.kind == "counts":
        assert routing.file is not None
        counts = scaled_counts(read_counts(routing.file, experts), tokens, topk)
    else:
        counts = powerlaw_counts(tokens, experts, topk, routing.parameter, ep, early=routing.kind == "powerlaw-early")
    local = place(counts, ep, routing.placement, routing.redundant)
    return CountLoad(local, _touched(tokens, local.sum(-1).mean(-1), topk))


def _touched(tokens: Array, pairs: Array, topk: int) -> Array:
    """Tokens with at least one of their `topk` experts on a rank that computes `pairs` pairs, its experts chosen independently."""
    share = np.minimum(pairs / (tokens * topk), 1.0)
    touched: Array = np.minimum(tokens * -np.expm1(topk * np.log1p(-np.minimum(share, 1 - 1e-15))), pairs)
    return touched


@lru_cache(maxsize=64)
def popular_order(experts: int) -> np.ndarray:
    """Where experts of falling popularity stand: popularity has nothing to do with an expert's number. One fixed permutation."""
    order = np.random.default_rng(SEED).permutation(experts)
    order.setflags(write=False)
    return order


def powerlaw_counts(tokens: Array, experts: int, topk: int, alpha: float, ep: int = 1, *, early: bool = False) -> Array:
    """Tokens per expert [n, DRAWS, experts] under the power law of the public measurements.

    Inverse CDF of x^-alpha on [1, 0.8 n] ([0.01, 2] where n k <= E), scaled to n k, rounded, no expert over n; then the sum is mended, one
    pair at a time, the `ep` ranks in turn: to the least loaded expert of the rank, or from the most loaded.
    As _generate_power_law_distribution does in the collector of AIConfigurator (collector/helper.py, Apache-2.0). `early`: as an
    earlier version did, which mends over all experts at once, and so puts the few pairs of few tokens on one rank.
    """
    uniform = np.random.default_rng(SEED).random((DRAWS, experts))
    few = tokens * topk <= experts
    low, high = np.where(few, 0.01, 1.0), np.where(few, 2.0, np.maximum(0.8 * tokens, 1.0 + 1e-9))
    low, high = low[:, None, None], high[:, None, None]
    if abs(alpha - 1.0) < 1e-9:
        drawn = low * (high / low) ** uniform
    else:
        power = 1.0 - alpha
        drawn = (low**power + uniform * (high**power - low**power)) ** (1.0 / power)
    total = tokens * topk
    counts = np.rint(drawn / drawn.sum(-1, keepdims=True) * total[:, None, None])
    cap = tokens[:, None, None]
    if early:
        return _mend_sum(np.minimum(_mended_early(counts, total, cap), cap), tokens, topk)
    clamped = np.minimum(counts, cap)
    ranks = clamped.reshape(*counts.shape[:2], ep, -1)
    ranks = _raised(ranks, (counts - clamped).sum(-1), cap[..., None])
    missing = total[:, None] - ranks.sum((-1, -2))
    ranks = _raised(ranks, np.maximum(missing, 0.0), cap[..., None])
    ranks = -_raised(-ranks, np.maximum(-missing, 0.0), np.zeros_like(cap)[..., None])
    return _mend_sum(ranks.reshape(counts.shape), tokens, topk)


def _mended_early(counts: Array, total: Array, cap: Array) -> Array:
    """`counts` [n, draws, experts] cut to `cap` [n, 1, 1], what is cut filling one least loaded expert after the other; then their sum is
    brought to `total` [n]: up by one for the least loaded experts, the last of equals first, again and again; down by one likewise, but
    where an expert holds nothing for the most loaded of all.
    """
    size = counts.shape[-1]
    kept = np.minimum(counts, cap)
    order = np.argsort(-kept, axis=-1, kind="stable")[..., ::-1]
    room = cap - np.take_along_axis(kept, order, axis=-1)
    before = np.cumsum(room, axis=-1) - room
    filled = np.clip((counts - kept).sum(-1, keepdims=True) - before, 0.0, room)
    np.put_along_axis(kept, order, np.take_along_axis(kept, order, axis=-1) + filled, axis=-1)
    missing = total[:, None, None] - kept.sum(-1, keepdims=True)
    order = np.argsort(-kept, axis=-1, kind="stable")[..., ::-1]
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(size), kept.shape), axis=-1)
    more, less = np.maximum(missing, 0.0), np.maximum(-missing, 0.0)
    raised = kept + np.floor(more / size) + (place < more % size)
    empty = np.minimum((kept == 0).sum(-1, keepdims=True), less)
    lowered = -_raised(-raised[..., None, :], empty[..., 0], np.zeros((1, 1, 1, 1)))[..., 0, :]
    result: Array = lowered - ((place >= empty) & (place < less) & (lowered > 0))
    return result


def _raised(counts: Array, more: Array, cap: Array) -> Array:
    """`counts` [n, draws, ranks, experts] with `more` [n, draws] added one at a time, the ranks in turn, each to its least loaded expert.

    The least loaded experts of a rank rise to a common level, or to `cap`; what then finds no room is left out.
    """
    size = counts.shape[-1]
    turn = np.arange(counts.shape[-2])
    each = np.floor((more[..., None] - turn + counts.shape[-2] - 1) / counts.shape[-2])  # [n, draws, ranks]
    order = np.argsort(counts, axis=-1, kind="stable")
    rising = np.take_along_axis(counts, order, axis=-1)
    places = np.arange(1, size + 1)
    cost = places * rising - np.cumsum(rising, axis=-1)  # to raise the lowest j experts to the level of the j-th
    held = np.maximum((cost <= each[..., None]).sum(-1, keepdims=True), 1)
    over = each[..., None] - np.take_along_axis(cost, held - 1, axis=-1)
    level = np.take_along_axis(rising, held - 1, axis=-1) + np.floor(over / held)
    raised = np.where(places <= held, level + (places <= over % held), rising)
    result = np.empty_like(counts)
    np.put_along_axis(result, order, np.minimum(raised, cap), axis=-1)
    return result


def _mend_sum(counts: Array, tokens: Array, topk: int) -> Array:
    """Bring the sum to n k, in the order of the experts, no count under 0 or over n: for the few pairs that found no room on their rank."""
    cap = tokens[:, None, None]
    counts = counts.copy()
    for _ in range(64):
        missing = (tokens * topk)[:, None] - counts.sum(-1)
        if not missing.any():
            break
        add = missing[..., None] > 0
        open_ = np.where(add, counts < cap, counts > 0)
        order = np.cumsum(open_, axis=-1)
        share = np.maximum(np.floor(np.abs(missing) / np.maximum(open_.sum(-1), 1)), 1.0)[..., None]
        chosen = open_ & (order * share <= np.abs(missing)[..., None])
        step = np.where(add, np.minimum(share, cap - counts), -np.minimum(share, counts))
        counts += np.where(chosen, step, 0.0)
    return counts


def scaled_counts(counts: Array, tokens: Array, topk: int) -> Array:
    """Counts of a file [experts] scaled to n k pairs for each n of `tokens`, by largest remainder: [n, 1, experts].

    Raises PerfModelError where an expert would get more tokens than there are (a token visits an expert once).
    """
    exact = counts / counts.sum() * (tokens * topk)[:, None]
    floor = np.floor(exact)
    left = np.rint((tokens * topk)[:, None] - floor.sum(-1, keepdims=True))
    rank = np.argsort(np.argsort(-(exact - floor), axis=-1, kind="stable"), axis=-1, kind="stable")
    whole: Array = floor + (rank < left)
    if (whole > tokens[:, None]).any():
        worst = int(np.argmax(counts))
        raise PerfModelError(
            f"expert {worst} holds {counts[worst] / counts.sum():.0%} of the pairs, more than one visit of each token (1/top-{topk})",
            field="routing",
            mend="Check the counts: they are tokens per expert, top-k of them a token.",
        )
    return whole[:, None, :]


@lru_cache(maxsize=256)
def zipf_probability(experts: int, topk: int, exponent: float) -> Array:
    """Chance that a token picks each expert when popularity falls as rank^-exponent and its top-k experts differ.

    Conditional-Poisson form q = 1 - exp(-c p), c such that the chances sum to top-k.
    """
    from scipy.optimize import brentq

    popularity = np.arange(1, experts + 1, dtype=float) ** -exponent
    popularity /= popularity.sum()
    if topk >= experts:
        return np.ones(experts)
    excess = lambda log_c: float(-np.expm1(-np.exp(log_c) * popularity).sum() - topk)  # noqa: E731
    chance: Array = -np.expm1(-np.exp(brentq(excess, -20.0, 700.0)) * popularity)
    chance.setflags(write=False)
    return chance
