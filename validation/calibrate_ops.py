"""Fitting the profiles of ops (dense GEMM, attention, ...) to measured rows, as `calibrate` fits those of MoE layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.hardware import load_gpu
from perfmodel.ops.catalog import OPS, get_op, get_op_profile
from perfmodel.ops.op import REGIMES, Op, OpTime, Parameter, Use
from perfmodel.profiles.op_profile import OpFit, OpProfile, op_profile_ids
from perfmodel.validation.calibrate import Family, families
from perfmodel.validation.columns import TOKENS
from perfmodel.validation.fitting import LEAST_ROWS, draw, hashed_share, intervals, limits, provenance, rest_of, solve
from perfmodel.validation.measurements import Floats, Integers, Mask, Measurements, group_ids

MOST_ROWS, MOST_APART = 2000, 1000
"""Of a family, drawn at random from its shares for parameters and for intervals."""
SHAPES, SHAPES_APART = 300, 150
"""Of a thousand shapes, those that rows for parameters and for intervals are drawn from: few rows each of many shapes tell the most."""
MOST_SHARE, MOST_SHARE_APART = 0.028, 0.016
"""Of a family's rows, likewise, but for the least that a fit needs."""


@dataclass(frozen=True)
class FittedOp:
    """What a family's rows gave."""

    family: Family
    fit: OpFit
    rows: int
    errors: Mapping[str, float]
    """Standard error of the logarithm of each parameter; infinite where the rows say nothing of it."""


class OpBatch:
    """Rows of a family, ready to be timed again and again with other parameters."""

    def __init__(self, op: Op, rows: Measurements, index: Integers, fit: OpFit) -> None:
        self.op, self.measured = op, rows.latency[index]
        self.parts: list[tuple[Integers, Use, dict[str, Floats]]] = []
        ids = group_ids([rows.labels[name].codes[index] for name in ("gpu", "format")])
        for number in range(int(ids.max(initial=-1)) + 1):
            place = np.flatnonzero(ids == number)
            mine = index[place]
            use = Use(load_gpu(rows.labels["gpu"][int(mine[0])]), rows.labels["format"][int(mine[0])], fit.menus)
            self.parts.append((place, use, {name: rows.sizes[name][mine].astype(float) for name in op.sizes}))

    def times(self, parameters: Mapping[str, float]) -> OpTime:
        """[n] seconds."""
        out = OpTime(*(np.empty(len(self.measured)) for _ in range(4)))
        for place, use, sizes in self.parts:
            time = self.op.time(use, sizes, parameters)
            for name in ("total", "floor", "compute", "memory"):
                getattr(out, name)[place] = getattr(time, name)
        return out


def fit_op_family(rows: Measurements, index: Integers, share: Integers, family: Family, profile: OpProfile) -> FittedOp | None:
    """Parameters and intervals of a family from some rows of `index`; None where they are too few. `profile` has the menus."""
    op, base = get_op(profile.op), profile.find_fit(family.architecture, family.format)
    if base is None:
        return None
    to_fit, apart_to = _shapes(share[index])
    chosen = draw(index[share[index] < to_fit], _most(len(index), MOST_SHARE, MOST_ROWS))
    apart = draw(index[(share[index] >= to_fit) & (share[index] < apart_to)], _most(len(index), MOST_SHARE_APART, MOST_APART))
    if len(chosen) < LEAST_ROWS:
        return None
    batch = OpBatch(op, rows, chosen, base)
    parameters, errors = solve(lambda values: batch.times(values).total, batch.measured, op.parameters)
    held = OpBatch(op, rows, apart, base) if len(apart) >= LEAST_ROWS else batch
    time, told = held.times(parameters), chosen if held is batch else apart
    whole, parts = intervals(held.measured / time.total, np.array(REGIMES)[time.regime()], REGIMES, len(np.unique(share[told])))
    used = len(chosen) + (len(apart) if held is not batch else 0)
    error = float(np.median(np.abs(batch.times(parameters).total / batch.measured - 1.0)))
    fit = OpFit(
        architectures=(family.architecture,),
        formats=(family.format,),
        menus=base.menus,
        parameters={name: value for name, value in parameters.items() if _is_told(value, op.parameters[name], errors[name])},
        interval=whole,
        intervals=parts,
        provenance=provenance(used, error),
    )
    return FittedOp(family, fit, used, errors)


def _is_told(value: float, parameter: Parameter, error: float) -> bool:
    """Whether rows said anything of a parameter: one that changes nothing stays where it is expected, and out of the file."""
    return error < float("inf") or abs(value / parameter.expected - 1.0) > 1e-3


def _shapes(share: Integers) -> tuple[int, int]:
    """Shares of shapes of a family up to which parameters are fitted, and from there up to which intervals; at least as `limits` says."""
    fit, apart_to = limits(share)
    fit = max(fit, SHAPES)
    return fit, max(apart_to, fit + SHAPES_APART)


def _most(rows: int, share: float, most: int) -> int:
    """Rows to draw of a family of so many: a share of it, no more than `most`, no fewer than a fit needs."""
    return max(LEAST_ROWS, min(most, int(share * rows)))


def calibrate_ops(
    rows: Measurements, usable: Mask, heard: Callable[[Family, FittedOp | None], None] = lambda family, fitted: None
) -> list[FittedOp]:
    """A fit for each family of the usable rows that has a profile to start from and rows enough."""
    found: list[FittedOp] = []
    if rows.kind in OPS and OPS[rows.kind].scarce:
        from perfmodel.validation.calibrate_scarce import fit_scarce

        for family, fitted in fit_scarce(rows, usable):
            heard(family, fitted)
            found += [fitted] if fitted else []
        return found
    share = hashed_share([column for name, column in rows.sizes.items() if name != TOKENS[rows.kind]])
    for family, index in families(rows, usable).items():
        fitted = None
        if family.kernel in op_profile_ids():
            fitted = fit_op_family(rows, index, share, family, get_op_profile(family.kernel))
        heard(family, fitted)
        found += [fitted] if fitted else []
    return found


def refitted_op(profile: OpProfile, fits: list[FittedOp]) -> OpProfile:
    """The profile with these fits in place of its own for their architectures and formats."""
    mine = [fitted for fitted in fits if fitted.family.kernel == profile.id]
    taken = {(fitted.family.architecture, form) for fitted in mine for form in fitted.fit.formats}
    return profile.model_copy(update={"fits": (*(fitted.fit for fitted in mine), *rest_of(profile.fits, taken))})
