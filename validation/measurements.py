"""Measured rows as columns: what the reader makes and the scorer takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.units import MICROSECOND
from perfmodel.validation.columns import COLUMNS, TOKENS, Kind

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Labels:
    """A column of few different texts: row i holds `values[codes[i]]`."""

    codes: NDArray[np.int32]
    values: tuple[str, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Labels:
        """Labels of a sequence of texts."""
        index: dict[str, int] = {}
        codes = np.array([index.setdefault(text, len(index)) for text in texts], np.int32)
        return cls(codes, tuple(index))

    def __getitem__(self, row: int) -> str:
        return self.values[int(self.codes[row])]

    @classmethod
    def join(cls, parts: Sequence[Labels]) -> Labels:
        """The labels of `parts`, one after the other."""
        values = tuple(dict.fromkeys(text for part in parts for text in part.values))
        place = {text: code for code, text in enumerate(values)}
        moved = [np.array([place[text] for text in part.values], np.int32)[part.codes] for part in parts if len(part.codes)]
        return cls(np.concatenate([np.empty(0, np.int32), *moved]), values)

    def where(self, text: str) -> Mask:
        """Rows that hold `text`."""
        mask: Mask = self.codes == (self.values.index(text) if text in self.values else -1)
        return mask

    def take(self, rows: Integers | Mask) -> Labels:
        """The labels of `rows`."""
        return Labels(self.codes[rows], self.values)


@dataclass(frozen=True)
class About:
    """What the comment lines above the header say."""

    title: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    not_scored: str | None = None
    """Why nothing can be held against the table as a whole."""
    also: tuple[str, ...] = ()
    """Columns that are kept in the file and not read."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """n measured rows of one kind."""

    kind: Kind
    file: str
    lines: Integers
    """[n] line of each row in the file, from 1."""
    labels: dict[str, Labels]
    sizes: dict[str, Integers]
    latency: Floats
    """[n] seconds."""
    about: About = field(default_factory=About)

    def __len__(self) -> int:
        return len(self.latency)

    @property
    def tokens(self) -> Integers:
        """[n] the size that grows along a series."""
        return self.sizes[TOKENS[self.kind]]

    def take(self, rows: Integers | Mask) -> Measurements:
        """The measurements of `rows` alone."""
        return Measurements(
            self.kind,
            self.file,
            self.lines[rows],
            {name: column.take(rows) for name, column in self.labels.items()},
            {name: column[rows] for name, column in self.sizes.items()},
            self.latency[rows],
            self.about,
        )

    def row(self, index: int) -> dict[str, Any]:
        """One row as the file has it, with its line; `gated` is a bool, an absent `launch` or `source` is None."""
        out: dict[str, Any] = {"line": int(self.lines[index])}
        for column in COLUMNS[self.kind]:
            if column.role == "time":
                out[column.name] = float(f"{self.latency[index] / MICROSECOND:.12g}")  # the figure of the file, without rounding noise
            elif column.role == "size":
                out[column.name] = int(self.sizes[column.name][index])
            else:
                text = self.labels[column.name][index]
                out[column.name] = text == "true" if column.name == "gated" else text or None
        return out


def group_ids(columns: Sequence[NDArray[Any]]) -> Integers:
    """[n] a number for each row, equal where all `columns` are equal; numbers run from 0 without gaps."""
    ids, span = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        codes, width = _codes(column)
        if span * width > LARGEST_ID:
            ids = np.unique(ids, return_inverse=True)[1]
            span = int(ids.max(initial=0)) + 1
        ids, span = ids * width + codes, span * width
    return np.unique(ids, return_inverse=True)[1]


LARGEST_ID, SMALL_RANGE = 2**62, 2**20


def _codes(column: NDArray[Any]) -> tuple[Integers, int]:
    """[n] a number from 0 for each value of a column, in the order of the values, and how many numbers there are; gaps are left in."""
    if column.dtype.kind in "iu" and len(column) and int(column.max()) - int(column.min()) < SMALL_RANGE:
        low = int(column.min())
        return column.astype(np.int64) - low, int(column.max()) - low + 1
    codes = np.unique(column, return_inverse=True)[1]
    return codes, int(codes.max(initial=0)) + 1
