"""Fitting the engine to measured services: physical parameters by bounded, robust least squares, then offsets of groups, drawn to 0.

A fifth of the configurations is fitted: in the order of mode, backend, model, precision and GPU every fifth, so that kinds of services are
there in proportion. Parameters and offsets take turns, so that what one model or engine has of its own does not bend what all share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.serving.engine import NAMES, Calibration, Engine, groups_of
from perfmodel.validation.measurements import Floats, Integers, Mask
from perfmodel.validation.serving.predict import Services
from perfmodel.validation.serving.rows import Service

EVERY, FIRST = 5, 2
ROUNDS = 4
SOFT, TTFT_SOFT, TTFT_WEIGHT = 0.12, 0.24, 0.5
"""Residuals beyond these count less and less; a TTFT counts half as much as a TPOT."""
PULL, SPREAD = 0.03, 0.6
"""Weight of a prior against the root of the rows, and the spread of a parameter's logarithm around it."""
RIDGE = 10.0
"""Rows' worth that draw an offset to 0."""
ENOUGH = 12
"""Rows of a configuration beyond which each counts less."""
WILD = 0.2
PRIOR = Engine()
HIGHEST: Mapping[str, float] = {
    "pass_bytes": 400.0, "interference": 2.0, "burst": 2.0, "wait": 5.0, "tile": 200.0, "imbalance": 2.0, "blackwell_overhead": 3.0,
    "blackwell_tensor": 3.0,
}  # fmt: skip
"""Of what is neither a share, 1 at most, nor a time."""
LONGEST_US = 2e5


@dataclass(frozen=True)
class FittedServing:
    """A calibration, and which of n rows it was made of."""

    calibration: Calibration
    used: Mask


def chosen_rows(services: Sequence[Service]) -> Mask:
    """[n] whether a row's configuration is one of those that are fitted."""
    found = sorted(
        dict.fromkeys(one.configuration for one in services), key=lambda c: (c[4], c[2], c[0], c[3], c[1], *map(repr, c[5:]))
    )  # by mode, backend, model, precision, GPU
    fitted = set(found[FIRST::EVERY])
    return np.array([one.configuration in fitted for one in services], bool)


def fit_serving(services: Services, index: Integers, heard: Callable[[str], None] = lambda text: None) -> Calibration:
    """The calibration that the rows at `index` give."""
    rows = services.take(index)
    weight = row_weights(rows.rows)
    engine = PRIOR
    offsets: dict[str, dict[str, float]] = {"ttft": {}, "tpot": {}}
    for number in range(ROUNDS):
        engine = _fit_engine(rows, weight, engine, offsets)
        ttft, tpot = rows.predict(engine)
        offsets = {
            "ttft": fit_offsets(rows.rows, np.log(rows.ttft / ttft), weight),
            "tpot": fit_offsets(rows.rows, np.log(rows.tpot / tpot), weight),
        }
        heard(f"round {number + 1} of {ROUNDS}")
    return Calibration(engine, offsets, {})


def row_weights(rows: Sequence[Service]) -> Floats:
    """[n] weight of a residual: those of a configuration with many rows count less."""
    counts = Counter(row.configuration for row in rows)
    return np.array([min(1.0, (ENOUGH / counts[row.configuration]) ** 0.5) for row in rows])


def apply_offsets(rows: Sequence[Service], offsets: Mapping[str, float]) -> Floats:
    """[n] sum of the offsets of each row's groups."""
    return np.array([sum(offsets.get(group, 0.0) for group in groups_of(row.words)) for row in rows])


def fit_offsets(rows: Sequence[Service], residual: Floats, weight: Floats) -> dict[str, float]:
    """Group -> offset: ridge regression of the logarithms of measured over predicted [n], wild rows counted less."""
    members = [groups_of(row.words) for row in rows]
    groups = sorted({group for found in members for group in found})
    place = {group: i for i, group in enumerate(groups)}
    design = np.zeros((len(rows), len(groups)))
    for i, found in enumerate(members):
        design[i, [place[group] for group in found]] = 1.0
    calm, solution = np.ones(len(rows)), np.zeros(len(groups))
    for _ in range(8):
        scaled = design * (weight**2 * calm)[:, None]
        solution = np.linalg.solve(design.T @ scaled + RIDGE * np.eye(len(groups)), scaled.T @ residual)
        calm = 1.0 / np.maximum(1.0, np.abs(residual - design @ solution) / WILD)
    return {group: round(float(value), 4) for group, value in zip(groups, solution, strict=True) if abs(value) >= 5e-4}


def _fit_engine(rows: Services, weight: Floats, start: Engine, offsets: Mapping[str, Mapping[str, float]]) -> Engine:
    from scipy.optimize import least_squares

    low, high = (np.log([edge(name) for name in NAMES]) for edge in (_lowest, _highest))
    prior = np.log([getattr(PRIOR, name) for name in NAMES])
    shift = {figure: apply_offsets(rows.rows, found) for figure, found in offsets.items()}
    pull = PULL * np.sqrt(len(rows.rows)) / SPREAD

    def residuals(x: Floats) -> Floats:
        ttft, tpot = rows.predict(_engine(x))
        of_tpot = _soft((np.log(tpot / rows.tpot) + shift["tpot"]) / SOFT)
        of_ttft = _soft(TTFT_WEIGHT * (np.log(ttft / rows.ttft) + shift["ttft"]) / TTFT_SOFT)
        return np.concatenate([of_tpot * weight, of_ttft * weight, pull * (x - prior)])

    begin = np.clip(np.log([getattr(start, name) for name in NAMES]), low + 1e-6, high - 1e-6)
    best = least_squares(residuals, begin, bounds=(low, high), diff_step=1e-3, max_nfev=15)
    return _engine(best.x)


def _engine(x: Floats) -> Engine:
    return replace(PRIOR, **{name: float(np.exp(value)) for name, value in zip(NAMES, x, strict=True)})


def _soft(r: Floats) -> Floats:
    """The pseudo-Huber root of a residual."""
    result: Floats = np.sign(r) * np.sqrt(2.0 * (np.sqrt(1.0 + r * r) - 1.0))
    return result


def _lowest(name: str) -> float:
    return 1e-4 if name.endswith("_us") or name in ("burst", "interference", "wait", "imbalance") else 0.02


def _highest(name: str) -> float:
    return LONGEST_US if name.endswith("_us") else HIGHEST.get(name, 1.0)
