"""`validate silicon`: the public measurements held against the profiles as they are, or against profiles that never saw a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.files import write_atomic
from perfmodel.ops.catalog import OPS
from perfmodel.units import MICROSECOND
from perfmodel.validation.calibrate import calibrate
from perfmodel.validation.calibrate_ops import calibrate_ops
from perfmodel.validation.choosing import chosen_mask, nothing_left
from perfmodel.validation.measurements import Measurements
from perfmodel.validation.predicting import hold
from perfmodel.validation.predicting_ops import predict_op_rows, predict_ops_by
from perfmodel.validation.score import Comparison, score
from perfmodel.validation.score import families as score_by_family
from perfmodel.validation.silicon.all_to_all import read_all_to_all
from perfmodel.validation.silicon.attention import read_attention
from perfmodel.validation.silicon.collectives import read_collectives
from perfmodel.validation.silicon.gemm import read_gemm
from perfmodel.validation.silicon.leave_out import carried_over, left_out, predict_by
from perfmodel.validation.silicon.moe import read_moe
from perfmodel.validation.silicon.quantise import read_quantise
from perfmodel.validation.silicon.regimes import score_by_regime
from perfmodel.validation.silicon.usable import usable_mask
from perfmodel.validation.silicon.used import rows_used

SCHEMA = "perfmodel.validate/1"
READERS: Mapping[str, Callable[[], Measurements]] = {
    "moe": read_moe,
    "gemm": read_gemm,
    "attention": read_attention,
    "quantise": read_quantise,
    "collectives": read_collectives,
    "a2a": read_all_to_all,
}
"""What there is a loader and a model for."""


@dataclass(frozen=True, eq=False)
class SiliconValidation:
    """Measured rows with their predictions, and how many rows the profiles were fitted on."""

    rows: Measurements
    held: Comparison
    used: int
    of: int
    """Rows that the `used` ones were drawn from."""

    def summary(self) -> dict[str, Any]:
        """The JSON, without rows."""
        return {
            "schema": SCHEMA,
            "target": "silicon",
            "calibration": {"fraction_used": self.used / max(self.of, 1), "rows": self.used},
            "families": score_by_family(self.held),
            "regimes": score_by_regime(self.rows, self.held),
            "overall": score(self.held),
        }

    def write(self, path: Path) -> None:
        """The rows as Parquet: labels, sizes, microseconds measured and predicted, interval, flag."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {
            name: pa.DictionaryArray.from_arrays(label.codes, list(label.values)).cast(pa.string())
            for name, label in self.rows.labels.items()
            if name != "launch"
        }
        columns |= dict(self.rows.sizes)
        held = self.held
        for name, values in (("latency_us", held.measured), ("predicted_us", held.predicted), ("floor_us", held.floor)):
            columns[name] = values / MICROSECOND
        columns |= {"low_us": held.low / MICROSECOND, "high_us": held.high / MICROSECOND}
        columns["flag"] = pa.DictionaryArray.from_arrays(held.flags.codes, list(held.flags.values)).cast(pa.string())
        about = {
            "about": f"{self.rows.about.title}: {self.rows.about.source}",
            "predicted": datetime.now(UTC).isoformat(timespec="seconds"),
            "kind": self.rows.kind,
        }
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns).replace_schema_metadata(about), sink)
        write_atomic(path, sink.getvalue().to_pybytes())


def validate_silicon(
    op: str = "moe",
    *,
    gpu: str | None = None,
    kernel: str | None = None,
    leave_out_gpu: Sequence[str] = (),
    leave_out_arch: str | None = None,
) -> SiliconValidation:
    """Score the measured rows of an op, all of them or, with something left out, that alone, predicted by profiles fitted on the rest.

    Of these, the rows of one `gpu` or `kernel` where they are given.
    Raises MissingRequirementError without the data, PerfModelError for an op, GPU, kernel or architecture that is not there.
    """
    rows = read_op(op)
    chosen = chosen_mask(rows, gpu, kernel)
    if not chosen.any():
        raise nothing_left([rows], gpu, kernel)
    if not leave_out_gpu and leave_out_arch is None:
        scored = rows if chosen.all() else rows.take(np.flatnonzero(chosen))
        return SiliconValidation(scored, hold(scored, None if op == "moe" else predict_op_rows), *rows_used(rows, chosen))
    out = left_out(rows, leave_out_gpu, leave_out_arch)
    if not (out & chosen).any():
        value = ", ".join(name for name in (gpu, kernel) if name)
        raise PerfModelError("no row that is left out has it", field="--gpu, --kernel", value=value, mend="Name one that is left out.")
    pooled = op in OPS and OPS[op].scarce  # kernels of a pool are fitted together, whichever are scored
    known = rows.take(np.flatnonzero(~out & chosen_mask(rows, None, None if pooled else kernel)))
    if not len(known):
        raise PerfModelError("no row is left to fit on", field="--kernel", value=kernel, mend="Leave less out, or name a kernel of both.")
    return _score_unseen(op, rows.take(np.flatnonzero(out & chosen)), known, leave_out_arch)


def _score_unseen(op: str, unseen: Measurements, known: Measurements, architecture: str | None) -> SiliconValidation:
    """Rows predicted by fits to `known` ones, those of older architectures where `architecture` was left out."""
    _, of = rows_used(known, np.ones(len(known), bool))
    if op == "moe":
        fits = calibrate(known, usable_mask(known))
        used = sum(fitted.rows for fitted in fits)
        return SiliconValidation(unseen, hold(unseen, predict_by(carried_over(fits, architecture))), used, of)
    op_fits = calibrate_ops(known, usable_mask(known))
    used = sum(fitted.rows for fitted in op_fits)
    return SiliconValidation(unseen, hold(unseen, predict_ops_by(carried_over(op_fits, architecture))), used, of)


def read_op(op: str) -> Measurements:
    """All measured rows of an op. Raises MissingRequirementError without the data, PerfModelError for an op that is not there."""
    if op not in READERS:
        raise PerfModelError("is not modelled yet", field="--op", value=op, mend=did_you_mean(op, READERS))
    return READERS[op]()
