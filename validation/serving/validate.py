"""`validate serving`: measured services against the model, by the bundled calibration or by fits that never saw their model and GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.serving.anchoring import FIGURES
from perfmodel.serving.engine import Calibration, load_calibration
from perfmodel.validation.measurements import Floats, Integers, Mask
from perfmodel.validation.serving.fit import apply_offsets, chosen_rows, fit_serving
from perfmodel.validation.serving.flags import flag_services
from perfmodel.validation.serving.predict import Services
from perfmodel.validation.serving.rows import Service, names, read_services

SCHEMA = "perfmodel.validate/1"
FOLDS = 10
"""Of pairs of model and GPU; each fold is predicted by a fit without it."""
FOLD_ROUNDS = 2
"""Of a fold's fit: a third changes little, and folds are many."""
GROUPS = {
    "format": ("precision", ("bf16", "fp8", "fp4", "int4")),
    "mode": ("mode", ("aggregated", "disaggregated")),
    "backend": ("backend", ("sglang", "trtllm", "vllm")),
}
"""Of a summary: a field of the rows, and its values."""


@dataclass(frozen=True, eq=False)
class ServingValidation:
    """n measured services with their flags and predictions [n] in seconds; `used` are the rows that the calibration was fitted on."""

    services: Services
    flags: Sequence[str]
    ttft: Floats
    tpot: Floats
    used: Mask
    share: float
    """Of the configurations, used."""

    @property
    def scored(self) -> Mask:
        """[n] whether a row counts."""
        return np.array([not flag for flag in self.flags], bool)

    def summary(self) -> dict[str, Any]:
        """The JSON object of `validate serving`."""
        families = [row.family for row in self.services.rows]
        return {
            "schema": SCHEMA,
            "target": "serving",
            "calibration": {"fraction_used": self.share, "rows": int(self.used.sum())},
            "overall": self._score(np.ones(len(self.flags), bool)),
            "not_fitted": self._score(~self.used),
            **by_groups(self.services.rows, self._score),
            "families": [
                dict(zip(("model", "gpu", "backend", "precision", "mode"), family, strict=True))
                | self._score(np.array([one == family for one in families]))
                for family in sorted(set(families))
            ],
            "flags": names().flags,
        }

    def _score(self, chosen: Mask) -> dict[str, Any]:
        counted = chosen & self.scored
        reasons = Counter(flag for flag, mine in zip(self.flags, chosen, strict=True) if mine and flag)
        out: dict[str, Any] = {"n": int(chosen.sum()), "scored": int(counted.sum()), "flagged_by": dict(sorted(reasons.items()))}
        measured = {"ttft": self.services.ttft, "tpot": self.services.tpot}
        return out | {
            figure: errors(getattr(self, figure)[counted], measured[figure][counted], edges_of(self.services.rows, figure)[:, counted])
            for figure in FIGURES
        }


def validate_serving(*, unseen_pairs: bool = False, heard: Callable[[str], None] = lambda text: None) -> ServingValidation:
    """Every distinct measured service with its prediction. `unseen_pairs`: by fits without any row of its model on its GPU.

    Raises MissingRequirementError without the data.
    """
    rows = read_services()
    services, flags = Services.of(rows), flag_services(rows)
    usable = np.array([not flag for flag in flags], bool)
    used = chosen_rows(rows, usable)
    if unseen_pairs:
        ttft, tpot = _by_folds(services, used, heard)
    else:
        ttft, tpot = predict_services(services, load_calibration())
    configurations = {row.configuration for row in rows}
    fitted = {row.configuration for row, mine in zip(rows, used, strict=True) if mine}
    return ServingValidation(services, flags, ttft, tpot, used, len(fitted) / len(configurations))


def predict_services(services: Services, calibration: Calibration) -> tuple[Floats, Floats]:
    """(TTFT, TPOT) [n] seconds, offsets of the groups included."""
    ttft, tpot = services.predict(calibration.engine, calibration.backends)
    rows = services.rows
    return (
        ttft * np.exp(apply_offsets(rows, "ttft", calibration.offsets.get("ttft", {}))),
        tpot * np.exp(apply_offsets(rows, "tpot", calibration.offsets.get("tpot", {}))),
    )


def pair_folds(rows: Sequence[Service]) -> Integers:
    """[n] the fold of each row's pair of model and GPU; pairs in alphabetical order, one after the other into the folds."""
    pairs = sorted({row.pair for row in rows})
    place = {pair: i % FOLDS for i, pair in enumerate(pairs)}
    return np.array([place[row.pair] for row in rows])


def _by_folds(services: Services, fitted: Mask, heard: Callable[[str], None]) -> tuple[Floats, Floats]:
    fold = pair_folds(services.rows)
    out = np.empty((2, len(services.rows)))
    for number in range(FOLDS):
        heard(f"fit {number + 1} of {FOLDS}, without its pairs of model and GPU")
        calibration = fit_serving(services, np.flatnonzero(fitted & (fold != number)), rounds=FOLD_ROUNDS)
        mine = np.flatnonzero(fold == number)
        out[:, mine] = predict_services(services.take(mine), calibration)
    return out[0], out[1]


def interval_factors(validation: ServingValidation) -> dict[str, dict[str, list[float]]]:
    """Mode -> `ttft` and `tpot` -> factors between which 80 % of its scored rows that were not fitted lie: measured over predicted."""
    counted = validation.scored & ~validation.used
    modes = np.array([row.mode for row in validation.services.rows])
    found: dict[str, dict[str, list[float]]] = {}
    for mode in np.unique(modes[counted]).tolist():
        mine = counted & (modes == mode)
        ratios = {name: getattr(validation.services, name)[mine] / getattr(validation, name)[mine] for name in FIGURES}
        found[mode] = {name: [round(float(value), 3) for value in np.percentile(ratio, (10, 90))] for name, ratio in ratios.items()}
    return found


def edges_of(rows: Sequence[Service], figure: str) -> Floats:
    """[2, n] low and high factor of the interval of each row's mode; NaN where none was fitted."""
    interval, none = load_calibration().interval, (np.nan, np.nan)
    return np.array([interval.get(row.mode, {}).get(figure, none) for row in rows], float).reshape(-1, 2).T


def by_groups(rows: Sequence[Service], score: Callable[[Mask], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """`by_format` and so on: the scores of the rows [n] of each of GROUPS."""
    return {
        f"by_{word}": {name: score(np.array([getattr(row, field) == name for row in rows], bool)) for name in names}
        for word, (field, names) in GROUPS.items()
    }


def errors(predicted: Floats, measured: Floats, edges: Floats) -> dict[str, float | None]:
    """Of predictions [n]; edges [2, n]: factors over them between which 80 % of the measurements should lie."""
    if not len(measured):
        return dict.fromkeys(("median_ape", "mape", "p90_ape", "bias", "coverage80"))
    low, high = edges
    error = predicted / measured - 1.0
    size = np.abs(error)
    return {
        "median_ape": float(np.median(size)),
        "mape": float(size.mean()),
        "p90_ape": float(np.percentile(size, 90)),
        "bias": float(np.median(error)),
        "coverage80": None if np.isnan(edges).any() else float(((predicted * low <= measured) & (measured <= predicted * high)).mean()),
    }
