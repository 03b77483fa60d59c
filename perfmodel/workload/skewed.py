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
from perfmodel.workload.powerlaw import SEED, powerlaw_counts
from perfmodel.workload.routing import Problem, Routing

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
