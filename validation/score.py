"""How far predictions are from measurements: errors, bias and coverage, over all rows and by family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.validation.flags import is_scored
from perfmodel.validation.measurements import Floats, Labels, Mask, Measurements, group_ids

FAMILY = ("gpu", "kernel", "format")


@dataclass(frozen=True, eq=False)
class Scored:
    """Measurements with a prediction each [s], NaN where there is none, and a flag each."""

    rows: Measurements
    latency: Floats
    floor: Floats
    low: Floats
    high: Floats
    flags: Labels

    def family_ids(self) -> list[tuple[tuple[str, ...], Mask]]:
        """Each (gpu, kernel, format) with the mask of its rows, in alphabetical order."""
        labels = [self.rows.labels[name] for name in FAMILY]
        ids = group_ids([label.codes for label in labels])
        _, first = np.unique(ids, return_index=True)
        families = [(tuple(label[int(row)] for label in labels), ids == ids[row]) for row in first]
        return sorted(families, key=lambda family: family[0])


def score(scored: Scored, chosen: Mask | None = None) -> dict[str, Any]:
    """Counts and errors of the `chosen` rows (all by default).

    `n` rows, `scored` of them, `flagged` by reason. Of the scored ones, with e = predicted / measured - 1: `mape`, `median_ape` and
    `p90_ape` of |e|, `bias` the median of e, `coverage80` the share of measurements inside the interval; None where nothing is scored.
    """
    chosen = np.ones(len(scored.rows), bool) if chosen is None else chosen
    codes = scored.flags.codes[chosen]
    reasons = Counter({scored.flags.values[code]: int(n) for code, n in zip(*np.unique(codes, return_counts=True), strict=True)})
    reasons.pop("", None)
    counted = chosen & is_scored(scored.flags)
    return {
        "n": int(chosen.sum()),
        "scored": int(counted.sum()),
        "flagged": sum(reasons.values()),
        "flagged_by": dict(sorted(reasons.items())),
        **_errors(scored, counted),
    }


def _errors(scored: Scored, counted: Mask) -> Mapping[str, float | None]:
    if not counted.any():
        return dict.fromkeys(("mape", "median_ape", "p90_ape", "bias", "coverage80"))
    measured = scored.rows.latency[counted]
    error = scored.latency[counted] / measured - 1.0
    size = np.abs(error)
    inside = (scored.low[counted] <= measured) & (measured <= scored.high[counted])
    return {
        "mape": float(size.mean()),
        "median_ape": float(np.median(size)),
        "p90_ape": float(np.percentile(size, 90)),
        "bias": float(np.median(error)),
        "coverage80": float(inside.mean()),
    }


def families(scored: Scored) -> list[dict[str, Any]]:
    """The score of each (gpu, kernel, format)."""
    return [dict(zip(FAMILY, names, strict=True)) | score(scored, mask) for names, mask in scored.family_ids()]
