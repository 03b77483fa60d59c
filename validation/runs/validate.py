"""`perfmodel validate runs`: the model held against measured runs of our kernels, of torch's beside them, and against DRAM counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.units import MICROSECOND
from perfmodel.validation.columns import Kind
from perfmodel.validation.flags import flag_rows
from perfmodel.validation.measurements import Labels, Mask, Measurements
from perfmodel.validation.runs.files import committed, read_runs
from perfmodel.validation.runs.fit import is_fitted
from perfmodel.validation.runs.predict import Predicted, predict, predict_dram
from perfmodel.validation.runs.record import SIZES, Run
from perfmodel.validation.runs.store import Store
from perfmodel.validation.score import Comparison, families, score

SCHEMA = "perfmodel.validate/1"
TARGET = "runs"
NOT_FOUND = Predicted(np.nan, np.nan, np.nan, np.nan)


@dataclass(frozen=True, eq=False)
class RunsValidation:
    """Timed runs with their predictions, and runs with counters with their predicted DRAM bytes."""

    runs: Sequence[Run]
    """Timed ones, in the order of `held`."""
    held: Comparison
    counted: Sequence[tuple[Run, float]]
    """Runs with DRAM counters, and the bytes that the model expects."""

    @property
    def _ours(self) -> Mask:
        return np.array([run.ours for run in self.runs], bool)

    @property
    def _fitted(self) -> Mask:
        return np.array([is_fitted(run) for run in self.runs], bool)

    def summary(self) -> dict[str, Any]:
        """The JSON without rows. `overall` is over our kernels, without the rows that their profiles were fitted on."""
        ours, fitted = self._ours, self._fitted
        known = ours & ~np.isnan(self.held.predicted)
        used = int((known & fitted).sum())
        return {
            "schema": SCHEMA,
            "target": TARGET,
            "sources": sorted({run.source for run in self.runs} | {run.source for run, _ in self.counted}),
            "devices": sorted({run.device for run in self.runs}),
            "calibration": {"fraction_used": used / max(int(known.sum()), 1), "rows": used},
            "families": families(part_of(self.held, ~fitted)),
            "overall": score(self.held, ours & ~fitted),
            "fitted": score(self.held, ours & fitted),
            "peers": score(self.held, ~ours),
            "by_kind": {kind: score(self.held, ours & ~fitted & self._kind(kind)) for kind in SIZES},
            "dram_bytes": dram_score(self.counted),
        }

    def _kind(self, kind: str) -> Mask:
        return np.array([run.kind == kind for run in self.runs], bool)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Timed runs, then those with counters."""
        for index, run in enumerate(self.runs):
            yield _identity(run) | {
                "latency_us": run.us,
                **_times(self.held, index),
                "flag": self.held.flags[index] or None,
                "fitted": is_fitted(run),
            }

    def unseen_parts(self) -> list[tuple[Measurements, Comparison]]:
        """Runs of each kind that no profile was fitted on, as measured rows with their predictions."""
        unseen = ~(self._fitted & ~np.isnan(self.held.predicted))
        masks = {kind: unseen & self._kind(kind) for kind in SIZES}
        return [
            (measurements(kind, [run for run, there in zip(self.runs, mask, strict=True) if there]), part_of(self.held, mask))
            for kind, mask in masks.items()
            if mask.any()
        ]

    def counter_rows(self) -> list[dict[str, Any]]:
        """DRAM bytes counted and predicted, with the time under the profiler left out."""
        return [
            _identity(run)
            | {"dram_bytes": run.dram_bytes, "predicted_dram_bytes": predicted, "l2_hit_pct": run.l2_hit_pct, "tensor_pct": run.tensor_pct}
            for run, predicted in self.counted
        ]


def validate_runs(gpu: str | None = None, kernel: str | None = None, *, store: Path | None = None) -> RunsValidation:
    """The committed runs, and those of a `store`, of one `gpu` or `kernel` profile or of all. Raises PerfModelError."""
    runs = [run for path in committed() for run in read_runs(path)]
    if store is not None:
        known = {run.key for run in runs}
        runs += [run for run in Store(store).runs() if run.key not in known]
    chosen = [run for run in runs if gpu in (None, run.gpu) and kernel in (None, run.profile, run.kernel)]
    if not chosen:
        raise PerfModelError("no run has them", field="--gpu, --kernel", value=f"{gpu}, {kernel}", mend="Leave one of them out.")
    return hold_runs(chosen)


def hold_runs(runs: Sequence[Run]) -> RunsValidation:
    """Every timed run with its prediction and flag, every counted one with the expected DRAM bytes; wrong results are left out."""
    timed = sorted((run for run in runs if run.us is not None and run.gpu is not None and not run.wrong), key=lambda run: run.kind)
    if not timed:
        raise PerfModelError("none of these runs can be scored", mend="It takes a time, a GPU of the catalogue and a right result.")
    parts = [_held(kind, [run for run in timed if run.kind == kind]) for kind in sorted(SIZES)]
    counted = [(run, predict_dram(run.case)) for run in runs if (run.dram_bytes or 0.0) >= 1.0]
    return RunsValidation(
        timed, Comparison.join([part for part in parts if part is not None]), [(r, p) for r, p in counted if p is not None]
    )


def dram_score(counted: Sequence[tuple[Run, float]]) -> dict[str, Any]:
    """How far predicted DRAM bytes are from counted ones."""
    error = np.array([predicted / (run.dram_bytes or np.nan) - 1.0 for run, predicted in counted])
    if not len(error):
        return {"scored": 0, "median_ape": None, "mape": None, "worst_ape": None, "bias": None}
    size = np.abs(error)
    return {
        "scored": len(error),
        "median_ape": float(np.median(size)),
        "mape": float(size.mean()),
        "worst_ape": float(size.max()),
        "bias": float(np.median(error)),
    }


def measurements(kind: Kind, runs: Sequence[Run]) -> Measurements:
    """Runs of one kind as measured rows. What makes a series of them is in the labels: the kernel with its tile, routing, time held."""
    labels = {
        "gpu": [run.gpu or run.device for run in runs],
        "kernel": [run.profile or _family(run) for run in runs],
        "format": [run.format for run in runs],
        "source": [run.source or run.run_id for run in runs],
        "variant": [run.kernel for run in runs],
        "routing": [run.routing for run in runs],
        "hold": [str(run.hold_s) for run in runs],
    }
    sizes = {_size_name(kind, name): np.array([getattr(run, name) for run in runs], np.int64) for name in SIZES[kind]}
    latency = np.array([run.us or np.nan for run in runs]) * MICROSECOND
    return Measurements(kind, TARGET, np.arange(1, len(runs) + 1), {n: Labels.of(t) for n, t in labels.items()}, sizes, latency)


def _held(kind: Kind, runs: Sequence[Run]) -> Comparison | None:
    if not runs:
        return None
    rows = measurements(kind, runs)
    found = [one or NOT_FOUND for one in predict([run.case for run in runs])]
    latency, floor, low, high = (np.array([getattr(one, name) for one in found]) for name in ("latency", "floor", "low", "high"))
    family = {name: rows.labels[name] for name in ("gpu", "kernel", "format")}
    return Comparison(family, rows.latency, latency, floor, low, high, flag_rows(rows, floor, ~np.isnan(latency)))


def _family(run: Run) -> str:
    """What a kernel without a profile goes by: `numba-mma-mxfp4-w4a16-n64` as numba-mma."""
    return "-".join(run.kernel.split("-")[:2]) if run.ours else run.kernel


def _size_name(kind: Kind, name: str) -> str:
    return {"experts": "num_experts", "tokens": "num_tokens"}.get(name, name) if kind == "layer" else name


def part_of(held: Comparison, mask: Mask) -> Comparison:
    """The rows of `mask` [n]."""
    family = {name: label.take(mask) for name, label in held.family.items()}
    times = (held.measured[mask], held.predicted[mask], held.floor[mask], held.low[mask], held.high[mask])
    return Comparison(family, *times, held.flags.take(mask))


def _identity(run: Run) -> dict[str, Any]:
    names = (
        "gpu",
        "profile",
        "kernel",
        "ours",
        "kind",
        "format",
        *dict.fromkeys(n for names in SIZES.values() for n in names),
        "routing",
        "hold_s",
    )
    return {"table": run.source or run.run_id} | {name: getattr(run, name) for name in names if getattr(run, name) is not None}


def _times(held: Comparison, index: int) -> dict[str, Any]:
    if np.isnan(held.predicted[index]):
        return dict.fromkeys(("predicted_us", "floor_us", "interval_us"))
    predicted, floor, low, high = (float(column[index] / MICROSECOND) for column in (held.predicted, held.floor, held.low, held.high))
    return {"predicted_us": predicted, "floor_us": floor, "interval_us": [low, high]}
