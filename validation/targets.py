"""What can be validated: the bundled tables, and a CSV of the user's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.units import MICROSECOND
from perfmodel.validation.choosing import chosen_mask, nothing_left
from perfmodel.validation.flags import load_traps
from perfmodel.validation.measurements import About, Measurements
from perfmodel.validation.predicting import Predict, hold
from perfmodel.validation.reader import count_rows, read_about, read_measurements
from perfmodel.validation.score import Comparison, families, score

SCHEMA = "perfmodel.validate/1"
TABLES = "tables"
"""The target that means all bundled tables."""


@dataclass(frozen=True, eq=False)
class Table:
    """One file of measurements, held against the model; `rows` and `held` are absent where nothing can be."""

    id: str
    about: About
    rows: Measurements | None = None
    held: Comparison | None = None
    kept: int = 0
    """Rows of a table that nothing can be held against."""

    def summary(self) -> dict[str, Any]:
        """Provenance, the score, and what was not scored and why."""
        head = {"id": self.id, "title": self.about.title or None, "source": self.about.source or None, "notes": list(self.about.notes)}
        if self.held is None:
            return head | {"n": self.kept, "scored": 0, "not_scored": [self.about.not_scored]}
        return head | score(self.held) | {"not_scored": why_not_scored(self.held)}


@dataclass(frozen=True, eq=False)
class Validation:
    """The outcome for one target."""

    target: str
    tables: Sequence[Table]

    def summary(self) -> dict[str, Any]:
        """All of the JSON but `rows`."""
        held = Comparison.join([table.held for table in self.tables if table.held is not None])
        return {
            "schema": SCHEMA,
            "target": self.target,
            "tables": [table.summary() for table in self.tables],
            "families": families(held),
            "overall": score(held),
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each measured row with its prediction, microseconds."""
        for table in self.tables:
            if table.rows is not None and table.held is not None:
                head = {"table": table.id} if self.target == TABLES else {}
                yield from (head | row for row in _rows(table.rows, table.held))


def validate_tables(gpu: str | None = None, kernel: str | None = None, *, predict: Predict | None = None) -> Validation:
    """The bundled tables, or their rows of one `gpu` or `kernel`. Raises PerfModelError where no row is left."""
    tables = []
    for path in table_files():
        about = read_about(path)
        if about.not_scored is None:
            tables.append(Table(path.stem, about, read_measurements(path)))
        elif gpu is None and kernel is None:
            tables.append(Table(path.stem, about, kept=count_rows(path)))
    return Validation(TABLES, _held(tables, gpu, kernel, predict))


def validate_file(path: str | Path, gpu: str | None = None, kernel: str | None = None, *, predict: Predict | None = None) -> Validation:
    """A CSV of the user's, or its rows of one `gpu` or `kernel`. Raises PerfModelError with file, line, column, value and mend."""
    rows = read_measurements(path)
    return Validation(str(path), _held([Table(Path(path).stem, rows.about, rows)], gpu, kernel, predict))


def table_files() -> list[Path]:
    """The bundled tables, sorted by name."""
    return sorted(Path(str(files("perfmodel.validation"))).joinpath("tables").glob("*.csv"))


def why_not_scored(held: Comparison) -> list[str]:
    """A sentence for each reason that kept rows out of the score."""
    whys = {f"trap:{trap.name}": trap.why for trap in load_traps()}
    whys["below-floor"] = "measured faster than the FLOPs at the peak, or the compulsory bytes at the DRAM bandwidth, allow."
    counts = {flag: int(held.flags.where(flag).sum()) for flag in whys}
    reasons = [f"{count} rows, {flag}: {whys[flag]}" for flag, count in counts.items() if count]
    lacking = held.flags.where("no-profile")
    kernels = sorted({held.family["kernel"][int(row)] for row in np.flatnonzero(lacking)})
    return reasons + [_no_profile(kernel, int((lacking & held.family["kernel"].where(kernel)).sum())) for kernel in kernels]


def _no_profile(kernel: str, count: int) -> str:
    from perfmodel.profiles import profile_ids

    if kernel in profile_ids():
        return f"{count} rows of {kernel}: its profile does not cover their format on their GPU."
    near = get_close_matches(kernel, profile_ids(), n=1, cutoff=0.85)  # a slip of the pen, no kernel of another name
    return f"{count} rows of {kernel}: there is no such kernel profile." + (f" Did you mean {near[0]}?" if near else "")


def _held(tables: Sequence[Table], gpu: str | None, kernel: str | None, predict: Predict | None) -> list[Table]:
    """Each table with the chosen rows held against the model; tables that lose all their rows are left out."""
    chosen: list[Table] = []
    for table in tables:
        if table.rows is None:
            chosen.append(table)
            continue
        mask = chosen_mask(table.rows, gpu, kernel)
        if mask.any():
            rows = table.rows.take(np.flatnonzero(mask)) if not mask.all() else table.rows
            chosen.append(Table(table.id, table.about, rows, hold(rows, predict)))
    if not any(table.held for table in chosen):
        raise nothing_left([table.rows for table in tables if table.rows is not None], gpu, kernel)
    return chosen


def _rows(rows: Measurements, held: Comparison) -> Iterator[dict[str, Any]]:
    for index in range(len(rows)):
        predicted = held.predicted[index]
        known = not np.isnan(predicted)
        yield rows.row(index) | {
            "predicted_us": float(predicted / MICROSECOND) if known else None,
            "floor_us": float(held.floor[index] / MICROSECOND) if known else None,
            "interval_us": [float(held.low[index] / MICROSECOND), float(held.high[index] / MICROSECOND)] if known else None,
            "flag": held.flags[index] or None,
        }
