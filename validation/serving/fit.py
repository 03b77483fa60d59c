"""Fitting the engine to measured services: physical parameters by bounded, robust least squares, then offsets of groups, drawn to 0.

Less than a fifth of the configurations is fitted: one of each family, the services of a model on a GPU by a backend in a precision, that
has several. Parameters and offsets take turns, so that what one model or engine has of its own does not bend what all share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.serving.engine import NAMES, OF_BACKENDS, Calibration, Engine, groups_of
from perfmodel.validation.fitting import soft
from perfmodel.validation.measurements import Floats, Integers, Mask
from perfmodel.validation.serving.predict import Services
from perfmodel.validation.serving.rows import Service

LEAST_ROWS = 6
"""Of a family of which a configuration is fitted."""
ROUNDS = 3
SOFT, TTFT_SOFT, TTFT_WEIGHT = 0.12, 0.24, 0.5
"""Residuals beyond these count less and less; a TTFT counts half as much as a TPOT."""
PULL, SPREAD = 0.1, 0.6
"""Weight of a prior against the root of the rows, and the spread of a parameter's logarithm around it."""
RIDGE = 10.0
"""Rows' worth that draw an offset to 0."""
ENOUGH = 12
"""Rows of a configuration beyond which each counts less."""
WILD = 0.2
PRIOR = Engine()
BACKENDS = ("sglang", "trtllm", "vllm")
HIGHEST: Mapping[str, float] = {
    "pass_bytes": 400.0, "interference": 2.0, "burst": 2.0, "wait": 5.0, "tile": 200.0, "imbalance": 2.0, "blackwell_overhead": 3.0,
    "blackwell_tensor": 3.0,
}  # fmt: skip
"""Of what is neither a share, 1 at most, nor a time."""
LONGEST_US = 2e5
Configuration = tuple[Any, ...]


def chosen_rows(services: Sequence[Service], usable: Mask) -> Mask:
    """[n] whether a row is fitted: it is usable, and its configuration the middle one of its family, which has others to be scored."""
    families: dict[tuple[str, ...], list[Configuration]] = {}
    for one, good in zip(services, usable, strict=True):
        if good:
            families.setdefault(one.family, []).append(one.configuration)
    several = [sorted(set(found), key=repr) for found in families.values() if len(found) >= LEAST_ROWS]
    fitted = {found[len(found) // 2] for found in several if len(found) > 1}
    return np.array([good and one.configuration in fitted for one, good in zip(services, usable, strict=True)], bool)


def fit_serving(services: Services, index: Integers, heard: Callable[[str], None] = lambda text: None, rounds: int = ROUNDS) -> Calibration:
    """The calibration that the rows at `index` give."""
    rows = services.take(index)
    weight = row_weights(rows.rows)
    fit: Fit = (PRIOR, {})
    offsets: dict[str, dict[str, float]] = {}
    for number in range(rounds):
        fit = _fit_engine(rows, weight, fit, offsets)
        ttft, tpot = rows.predict(*fit)
        offsets = {
            "ttft": fit_offsets(rows.rows, "ttft", np.log(rows.ttft / ttft), weight),
            "tpot": fit_offsets(rows.rows, "tpot", np.log(rows.tpot / tpot), weight),
        }
        heard(f"round {number + 1} of {rounds}")
    return Calibration(fit[0], offsets, fit[1], {})


def row_weights(rows: Sequence[Service]) -> Floats:
    """[n] weight of a residual: those of a configuration with many rows count less."""
    counts = Counter(row.configuration for row in rows)
    return np.array([min(1.0, (ENOUGH / counts[row.configuration]) ** 0.5) for row in rows])


def apply_offsets(rows: Sequence[Service], figure: str, offsets: Mapping[str, float]) -> Floats:
    """[n] sum of the offsets of each row's groups by `ttft` or `tpot`."""
    return np.array([sum(offsets.get(group, 0.0) for group in groups_of(row.words, figure)) for row in rows])


def fit_offsets(rows: Sequence[Service], figure: str, residual: Floats, weight: Floats) -> dict[str, float]:
    """Group -> offset: ridge regression of the logarithms of measured over predicted [n], wild rows counted less."""
    members = [groups_of(row.words, figure) for row in rows]
    groups = sorted({group for found in members for group in found})
    place = {group: i for i, group in enumerate(groups)}
    design = np.zeros((len(rows), len(groups)))
    for i, found in enumerate(members):
        design[i, [place[group] for group in found]] = 1.0
    calm: Floats = np.ones(len(rows))
    solution: Floats = np.zeros(len(groups))
    for _ in range(8):
        scaled = design * (weight**2 * calm)[:, None]
        solution = np.asarray(np.linalg.solve(design.T @ scaled + RIDGE * np.eye(len(groups)), scaled.T @ residual), float)
        calm = 1.0 / np.maximum(1.0, np.abs(residual - design @ solution) / WILD)
    return {group: round(float(value), 4) for group, value in zip(groups, solution, strict=True) if abs(value) >= 5e-4}


Fit = tuple[Engine, dict[str, dict[str, float]]]
"""An engine, and what its backends have of their own."""


def _fit_engine(rows: Services, weight: Floats, start: Fit, offsets: Mapping[str, Mapping[str, float]]) -> Fit:
    from scipy.optimize import least_squares

    prior = _logs((PRIOR, {}))
    low, high = (np.concatenate([np.log([edge(name) for name in NAMES]), np.full(len(prior) - len(NAMES), sign)]) for edge, sign in EDGES)
    shift = {figure: apply_offsets(rows.rows, figure, found) for figure, found in offsets.items()}
    pull = PULL * np.sqrt(len(rows.rows)) / SPREAD

    def residuals(x: Floats) -> Floats:
        ttft, tpot = rows.predict(*_fit(x))
        of_tpot = soft((np.log(tpot / rows.tpot) + shift.get("tpot", 0.0)) / SOFT)
        of_ttft = soft(TTFT_WEIGHT * (np.log(ttft / rows.ttft) + shift.get("ttft", 0.0)) / TTFT_SOFT)
        return np.concatenate([of_tpot * weight, of_ttft * weight, pull * (x - prior)])

    begin = np.clip(_logs(start), low + 1e-6, high - 1e-6)
    best = least_squares(residuals, begin, bounds=(low, high), diff_step=[1e-3] * len(begin), x_scale=1.0, max_nfev=15)
    return _fit(best.x)


def _logs(fit: Fit) -> Floats:
    """Logarithms of the engine's numbers, then of each backend's over those."""
    engine, backends = fit
    own = [np.log(backends.get(b, {}).get(name, getattr(engine, name)) / getattr(engine, name)) for b in BACKENDS for name in OF_BACKENDS]
    return np.concatenate([np.log([getattr(engine, name) for name in NAMES]), own])


def _fit(x: Floats) -> Fit:
    engine = replace(PRIOR, **{name: float(np.exp(value)) for name, value in zip(NAMES, x, strict=False)})
    own = iter(np.exp(x[len(NAMES) :]))
    return engine, {b: {name: float(getattr(engine, name) * next(own)) for name in OF_BACKENDS} for b in BACKENDS}


def _lowest(name: str) -> float:
    return 1e-4 if name.endswith("_us") or name in ("burst", "interference", "wait", "imbalance") else 0.02


def _highest(name: str) -> float:
    return LONGEST_US if name.endswith("_us") else HIGHEST.get(name, 1.0)


EDGES = ((_lowest, np.log(0.1)), (_highest, np.log(10.0)))
"""Of the numbers, and of a backend's over them."""
