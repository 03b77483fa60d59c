"""`validate silicon`: the public measurements held against the profiles as they are, or against profiles that never saw a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.files import write_atomic
from perfmodel.hardware import load_gpu
from perfmodel.latency import predict_layers
from perfmodel.profiles import Profile, load_profile, profile_ids
from perfmodel.profiles.op_profile import load_op_profile, op_profile_ids
from perfmodel.scenario import resolve
from perfmodel.units import MICROSECOND
from perfmodel.validation.calibrate import Fitted, architecture_of, calibrate, families, refitted
from perfmodel.validation.calibrate_ops import FittedOp, calibrate_ops
from perfmodel.validation.columns import Kind
from perfmodel.validation.measurements import Floats, Integers, Mask, Measurements
from perfmodel.validation.predicting import Predict, hold
from perfmodel.validation.predicting_ops import predict_op_rows, predict_ops_by
from perfmodel.validation.score import Comparison, score
from perfmodel.validation.score import families as score_by_family
from perfmodel.validation.silicon.all_to_all import read_all_to_all
from perfmodel.validation.silicon.attention import read_attention
from perfmodel.validation.silicon.collectives import read_collectives
from perfmodel.validation.silicon.gemm import read_gemm
from perfmodel.validation.silicon.moe import read_moe
from perfmodel.validation.silicon.quantise import read_quantise
from perfmodel.validation.silicon.regimes import score_by_regime
from perfmodel.validation.silicon.usable import usable_mask

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

    def summary(self) -> dict[str, Any]:
        """The JSON, without rows."""
        return {
            "schema": SCHEMA,
            "target": "silicon",
            "calibration": {"fraction_used": self.used / self.of, "rows": self.used},
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


def validate_silicon(op: str = "moe", *, leave_out_gpu: Sequence[str] = (), leave_out_arch: str | None = None) -> SiliconValidation:
    """Score the measured rows of an op, all of them or, with something left out, that alone, predicted by profiles fitted on the rest.

    Raises MissingRequirementError without the data, PerfModelError for an op, GPU or architecture that is not there.
    """
    rows = read_op(op)
    if not leave_out_gpu and leave_out_arch is None:
        return SiliconValidation(rows, hold(rows, None if op == "moe" else predict_op_rows), _used(rows), len(rows))
    out = _left_out(rows, leave_out_gpu, leave_out_arch)
    known, unseen = rows.take(np.flatnonzero(~out)), rows.take(np.flatnonzero(out))
    if op == "moe":
        fits = calibrate(known, usable_mask(known))
        used = sum(fitted.rows for fitted in fits)
        return SiliconValidation(unseen, hold(unseen, _predict_by(_carried_over(fits, leave_out_arch))), used, len(known))
    op_fits = calibrate_ops(known, usable_mask(known))
    used = sum(fitted.rows for fitted in op_fits)
    return SiliconValidation(unseen, hold(unseen, predict_ops_by(_carried_over(op_fits, leave_out_arch))), used, len(known))


def read_op(op: str) -> Measurements:
    """All measured rows of an op. Raises MissingRequirementError without the data, PerfModelError for an op that is not there."""
    if op not in READERS:
        raise PerfModelError("is not modelled yet", field="--op", value=op, mend=did_you_mean(op, READERS))
    return READERS[op]()


def _left_out(rows: Measurements, gpus: Sequence[str], architecture: str | None) -> Mask:
    """[n] rows of these GPUs, or of all of an architecture."""
    there = rows.labels["gpu"].values
    for gpu in gpus:
        load_gpu(gpu)
        if gpu not in there:
            raise PerfModelError("has no measured row", field="--leave-out-gpu", value=gpu, mend=did_you_mean(gpu, there))
    archs = sorted({architecture_of(gpu) for gpu in there})
    if architecture is not None and architecture not in archs:
        raise PerfModelError("has no measured row", field="--leave-out-arch", value=architecture, mend=did_you_mean(architecture, archs))
    chosen = [gpu in gpus or architecture_of(gpu) == architecture for gpu in there]
    mask: Mask = np.array(chosen)[rows.labels["gpu"].codes]
    return mask


ELDERS = {"blackwell": ("hopper", "ada", "ampere"), "blackwell-rtx": ("ada", "ampere"), "hopper": ("ampere", "ada")}
"""Architecture -> older ones, the nearest first."""


F = TypeVar("F", Fitted, FittedOp)


def _carried_over(fits: Sequence[F], architecture: str | None) -> list[F]:
    """For each kernel and format the fit of the nearest older architecture, as one of `architecture`; as they are without one."""
    if architecture is None:
        return list(fits)
    found = {}
    for elder in reversed(ELDERS.get(architecture, ())):
        for fitted in fits:
            if fitted.family.architecture == elder:
                fit = fitted.fit.model_copy(update={"architectures": (architecture,)})
                family = replace(fitted.family, architecture=architecture)
                found[family] = replace(fitted, family=family, fit=fit)
    return list(found.values())


def _predict_by(fits: Sequence[Fitted]) -> Predict:
    """A predictor with these fits and no other."""
    profiles: dict[str, Profile] = {}
    for kernel in {fitted.family.kernel for fitted in fits}:
        mine = [fitted for fitted in fits if fitted.family.kernel == kernel]
        profiles[kernel] = refitted(load_profile(kernel), mine).model_copy(update={"fits": tuple(fitted.fit for fitted in mine)})

    def predict(kind: Kind, labels: Mapping[str, str], sizes: Mapping[str, Integers]) -> Floats:
        profile = profiles.get(labels["kernel"])
        count = len(next(iter(sizes.values())))
        if profile is None or not profile.supports(architecture_of(labels["gpu"]), labels["format"]):
            return np.full((4, count), np.nan)
        scenario = replace(resolve(labels["gpu"], labels["format"], "generic-unfused", routing=labels["routing"]), profiles=(profile,))
        columns = {name.removeprefix("num_"): column for name, column in sizes.items()}
        answer = predict_layers(scenario, columns, gated=labels["gated"] == "true")
        return np.stack([answer.latency, answer.floor, answer.low, answer.high])

    return predict


def _used(rows: Measurements) -> int:
    """Rows that the bundled fits were made with, by their provenance, of the families that are there."""
    layers = rows.kind == "layer"
    load, ids = (load_profile, profile_ids()) if layers else (load_op_profile, op_profile_ids())
    fits = {}
    for family in families(rows, np.ones(len(rows), bool)):
        fit = load(family.kernel).find_fit(family.architecture, family.format) if family.kernel in ids else None
        if fit is not None:
            fits[id(fit)] = fit.provenance.rows or 0  # formats may share a fit
    return sum(fits.values())
