"""Robust, bounded least squares on the logarithm of time, and the intervals of what is left; what all calibrations share.

Each residual r counts as the pseudo-Huber 2 (sqrt(1 + (r / SOFT)^2) - 1) that a few wild rows cannot bend; parameters are sought as
logarithms, inside physical bounds, drawn weakly to a prior where the rows do not say enough.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import date
from typing import Any, TypeVar

import numpy as np

from perfmodel.ops.op import Parameter
from perfmodel.profiles.op_profile import OpFit
from perfmodel.profiles.profile import Fit, Interval, Provenance
from perfmodel.validation.measurements import Floats, Integers, group_ids

LEAST_SHARE, MOST_SHARE = 60, 160
"""Of a thousand shapes of a family: what parameters are fitted on."""
WANTED_ROWS = 3000
LEAST_ROWS = 40
SOFT = 0.08
PULL = 0.02
"""Weight of a prior's deviation against the residual of one row, times the root of the rows."""
WIDEST = 10.0

F = TypeVar("F", Fit, OpFit)


def solve(
    predict: Callable[[dict[str, float]], Floats], measured: Floats, unknowns: Mapping[str, Parameter]
) -> tuple[dict[str, float], dict[str, float]]:
    """Parameters for which predict(parameters) [n] comes nearest to `measured` [n] seconds, and standard errors of their logarithms."""
    from scipy.optimize import least_squares

    low, high, expected = (np.log([getattr(one, side) for one in unknowns.values()]) for side in ("low", "high", "expected"))
    spread = np.array([one.spread for one in unknowns.values()])
    logs, weight = np.log(measured), PULL * np.sqrt(len(measured))

    origin = low - 1.0  # steps of derivatives are shares of a variable: none may be near 0

    def named(x: Floats) -> dict[str, float]:
        return {name: float(value) for name, value in zip(unknowns, np.exp(np.clip(x + origin, low, high)), strict=True)}

    def residuals(x: Floats) -> Floats:
        r = np.log(predict(named(x))) - logs
        return np.concatenate([soft(r / SOFT), weight * (x + origin - expected) / spread])

    start = np.clip(expected, low, high) - origin
    best = least_squares(residuals, start, bounds=(low - origin, high - origin), diff_step=[1e-3] * len(unknowns), max_nfev=30)
    return named(best.x), _standard_errors(best, list(unknowns), len(measured))


def soft(r: Floats) -> Floats:
    """The pseudo-Huber root of residuals [n] over their scale: its square grows like a square below 1 and like a line beyond."""
    result: Floats = np.sign(r) * np.sqrt(2.0 * (np.sqrt(1.0 + r * r) - 1.0))
    return result


def _standard_errors(solution: Any, names: Sequence[str], rows: int) -> dict[str, float]:
    """Of the logarithms of the parameters, from the Jacobian of the rows alone; infinite where the rows say nothing of one."""
    jacobian = solution.jac[:rows]
    variance = 2.0 * float(np.mean(solution.fun[:rows] ** 2))
    covariance = np.linalg.pinv(jacobian.T @ jacobian, rcond=1e-9) * variance
    seen = np.abs(jacobian).sum(axis=0) > 0
    told = seen & (np.diag(covariance) >= 0)  # below 0 by rounding, where parameters cannot be told apart
    return {name: float(np.sqrt(covariance[i, i])) if told[i] else float("inf") for i, name in enumerate(names)}


def hashed_share(columns: Sequence[Integers]) -> Integers:
    """[n] a number from 0 to 999 for each row, by a hash of its shape, the `columns` [n] each."""
    ids = group_ids(columns)
    first = np.unique(ids, return_index=True)[1]
    digest = [hashlib.md5("|".join(str(int(column[i])) for column in columns).encode()).hexdigest() for i in first]
    return np.array([int(text[:8], 16) % 1000 for text in digest], np.int64)[ids]


def provenance(rows: int, error: float, table: str = "") -> Provenance:
    """Of a fit on so many rows of a `table`, with its median error on those that gave the parameters."""
    return Provenance(
        status="measured",
        date=date.today().isoformat(),
        dataset=f"aiconfigurator-core 0.12.0{table and f', {table}'} (Apache-2.0)",
        rows=rows,
        source=f"perfmodel calibrate: robust least squares on rows that a hash of the shape picks; median error {error:.1%}",
    )


def shares(rows: int) -> tuple[int, int]:
    """Of a thousand shapes of a family with so many rows: up to which parameters are fitted, and from there up to which intervals."""
    fit = int(np.clip(1000 * WANTED_ROWS / max(rows, 1), LEAST_SHARE, MOST_SHARE))
    return fit, fit + fit // 2


def limits(share: Integers) -> tuple[int, int]:
    """As `shares`, but of a family of few shapes at least two to fit on and one for the intervals."""
    fit, apart_to = shares(len(share))
    lowest = np.unique(share)[:3]
    if len(lowest) == 3:
        fit = max(fit, int(lowest[1]) + 1)
        apart_to = max(apart_to, int(lowest[2]) + 1, fit)
    return fit, apart_to


def draw(index: Integers, most: int) -> Integers:
    """At most so many of `index`, at random but always the same."""
    if len(index) <= most:
        return index
    return np.sort(np.random.default_rng(0).choice(index, most, replace=False))


def intervals(ratio: Floats, regime: Any, regimes: Sequence[str], shapes: int) -> tuple[Interval, dict[Any, Interval]]:
    """80 % intervals of measured over predicted `ratio` [n], over all rows and in each of `regimes` that has enough of them.

    Rows of a shape err together, so the tails are less than 10 % on either side, by what so few `shapes` may miss.
    """
    tail = max(0.02, 0.1 - 0.1 / np.sqrt(max(shapes, 1)))
    parts = {name: _interval(ratio[regime == name], tail) for name in regimes if (regime == name).sum() >= LEAST_ROWS}
    return _interval(ratio, tail), parts


def _interval(ratio: Floats, tail: float) -> Interval:
    low, high = np.quantile(ratio, [tail, 1.0 - tail])
    return Interval(low=round(float(np.clip(low, 0.01, 0.99)), 3), high=round(float(np.clip(high, 1.01, WIDEST)), 3))


def rest_of(fits: Iterable[F], taken: Container[tuple[str, str]]) -> list[F]:
    """What is left of `fits` without the (architecture, format) pairs that are `taken`.

    What differs in nothing but the architecture is one fit: the rows of its provenance were used once, not once for each architecture.
    """
    alike: dict[str, list[F]] = {}
    for fit in fits:
        for architecture in fit.architectures:
            formats = tuple(form for form in fit.formats if (architecture, form) not in taken)
            if formats:
                part = fit.model_copy(update={"architectures": (architecture,), "formats": formats})
                alike.setdefault(part.model_dump_json(exclude={"architectures"}), []).append(part)
    return [parts[0].model_copy(update={"architectures": tuple(part.architectures[0] for part in parts)}) for parts in alike.values()]
