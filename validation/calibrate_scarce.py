"""Fitting ops whose tables are small (collectives): few rows for each fit, well spread, and intervals without rows of their own.

The formats of a kernel share a fit, and so do profiles of one pool (the rings of NCCL), which differ in menus alone. The
rows of a kernel on an architecture are sorted by size and cut into as many cells as rows may be used; each cell gives the row with the
lowest hash. Intervals come from the same rows: what the fit leaves of them, and what it leaves of rows that it has not seen
(cross-validation), weighed by the share of the family's rows that repeat a drawn shape (in another release or format) and that do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.ops.catalog import get_op, get_op_profile
from perfmodel.ops.op import REGIMES, Op
from perfmodel.profiles.op_profile import OpFit, Regime, op_profile_ids
from perfmodel.profiles.profile import Interval
from perfmodel.validation.calibrate import Family, families
from perfmodel.validation.calibrate_ops import FittedOp, OpBatch
from perfmodel.validation.fitting import WIDEST, provenance, solve
from perfmodel.validation.measurements import Floats, Integers, Mask, Measurements, group_ids

SHARE, POWER = 3.3, 0.35
"""Rows used of n: SHARE n^POWER, 5 % of all collectives, more of the small families and less of the large."""
LEAST_USED = 12
LEAST_APART = 9
"""Rows of a regime from which it has an interval of its own; the extremes of so many hold 80 % of further ones on average."""
FOLDS = 4


@dataclass(frozen=True)
class Member:
    """A kernel of a pool on one architecture, with the rows drawn from it and the fit that it starts from."""

    family: Family
    formats: tuple[str, ...]
    drawn: Integers
    unseen: float
    """Share of the family's rows whose shape is not among the drawn ones."""
    base: OpFit


class PooledBatch:
    """The drawn rows of all members, one after the other, or those of them that `chosen` [n] tells."""

    def __init__(self, op: Op, rows: Measurements, members: Sequence[Member], chosen: Mask | None = None) -> None:
        self.batches, start = [], 0
        for member in members:
            mine = slice(None) if chosen is None else chosen[start : start + len(member.drawn)]
            self.batches.append(OpBatch(op, rows, member.drawn[mine], member.base))
            start += len(member.drawn)
        self.op, self.measured = op, np.concatenate([batch.measured for batch in self.batches])

    def total(self, parameters: Mapping[str, float]) -> Floats:
        """[n] seconds."""
        return np.concatenate([batch.times(parameters).total for batch in self.batches])

    def regimes(self, parameters: Mapping[str, float]) -> Integers:
        """[n] index into REGIMES."""
        return np.concatenate([batch.times(parameters).regime() for batch in self.batches])

    def solve(self) -> tuple[dict[str, float], dict[str, float]]:
        """Parameters, and standard errors of their logarithms."""
        return solve(self.total, self.measured, self.op.parameters)

    def is_felt(self, parameters: Mapping[str, float], name: str) -> bool:
        """Whether some row's time changes with a parameter; those that no row feels stay as the op expects them."""
        moved = self.total({**parameters, name: parameters[name] * 1.01})
        return bool((moved != self.total(parameters)).any())


def fit_scarce(rows: Measurements, usable: Mask) -> Iterator[tuple[Family, FittedOp | None]]:
    """Each family of the usable rows with its fit, None where there is no profile to start from or there are too few rows."""
    op = get_op(rows.kind)
    pools: dict[tuple[str, str], list[Member]] = {}
    for family, formats, index in _all_formats(rows, usable):
        profile = get_op_profile(family.kernel) if family.kernel in op_profile_ids() else None
        base = profile.find_fit(family.architecture, family.format) if profile else None
        if profile is None or base is None or len(index) < LEAST_USED:
            yield family, None
            continue
        drawn = spread_draw(op, rows, index)
        member = Member(family, formats, drawn, unseen_share(op, rows, index, drawn), base)
        pools.setdefault((profile.pool or profile.id, family.architecture), []).append(member)
    for members in pools.values():
        yield from fit_pool(op, rows, members)


def _all_formats(rows: Measurements, usable: Mask) -> Iterator[tuple[Family, tuple[str, ...], Integers]]:
    """Families that differ in the format alone as one, named after its first format: family, formats, rows."""
    found: dict[tuple[str, str], dict[str, Integers]] = {}
    for family, index in families(rows, usable).items():
        found.setdefault((family.kernel, family.architecture), {})[family.format] = index
    for (kernel, architecture), parts in found.items():
        formats = tuple(sorted(parts))
        yield Family(kernel, architecture, formats[0]), formats, np.sort(np.concatenate(list(parts.values())))


def spread_draw(op: Op, rows: Measurements, index: Integers) -> Integers:
    """Of the rows `index`, sorted by all sizes, the one with the lowest hash in each of as many cells as rows may be used."""
    count = min(len(index), max(LEAST_USED, round(SHARE * len(index) ** POWER)))
    by = [name for name in op.sizes if name != op.grows]
    order = index[np.lexsort([rows.sizes[op.grows][index]] + [rows.sizes[name][index] for name in by])]
    return np.array([min(cell, key=lambda row: _hash(op, rows, int(row))) for cell in np.array_split(order, count)])


def unseen_share(op: Op, rows: Measurements, index: Integers, drawn: Integers) -> float:
    """Share of the rows `index` whose sizes are those of no drawn row."""
    shape = group_ids([rows.sizes[name][index] for name in op.sizes])
    return float(np.mean(~np.isin(shape, shape[np.isin(index, drawn)])))


def fit_pool(op: Op, rows: Measurements, members: Sequence[Member]) -> Iterator[tuple[Family, FittedOp]]:
    """Parameters from the rows of all members, and what is left of them as the interval, alike for all members."""
    batch = PooledBatch(op, rows, members)
    parameters, errors = batch.solve()
    felt = {name: value for name, value in parameters.items() if batch.is_felt(parameters, name)}
    ratios = np.stack([batch.measured / batch.total(parameters), cross_ratios(op, rows, members, len(batch.measured))])
    unseen = float(np.mean([member.unseen for member in members]))
    regimes = batch.regimes(parameters)
    parts = {}
    for number, name in enumerate(REGIMES):
        if (regimes == number).sum() >= LEAST_APART:
            parts[name] = _interval(ratios[:, regimes == number], unseen)
    error = float(np.median(np.abs(1.0 / ratios[0] - 1.0)))
    for member in members:
        yield member.family, FittedOp(member.family, _fit(member, felt, _interval(ratios, unseen), parts, error), len(member.drawn), errors)


def cross_ratios(op: Op, rows: Measurements, members: Sequence[Member], count: int) -> Floats:
    """[count] measured over predicted of each drawn row, by parameters that were fitted without it."""
    ratios = np.empty(count)
    for fold in range(FOLDS):
        out = np.arange(count) % FOLDS == fold
        unseen = PooledBatch(op, rows, members, out)
        parameters, _ = PooledBatch(op, rows, members, ~out).solve()
        ratios[out] = unseen.measured / unseen.total(parameters)
    return ratios


def _fit(member: Member, parameters: dict[str, float], interval: Interval, parts: dict[Regime, Interval], error: float) -> OpFit:
    return OpFit(
        architectures=(member.family.architecture,),
        formats=member.formats,
        menus=member.base.menus,
        parameters=parameters,
        interval=interval,
        intervals=parts,
        provenance=provenance(len(member.drawn), error),
    )


def _interval(ratios: Floats, unseen: float) -> Interval:
    """From ratios [2, n] of seen and unseen rows, the latter weighed by `unseen`.

    The order statistics that are taken hold 80 % of further rows on average: a span of n - 1 gaps holds (n - 1) / (n + 1) of them.
    """
    n = ratios.shape[1]
    tail = max(0.0, 0.5 * (1.0 - 0.8 * (n + 1) / (n - 1)))
    low, high = np.exp(np.array([1.0 - unseen, unseen]) @ np.quantile(np.log(ratios), [tail, 1.0 - tail], axis=1).T)
    return Interval(low=round(float(np.clip(low, 0.01, 0.99)), 3), high=round(float(np.clip(high, 1.01, WIDEST)), 3))


def _hash(op: Op, rows: Measurements, row: int) -> str:
    text = [rows.labels[name][row] for name in ("gpu", "source", "format")] + [str(int(rows.sizes[name][row])) for name in op.sizes]
    return hashlib.md5("|".join(text).encode()).hexdigest()
