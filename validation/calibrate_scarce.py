"""Fitting ops whose tables are small (collectives): few rows for each fit, well spread, and intervals without rows of their own.

Formats that an op does not tell apart share a fit. The rows of a family are sorted by ranks, launch and size and cut into as many cells
as rows may be used, about SHARE times the root of the family; each cell gives the row with the lowest hash. Intervals come from
cross-validation: each quarter of the cells is predicted by parameters fitted on the other three.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import date

import numpy as np

from perfmodel.ops.catalog import get_op
from perfmodel.ops.op import REGIMES, Op
from perfmodel.profiles.op_profile import OpFit, load_op_profile, op_profile_ids
from perfmodel.profiles.profile import Interval, Provenance
from perfmodel.validation.calibrate import Family, families
from perfmodel.validation.calibrate_ops import FittedOp, OpBatch
from perfmodel.validation.fitting import WIDEST, Unknown, solve
from perfmodel.validation.measurements import Floats, Integers, Mask, Measurements

SHARE = 1.3
"""Rows used over the root of the family's rows: 5 % of all collectives, more of the small families and less of the large."""
LEAST_USED = 12
FOLDS = 4


def fit_scarce(rows: Measurements, usable: Mask) -> Iterator[tuple[Family, FittedOp | None]]:
    """Each family of the usable rows with its fit, None where there is no profile to start from or there are too few rows."""
    op = get_op(rows.kind)
    for family, formats, index in pooled(rows, usable):
        base = load_op_profile(family.kernel).find_fit(family.architecture, family.format) if family.kernel in op_profile_ids() else None
        enough = base is not None and len(index) >= LEAST_USED
        yield family, fit_pool(op, rows, index, family, formats, base) if base is not None and enough else None


def pooled(rows: Measurements, usable: Mask) -> Iterator[tuple[Family, tuple[str, ...], Integers]]:
    """Families that differ in the format alone as one, named after its first format: family, formats, rows."""
    found: dict[tuple[str, str], dict[str, Integers]] = {}
    for family, index in families(rows, usable).items():
        found.setdefault((family.kernel, family.architecture), {})[family.format] = index
    for (kernel, architecture), parts in found.items():
        formats = tuple(sorted(parts))
        yield Family(kernel, architecture, formats[0]), formats, np.sort(np.concatenate(list(parts.values())))


def fit_pool(op: Op, rows: Measurements, index: Integers, family: Family, formats: tuple[str, ...], base: OpFit) -> FittedOp:
    """Parameters from the drawn rows of `index`, intervals from cross-validation on the same."""
    chosen = spread_draw(op, rows, index)
    batch = OpBatch(op, rows, chosen, base)
    parameters, errors = solve(lambda values: batch.times(values).total, batch.measured, _unknowns(op))
    parameters = {name: value for name, value in parameters.items() if np.isfinite(errors[name])}
    complete = op.complete(parameters)
    whole, parts = _intervals(cross_ratios(op, rows, chosen, base), np.array(REGIMES)[batch.times(complete).regime()])
    error = float(np.median(np.abs(batch.times(complete).total / batch.measured - 1.0)))
    fit = OpFit(
        architectures=(family.architecture,),
        formats=formats,
        menus=base.menus,
        parameters=parameters,
        interval=whole,
        intervals=parts,
        provenance=Provenance(
            status="measured",
            date=date.today().isoformat(),
            dataset="aiconfigurator-core 0.12.0 (Apache-2.0)",
            rows=len(chosen),
            source=f"perfmodel calibrate: robust least squares on rows that a hash picks; median error {error:.1%}",
        ),
    )
    return FittedOp(family, fit, len(chosen), errors)


def spread_draw(op: Op, rows: Measurements, index: Integers) -> Integers:
    """Of the rows `index`, sorted by all sizes, the one with the lowest hash in each of as many cells as rows may be used."""
    count = min(len(index), max(LEAST_USED, round(SHARE * np.sqrt(len(index)))))
    by = [name for name in op.sizes if name != op.grows]
    order = index[np.lexsort([rows.sizes[op.grows][index]] + [rows.sizes[name][index] for name in by])]
    return np.array([min(cell, key=lambda row: _hash(op, rows, int(row))) for cell in np.array_split(order, count)])


def cross_ratios(op: Op, rows: Measurements, chosen: Integers, base: OpFit) -> Floats:
    """[n] measured over predicted of each chosen row, by parameters that were fitted without it."""
    ratios = np.empty(len(chosen))
    for fold in range(FOLDS):
        out = np.arange(len(chosen)) % FOLDS == fold
        known, unseen = OpBatch(op, rows, chosen[~out], base), OpBatch(op, rows, chosen[out], base)
        parameters, _ = solve(lambda values, known=known: known.times(values).total, known.measured, _unknowns(op))  # type: ignore[misc]
        ratios[out] = unseen.measured / unseen.times(parameters).total
    return ratios


def _intervals(ratio: Floats, regime: np.ndarray) -> tuple[Interval, dict[str, Interval]]:  # type: ignore[type-arg]
    return _interval(ratio), {name: _interval(ratio[regime == name]) for name in REGIMES if (regime == name).sum() >= LEAST_USED}


def _interval(ratio: Floats) -> Interval:
    """Between order statistics of n rows that hold 80 % of what comes, on average: a span of n - 1 gaps holds (n - 1) / (n + 1)."""
    n = len(ratio)
    tail = max(0.0, 0.5 * (1.0 - 0.8 * (n + 1) / (n - 1)))
    low, high = np.quantile(ratio, [tail, 1.0 - tail])
    return Interval(low=round(float(np.clip(low, 0.01, 0.99)), 3), high=round(float(np.clip(high, 1.01, WIDEST)), 3))


def _unknowns(op: Op) -> dict[str, Unknown]:
    return {name: Unknown(one.expected, one.spread, one.low, one.high) for name, one in op.parameters.items()}


def _hash(op: Op, rows: Measurements, row: int) -> str:
    text = [rows.labels[name][row] for name in ("gpu", "source", "format")] + [str(int(rows.sizes[name][row])) for name in op.sizes]
    return hashlib.md5("|".join(text).encode()).hexdigest()
