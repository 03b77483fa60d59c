"""Rows that measure something else than they say: impossible, known traps, isolated spikes and dips, kernels without a profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import Field

from perfmodel.validated import Strict, load_model
from perfmodel.validation.measurements import Floats, Integers, Labels, Mask, Measurements, group_ids

SPIKE = 1.5
"""A point this many times above both neighbours of its series is a spike. Repeated measurements differ by 13 % at the 99th percentile."""
DIP = 1.3
"""A point with more tokens than the one before that took this many times less, while the next one is back, is a dip."""

UNSCORED = ("no-profile", "trap:", "below-floor")
"""Beginnings of the flags whose rows are not scored; spikes and dips are scored, only never fitted."""


class Trap(Strict):
    """Rows known in advance to be wrong. A field that is absent matches every row."""

    name: str
    why: str
    source: str
    sources: tuple[str, ...] = Field(default=("*",), strict=False)
    """Patterns of the column `source`."""
    kernels: tuple[str, ...] = Field(default=("*",), strict=False)
    shape: dict[str, int] = Field(default_factory=dict)
    zero: bool = False
    """Only rows whose time is 0."""

    def matches(self, rows: Measurements) -> Mask:
        """[n] whether each row is caught."""
        caught = _any_pattern(rows.labels["source"], self.sources) & _any_pattern(rows.labels["kernel"], self.kernels)
        for name, size in self.shape.items():
            caught &= rows.sizes[name] == size if name in rows.sizes else False
        if self.zero:
            caught &= rows.latency == 0
        return caught


class _TrapFile(Strict):
    traps: tuple[Trap, ...] = Field(strict=False)


@cache
def load_traps(path: Path = Path(__file__).parent / "traps.yaml") -> tuple[Trap, ...]:
    """The traps of a YAML file. Raises PerfModelError with file and line."""
    return load_model(_TrapFile, path).traps


def flag_rows(rows: Measurements, floor: Floats, predicted: Mask, traps: Sequence[Trap] | None = None) -> Labels:
    """The flag of each row, "" for none. `floor` [n] in seconds (NaN where `predicted` is False: there is no profile).

    A row holds one flag: no-profile before trap:NAME before below-floor before spike before dip.
    """
    flags = np.zeros(len(rows), np.int32)
    names = [""]
    spike, dip = spikes_and_dips(series_of(rows), rows.tokens, rows.latency)
    caught = [(f"trap:{trap.name}", trap.matches(rows)) for trap in (load_traps() if traps is None else traps)]
    for name, mask in (("no-profile", ~predicted), *caught, ("below-floor", rows.latency < floor), ("spike", spike), ("dip", dip)):
        flags[mask & (flags == 0)] = len(names)
        names.append(name)
    return Labels(flags, tuple(names))


def is_scored(flags: Labels) -> Mask:
    """[n] whether a row with this flag counts in the score."""
    scored = np.array([not name.startswith(UNSCORED) for name in flags.values], bool)
    mask: Mask = scored[flags.codes]
    return mask


def series_of(rows: Measurements) -> Integers:
    """[n] the series that each row belongs to: rows that differ in nothing but tokens and latency."""
    sizes = [column for column in rows.sizes.values() if column is not rows.tokens]
    return group_ids([label.codes for label in rows.labels.values()] + sizes)


def spikes_and_dips(series: Integers, tokens: Integers, latency: Floats) -> tuple[Mask, Mask]:
    """Isolated points of a series [n], [n]; repeated measurements count by their median, and a series' ends are never judged."""
    order = np.lexsort((latency, tokens, series))
    first = np.ones(len(order), bool)
    first[1:] = (np.diff(series[order]) != 0) | (np.diff(tokens[order]) != 0)
    starts = np.flatnonzero(first)
    counts = np.diff(np.append(starts, len(order)))
    ordered = latency[order]
    median = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2
    own = series[order][starts]
    spike = _isolated(own, median, lambda now, before, after: now > SPIKE * np.maximum(before, after))
    calm = np.flatnonzero(~spike)  # the point after a spike is no dip
    dip = np.zeros(len(median), bool)
    dip[calm] = _isolated(own[calm], median[calm], lambda now, before, after: now * DIP < np.minimum(before, after))
    back = np.empty(len(order), np.int64)
    back[order] = np.repeat(np.arange(len(starts)), counts)
    return spike[back], dip[back]


def _isolated(series: Integers, value: Floats, odd: Callable[[Floats, Floats, Floats], Mask]) -> Mask:
    """[n] whether a point that has both neighbours in its series is `odd(point, before, after)`."""
    mask = np.zeros(len(value), bool)
    inner = (series[1:-1] == series[:-2]) & (series[1:-1] == series[2:])
    mask[1:-1] = inner & odd(value[1:-1], value[:-2], value[2:])
    return mask


def _any_pattern(labels: Labels, patterns: Sequence[str]) -> Mask:
    hit = np.array([any(fnmatchcase(text, pattern) for pattern in patterns) for text in labels.values], bool)
    mask: Mask = hit[labels.codes]
    return mask
