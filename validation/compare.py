"""The model against measurements, ready to be shown: figures by family, regime and tokens, the worst misses, points for pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.units import MICROSECOND
from perfmodel.validation.checks import check_rows, regimes
from perfmodel.validation.columns import TOKENS, Kind
from perfmodel.validation.flags import is_scored
from perfmodel.validation.measurements import Labels, Mask, Measurements
from perfmodel.validation.score import FAMILY, Comparison, families, score

if TYPE_CHECKING:
    from perfmodel.validation.runs.validate import RunsValidation
    from perfmodel.validation.silicon.validate import SiliconValidation
    from perfmodel.validation.targets import Validation

SCHEMA = "perfmodel.compare/1"
MOST_POINTS = 3000
"""In a picture."""
WORST = 20
FIGURES = ("n", "scored", "median_ape", "mape", "p90_ape", "bias", "coverage80")
KINDS: Mapping[Kind, tuple[str, ...]] = {
    "layer": ("num_tokens", "hidden", "inter", "topk", "num_experts", "tp", "ep"),
    "grouped-gemm": ("experts", "n", "k", "tokens_per_expert"),
    "gemm": ("m", "n", "k"),
    "attention": ("batch", "context", "prefix", "heads", "kv_heads", "key_dim", "value_dim", "cache_dim", "window"),
}
"""Sizes by which the kind of a Parquet file of rows is known that does not say it."""
TIMES = ("latency", "predicted", "floor", "low", "high")
"""Columns of such a file, each with _us."""


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of one kind with their predictions."""

    rows: Measurements
    held: Comparison


@dataclass(frozen=True, eq=False)
class Compared:
    """All parts, and what they are."""

    target: str
    data: Sequence[str]
    """What was measured, where it comes from, when."""
    parts: Sequence[Part]
    notes: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def result(self) -> dict[str, Any]:
        """The JSON: figures, worst misses, checks on the measurements."""
        held = Comparison.join([part.held for part in self.parts])
        regime, names = self._regimes()
        tokens = np.concatenate([part.rows.tokens for part in self.parts])
        checked = [check_rows(part.rows, part.held.floor).summary() for part in self.parts]
        return {
            "schema": SCHEMA,
            "target": self.target,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "data": list(self.data),
            "notes": list(self.notes),
            "overall": score(held),
            "families": families(held),
            "regimes": [{"regime": name} | _figures(held, regime == i) for i, name in enumerate(names) if (regime == i).any()],
            "tokens": list(_by_tokens(held, tokens)),
            "worst": self.worst(),
            "checks": _joined_checks(checked),
            **self.extra,
        }

    def _regimes(self) -> tuple[np.ndarray, tuple[str, ...]]:
        found = [regimes(part.rows, part.held.predicted, part.held.floor) for part in self.parts]
        return np.concatenate([one for one, _ in found]), found[0][1]

    def worst(self, count: int = WORST) -> list[dict[str, Any]]:
        """The scored rows furthest off, by the ratio of prediction and measurement."""
        found = []
        for part in self.parts:
            measured, predicted = part.held.measured, part.held.predicted
            known = is_scored(part.held.flags) & (measured > 0) & (predicted > 0)  # a difference of two times may be 0
            far = np.full(len(measured), -1.0)
            far[known] = np.abs(np.log(predicted[known] / measured[known]))
            for row in np.argsort(-far)[:count]:
                if far[row] >= 0:
                    found.append((float(far[row]), _describe(part, int(row))))
        return [described for _, described in sorted(found, key=lambda one: -one[0])[:count]]

    def points(self, most: int = MOST_POINTS) -> dict[str, list[Any]]:
        """Scored rows for pictures, at most so many, drawn at random but always the same: tokens, us, kernel, regime."""
        held = Comparison.join([part.held for part in self.parts])
        regime, names = self._regimes()
        tokens = np.concatenate([part.rows.tokens for part in self.parts])
        chosen = np.flatnonzero(is_scored(held.flags) & (held.measured > 0) & (held.predicted > 0))  # axes are logarithmic
        if len(chosen) > most:
            chosen = np.sort(np.random.default_rng(0).choice(chosen, most, replace=False))
        return {
            "tokens": [int(tokens[i]) for i in chosen],
            "measured_us": [float(held.measured[i] / MICROSECOND) for i in chosen],
            "predicted_us": [float(held.predicted[i] / MICROSECOND) for i in chosen],
            "kernel": [held.family["kernel"][int(i)] for i in chosen],
            "regime": [names[int(regime[i])] for i in chosen],
            "of": [int(is_scored(held.flags).sum())],
        }


def compare_runs(found: RunsValidation) -> Compared:
    """Runs of our kernels, and torch's beside them; rows that profiles were fitted on are left out."""
    parts = [Part(rows, held) for rows, held in found.unseen_parts()]
    summary = found.summary()
    machines = sorted({f"{run.device}, driver {run.driver}, {run.date[:10]}" for run in found.runs})
    notes = [
        f"{summary['calibration']['rows']} rows on which profiles of our kernels were fitted are left out.",
        "The overall figures are our kernels'; torch's have families of their own.",
    ]
    extra = {
        "overall": summary["overall"],
        "peers": summary["peers"],
        "dram_bytes": summary["dram_bytes"],
        "counter_rows": found.counter_rows(),
    }
    return Compared("runs", [*summary["sources"], *machines], parts, notes, extra)


def compare_tables(found: Validation) -> Compared:
    """The bundled tables, or a CSV of the user's."""
    parts = [Part(table.rows, table.held) for table in found.tables if table.rows is not None and table.held is not None]
    data = [": ".join(text for text in (table.about.title or table.id, table.about.source) if text) for table in found.tables if table.held]
    return Compared(found.target, data, parts, [note for table in found.tables if table.held for note in table.about.notes])


def compare_silicon(found: SiliconValidation) -> Compared:
    """The public measurements."""
    about = found.rows.about
    notes = [*about.notes, f"Profiles were fitted on {found.used:,} of {found.of:,} rows, which are among those scored."]
    return Compared("silicon", [f"{about.title}: {about.source}"], [Part(found.rows, found.held)], notes)


def compare_rows(path: Path) -> Compared:
    """Rows that `perfmodel validate silicon --rows FILE.parquet` wrote. Raises PerfModelError for another file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise PerfModelError("is no Parquet file that can be read", file=path, mend="Write it with validate silicon --rows.") from error
    about = {key.decode(): text.decode() for key, text in (table.schema.metadata or {}).items() if key in (b"about", b"predicted", b"kind")}
    kind = _kind_of(path, set(table.column_names), about.get("kind"))
    _check_columns(path, table, kind)
    labels = {name: _labels(table[name]) for name in table.column_names if pa.types.is_string(table[name].type) and name != "flag"}
    sizes = {name: table[name].to_numpy() for name in table.column_names if pa.types.is_int64(table[name].type)}
    us = {name: table[f"{name}_us"].to_numpy() * MICROSECOND for name in TIMES}
    rows = Measurements(kind, str(path), np.arange(1, len(table) + 1), labels, sizes, us["latency"])
    family = {name: labels[name] for name in FAMILY}
    held = Comparison(family, us["latency"], us["predicted"], us["floor"], us["low"], us["high"], _labels(table["flag"]))
    _check_values(path, rows, held)
    data = [about.get("about", ""), f"rows of {path.name}, predicted {about.get('predicted', 'at an unknown time')}"]
    return Compared("silicon", [text for text in data if text], [Part(rows, held)])


def _kind_of(path: Path, names: set[str], said: str | None) -> Kind:
    """What the rows of a Parquet file are: as it says, or by its sizes. Raises PerfModelError for rows of something else."""
    if said in TOKENS:
        return cast(Kind, said)
    for kind, sizes in KINDS.items():
        if {*sizes, *FAMILY, "latency_us", "predicted_us", "flag"} <= names:
            return kind
    raise PerfModelError("holds no rows of a validation", file=path, mend="Write it with validate silicon --rows.")


def _check_columns(path: Path, table: Any, kind: Kind) -> None:
    """Raises PerfModelError for a column that is missing, of another type, or has holes."""
    import pyarrow as pa

    wanted = dict.fromkeys((*FAMILY, "source", "flag"), pa.string()) | dict.fromkeys((f"{name}_us" for name in TIMES), pa.float64())
    wanted |= dict.fromkeys((TOKENS[kind], *KINDS.get(kind, ())), pa.int64())
    for name, form in wanted.items():
        problem = "the column is missing" if name not in table.column_names else None
        if problem is None and table[name].type != form:
            problem = f"is no column of {form}"
        if problem is None and table[name].null_count:
            problem = "has empty cells"
        if problem is not None:
            raise PerfModelError(problem, file=path, field=name, mend="Write it with validate silicon --rows.")
    if not len(table):
        raise PerfModelError("holds no rows", file=path, mend="Write it with validate silicon --rows.")


def _check_values(path: Path, rows: Measurements, held: Comparison) -> None:
    """Raises PerfModelError at the first row with a size or time that cannot be."""
    tokens, scored = rows.tokens, is_scored(held.flags)
    with np.errstate(invalid="ignore"):
        wrong = {TOKENS[rows.kind]: tokens < 1, "latency_us": ~(np.isfinite(held.measured) & (held.measured >= 0))}
        for name in ("predicted", "floor", "low", "high"):
            times = getattr(held, name)
            wrong[f"{name}_us"] = scored & ~(np.isfinite(times) & (times >= 0))
        wrong["low_us"] |= scored & (held.low > held.high)
    for name, mask in wrong.items():
        if mask.any():
            raise PerfModelError(
                "cannot be", file=path, line=int(np.argmax(mask)) + 1, field=name, mend="Write it with validate silicon --rows."
            )


def _labels(column: Any) -> Labels:
    coded = column.combine_chunks().dictionary_encode()
    return Labels(coded.indices.to_numpy().astype(np.int32), tuple(coded.dictionary.to_pylist()))


def versions() -> dict[str, str]:
    """Of the model and of the data that is installed."""
    found = {}
    for package in ("perfmodel", "aiconfigurator-core", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _figures(held: Comparison, chosen: Mask) -> dict[str, Any]:
    found = score(held, chosen)
    return {name: found[name] for name in FIGURES}


def _by_tokens(held: Comparison, tokens: np.ndarray) -> Iterable[dict[str, Any]]:
    """Figures for tokens between powers of four."""
    power = np.floor(np.log2(np.maximum(tokens, 1)) / 2).astype(int)
    for one in np.unique(power):
        yield {"from": int(4**one), "to": int(4 ** (one + 1) - 1)} | _figures(held, power == one)


def _joined_checks(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Checks of all parts as one."""
    names = list(found[0]["overall"])
    families = sorted((family for one in found for family in one["families"]), key=lambda family: -family["any"])
    return {"checks": found[0]["checks"], "overall": {n: sum(one["overall"][n] for one in found) for n in names}, "families": families}


def _describe(part: Part, row: int) -> dict[str, Any]:
    held = part.held
    sizes = ", ".join(f"{name} {int(column[row])}" for name, column in part.rows.sizes.items())
    words = {name: part.rows.labels[name][row] for name in (*FAMILY, "source", "routing", "variant") if name in part.rows.labels}
    measured, predicted = (float(column[row] / MICROSECOND) for column in (held.measured, held.predicted))
    return words | {"sizes": sizes, "latency_us": measured, "predicted_us": predicted, "error": predicted / measured - 1.0}
