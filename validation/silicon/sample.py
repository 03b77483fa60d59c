"""A small sample of the measured MoE layers as a CSV that `perfmodel validate FILE.csv` takes; a checkout holds one, for its tests."""

from __future__ import annotations

import csv
import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.units import MICROSECOND
from perfmodel.validation.columns import LAYER_COLUMNS
from perfmodel.validation.flags import is_scored
from perfmodel.validation.measurements import Integers, Measurements, group_ids
from perfmodel.validation.score import FAMILY
from perfmodel.validation.silicon.validate import SiliconValidation

SAMPLE = Path(__file__).resolve().parents[2] / "tests" / "data" / "silicon_sample.csv"
"""Not there in what is installed."""
ROWS, LEAST = 1500, 3
"""About so many rows, and of each GPU, kernel and format at least so many."""
COLUMNS = tuple(column.name for column in LAYER_COLUMNS if column.name != "launch")
DIGITS = 7
"""Significant ones of a latency."""

Hashes = NDArray[np.uint64]


def draw_sample(outcome: SiliconValidation, rows: int = ROWS) -> Integers:
    """Indices, rising, of the scored rows of lowest hash: of each family in proportion, of small ones at least a few."""
    scored = np.flatnonzero(is_scored(outcome.held.flags))
    ids = group_ids([outcome.rows.labels[name].codes[scored] for name in FAMILY])
    hashes = row_hashes(outcome.rows.take(scored))
    order = np.lexsort((hashes, ids))
    found = []
    for family in np.split(scored[order], np.flatnonzero(np.diff(ids[order])) + 1):
        found.append(family[: max(LEAST, round(len(family) * rows / len(scored)))])
    drawn: Integers = np.sort(np.concatenate(found))
    return drawn


def row_hashes(rows: Measurements) -> Hashes:
    """[n] a number by all labels and sizes of a row, whatever its place and its time; texts count by their MD5."""
    mixed = np.zeros(len(rows), np.uint64)
    for name in sorted(rows.labels):
        label = rows.labels[name]
        digests = [hashlib.md5(text.encode()).digest()[:8] for text in label.values]
        mixed = _mix(mixed ^ np.array([int.from_bytes(one, "little") for one in digests], np.uint64)[label.codes])
    for name in sorted(rows.sizes):
        mixed = _mix(mixed ^ rows.sizes[name].astype(np.uint64))
    return mixed


def _mix(values: Hashes) -> Hashes:
    """A step of SplitMix64, G. Steele and others, OOPSLA 2014."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def sample_text(rows: Measurements, index: Integers) -> str:
    """These rows as CSV, with where they are from."""
    out = io.StringIO()
    out.write(f"# title: {rows.about.title}, a sample\n# source: {rows.about.source}\n")
    out.write(
        "# note: drawn by a hash of the row, of each GPU, kernel and format in proportion; `perfmodel scoreboard --sample FILE` writes it\n"
    )
    out.writelines(f"# note: {note}\n" for note in rows.about.notes)
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    table.writerows([_cell(rows, name, int(row)) for name in COLUMNS] for row in index)
    return out.getvalue()


def _cell(rows: Measurements, name: str, row: int) -> Any:
    if name == "latency_us":
        return f"{rows.latency[row] / MICROSECOND:.{DIGITS}g}"
    return rows.labels[name][row] if name in rows.labels else int(rows.sizes[name][row])
