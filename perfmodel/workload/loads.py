"""What the experts of the busiest rank have to do: the only view of routing that the cost model needs.

All quantities are vectors over rows (one row, one prediction). A load answers how many tiles of m rows its tokens fill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from perfmodel.workload.expectation import Array, expected_tiles


class Load(Protocol):
    """Loads of the local experts of one rank, vectors over rows."""

    @property
    def pairs(self) -> Array:
        """(token, expert) pairs that the rank computes."""

    @property
    def active(self) -> Array:
        """Experts with at least one token (expected, may be fractional)."""

    @property
    def tokens(self) -> Array:
        """Tokens with at least one expert on the rank."""

    def tiles(self, rows: int) -> Array:
        """Expected tiles of `rows` rows over all local experts."""


@dataclass(frozen=True)
class TwoLevelLoad:
    """`lower` experts with `base` tokens each and `upper` with one more: balanced routing, and one group of tokens (a dense layer)."""

    base: Array
    lower: Array
    upper: Array
    tokens: Array

    @property
    def pairs(self) -> Array:
        """Pairs in all."""
        return self.base * self.lower + (self.base + 1) * self.upper

    @property
    def active(self) -> Array:
        """Experts with tokens."""
        return np.where(self.base > 0, self.lower, 0.0) + self.upper

    def tiles(self, rows: int) -> Array:
        """Tiles, exact."""
        return self.lower * np.ceil(self.base / rows) + self.upper * np.ceil((self.base + 1) / rows)


@dataclass(frozen=True)
class BinomialLoad:
    """`experts` experts that each token picks with the same `probability`, independently from token to token."""

    draws: Array
    """Tokens that choose."""
    probability: Array
    experts: Array
    pairs: Array
    active: Array
    tokens: Array
    menu: Sequence[int] = ()
    """Tile heights that will be asked for: evaluated together, which is cheaper."""
    _cache: dict[int, Array] = field(default_factory=dict, compare=False, repr=False)

    def tiles(self, rows: int) -> Array:
        """Expected tiles, see `expected_tiles`."""
        if rows not in self._cache:
            menu = sorted({rows, *self.menu})
            values = expected_tiles(self.draws, self.probability, menu) * self.experts
            self._cache.update(zip(menu, values, strict=True))
        return self._cache[rows]


@dataclass(frozen=True)
class CountLoad:
    """Token counts of each local expert, [n, draws, experts]: averaged over `draws` samples of the routing."""

    counts: Array
    tokens: Array

    @property
    def pairs(self) -> Array:
        """Pairs, mean over the draws."""
        total: Array = self.counts.sum(-1).mean(-1)
        return total

    @property
    def active(self) -> Array:
        """Experts with tokens, mean over the draws."""
        total: Array = np.minimum(self.counts, 1.0).sum(-1).mean(-1)
        return total

    def tiles(self, rows: int) -> Array:
        """Tiles, mean over the draws."""
        total: Array = np.ceil(self.counts / rows).sum(-1).mean(-1)
        return total


@dataclass(frozen=True)
class EqualisedLoad:
    """The same pairs over the same active experts in equal shares: what a load costs without its imbalance.

    Equal shares just over a tile's edge would need more tiles than the real load; then the real load's tiles count.
    """

    real: Load

    @property
    def pairs(self) -> Array:
        """As the real load."""
        return self.real.pairs

    @property
    def active(self) -> Array:
        """As the real load."""
        return self.real.active

    @property
    def tokens(self) -> Array:
        """As the real load."""
        return self.real.tokens

    def tiles(self, rows: int) -> Array:
        """Tiles of equal shares, never more than the real ones."""
        active = np.maximum(self.active, 1e-12)
        tiles: Array = np.minimum(active * np.ceil(self.pairs / active / rows - 1e-9), self.real.tiles(rows))
        return tiles


@dataclass(frozen=True)
class AllSlotsLoad:
    """A load of which every slot of the tokens that enter is computed: slots of experts elsewhere go to the first expert, in vain."""

    local: Load
    topk: Array
    entering: Array | None = None
    """Tokens that enter the rank; absent for those with an expert on it."""

    @property
    def pairs(self) -> Array:
        """Pairs that are computed."""
        entering = self.local.tokens if self.entering is None else self.entering
        pairs: Array = np.maximum(entering * self.topk, self.local.pairs)
        return pairs

    @property
    def active(self) -> Array:
        """Experts whose weights are read."""
        return self.local.active

    @property
    def tokens(self) -> Array:
        """Tokens with an expert on the rank."""
        return self.local.tokens

    def tiles(self, rows: int) -> Array:
        """Tiles, those in vain too."""
        tiles: Array = self.local.tiles(rows) + np.ceil((self.pairs - self.local.pairs) / rows)
        return tiles


def single_group(tokens: Array) -> TwoLevelLoad:
    """A dense layer (the shared experts): one group of `tokens` tokens, rounded up."""
    tokens = np.ceil(np.asarray(tokens, float))
    return TwoLevelLoad(tokens, np.ones_like(tokens), np.zeros_like(tokens), tokens)
