"""How far predictions are from measurements: errors, bias and coverage, over all rows and by family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.validation.flags import is_scored
from perfmodel.validation.measurements import Floats, Labels, Mask, group_ids

FAMILY = ("gpu", "kernel", "format")


@dataclass(frozen=True, eq=False)
class Comparison:
    """n measurements, each with a prediction (seconds, NaN where there is none) and a flag ("" for none)."""

    family: dict[str, Labels]
    """Labels by the names of FAMILY."""
    measured: Floats
    predicted: Floats
    floor: Floats
    low: Floats
    high: Floats
    flags: Labels

    @classmethod
    def join(cls, parts: Sequence[Comparison]) -> Comparison:
        """The rows of `parts`, one part after the other."""
        return cls(
            family={name: Labels.join([part.family[name] for part in parts]) for name in FAMILY},
            measured=np.concatenate([part.measured for part in parts]),
            predicted=np.concatenate([part.predicted for part in parts]),
            floor=np.concatenate([part.floor for part in parts]),
            low=np.concatenate([part.low for part in parts]),
            high=np.concatenate([part.high for part in parts]),
            flags=Labels.join([part.flags for part in parts]),
        )


def score(rows: Comparison, chosen: Mask | None = None) -> dict[str, Any]:
    """Counts and errors of the `chosen` rows [n] (all by default).

    `n` rows, `scored` of them, `flagged` by reason. Of the scored ones, with e = predicted / measured - 1: `mape`, `median_ape` and
    `p90_ape` of |e|, `bias` the median of e, `coverage80` the share of measurements inside the interval; None where nothing is scored.
    """
    chosen = np.ones(len(rows.measured), bool) if chosen is None else chosen
    codes, counts = np.unique(rows.flags.codes[chosen], return_counts=True)
    reasons = {rows.flags.values[code]: int(count) for code, count in zip(codes, counts, strict=True) if rows.flags.values[code]}
    counted = chosen & is_scored(rows.flags)
    return {
        "n": int(chosen.sum()),
        "scored": int(counted.sum()),
        "flagged": sum(reasons.values()),
        "flagged_by": dict(sorted(reasons.items())),
        **_errors(rows, counted),
    }


def _errors(rows: Comparison, counted: Mask) -> Mapping[str, float | None]:
    if not counted.any():
        return dict.fromkeys(("mape", "median_ape", "p90_ape", "bias", "coverage80"))
    measured, predicted = rows.measured[counted], rows.predicted[counted]
    none = np.where(predicted > 0, np.inf, 0.0)  # a difference of two times may be 0, and be predicted so
    error = np.divide(predicted - measured, measured, out=none, where=measured > 0)
    size = np.abs(error)
    inside = (rows.low[counted] <= measured) & (measured <= rows.high[counted])
    return {
        "mape": float(size.mean()),
        "median_ape": float(np.median(size)),
        "p90_ape": float(np.percentile(size, 90)),
        "bias": float(np.median(error)),
        "coverage80": float(inside.mean()),
    }


def families(rows: Comparison) -> list[dict[str, Any]]:
    """The score of each (gpu, kernel, format), in alphabetical order."""
    labels = [rows.family[name] for name in FAMILY]
    ids = group_ids([label.codes for label in labels])
    _, first = np.unique(ids, return_index=True)
    found = [dict(zip(FAMILY, (label[int(row)] for label in labels), strict=True)) | score(rows, ids == ids[row]) for row in first]
    return sorted(found, key=lambda family: [family[name] for name in FAMILY])
