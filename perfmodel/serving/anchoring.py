"""Predictions pulled to what a user measured: a Gaussian process over the logarithm of measured over predicted.

Two services of one model on one GPU (by one backend, if both name theirs) have a deviation from the prediction in common, of spread `pair`;
two loads of one configuration a further one, of spread `configuration`, and a third, of spread `load`, that fades with
exp(-distance / reach). `noise` is each measurement's own. All of them together are how far a prediction is off that knows no
measurement; what is left of that spread once the measurements are known narrows the 80 % interval in proportion.

Reference: Rasmussen, Williams, Gaussian Processes for Machine Learning (2006), equations 2.23 and 2.24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from perfmodel.files import load_yaml
from perfmodel.validated import Strict, validate
from perfmodel.workload.expectation import Array

FILE = Path(__file__).parent / "anchors.yaml"
FIGURES = ("ttft", "tpot")
WILD = 3.0
"""Spreads beyond which a measurement is taken to be off itself."""
Flags = NDArray[np.bool_]


class Prior(Strict):
    """Spreads of the logarithm of measured over predicted, and the reach of a load in doublings."""

    pair: float = Field(ge=0)
    configuration: float = Field(ge=0)
    load: float = Field(ge=0)
    reach: float = Field(gt=0)
    noise: float = Field(gt=0)

    @property
    def variance(self) -> float:
        """Of a measurement around its prediction."""
        return self.pair**2 + self.configuration**2 + self.load**2 + self.noise**2

    def covariance(self, same: Flags, distance: Array) -> Array:
        """[n, m] of services of one pair. same: of one configuration; distance: in doublings of the load, 0 where it is not known."""
        near = self.configuration**2 + self.load**2 * np.exp(-distance / self.reach)
        result: Array = self.pair**2 + np.where(same, near, 0.0)
        return result


@cache
def load_priors() -> dict[str, Prior]:
    """The bundled ones of `ttft` and `tpot`."""
    found = load_yaml(FILE)
    return {figure: validate(Prior, found[figure], file=FILE) for figure in FIGURES}


def load_of(clients: Any, context: Any, prompt: Any) -> Array:
    """[n, 3] logarithms to the base 2 of requests at a time, of the mean context while decoding, and of the prompt; NaN: not known."""
    columns = np.broadcast_arrays(*(np.asarray(values, dtype=float) for values in (clients, context, prompt)))
    result: Array = np.log2(np.stack(columns, axis=-1)).reshape(-1, 3)
    return result


def distances(a: Array, b: Array) -> Array:
    """[n, m] doublings between loads [n, 3] and [m, 3]; what one of them does not know is no distance."""
    between = np.nan_to_num(a[:, None, :] - b[None, :, :], nan=0.0)
    result: Array = np.sqrt(np.sum(between**2, axis=-1))
    return result


@dataclass(frozen=True)
class Pull:
    """What measurements make of predictions, vectors over these."""

    factor: Array
    """To multiply a prediction by."""
    shrink: Array
    """Spread that is left, over that without measurements: 0 to 1."""

    def interval(self, low: float, high: float) -> tuple[Array, Array]:
        """Factors over the pulled prediction between which 80 % lie, from those over a plain one."""
        return low**self.shrink, high**self.shrink


@dataclass(frozen=True)
class Posterior:
    """m measurements of one figure of services of one pair."""

    prior: Prior
    residual: Array
    """[m] logarithm of measured over predicted; NaN where this figure was not measured."""
    load: Array
    """[m, 3]"""
    same: Flags
    """[m, m] which are of one configuration."""

    @property
    def known(self) -> Flags:
        """[m] whether this figure was measured."""
        return ~np.isnan(self.residual)

    @property
    def wild(self) -> Flags:
        """[m] whether a measurement is further off than three times the spread."""
        return np.abs(np.nan_to_num(self.residual)) > WILD * math.sqrt(self.prior.variance)

    @property
    def _noise(self) -> Array:
        """[m] variance of each measurement's own: what is beyond WILD is taken for that, so that a wild one is believed the less."""
        beyond = np.maximum(self.residual**2 - WILD**2 * self.prior.variance, 0.0)
        result: Array = self.prior.noise**2 + beyond
        return result

    def at(self, same: Flags, load: Array) -> Pull:
        """The pull on n predictions. same: [n, m] which measurements are of the configuration; load: [n, 3]."""
        known = self.known
        if not known.any():
            return Pull(np.ones(len(load)), np.ones(len(load)))
        own = self.prior.covariance(self.same[np.ix_(known, known)], distances(self.load[known], self.load[known]))
        solved = np.linalg.inv(own + np.diag(self._noise[known]))
        shared = self.prior.covariance(same[:, known], distances(load, self.load[known]))
        shift = shared @ (solved @ self.residual[known])
        left = self.prior.variance - np.sum((shared @ solved) * shared, axis=1)
        return Pull(np.exp(shift), np.sqrt(np.maximum(left, 0.0) / self.prior.variance))


def posteriors(measured: Array, predicted: Array, load: Array, same: Flags) -> dict[str, Posterior]:
    """Of `ttft` and `tpot`. measured, predicted: [2, m] seconds, NaN where one was not measured; load: [m, 3]; same: [m, m]."""
    residual = np.log(measured / predicted)
    return {figure: Posterior(load_priors()[figure], residual[at], load, same) for at, figure in enumerate(FIGURES)}


class Anchoring(Strict):
    """How measurements pulled one prediction."""

    own: int
    """Measurements of its configuration."""
    similar: int
    """Others of its model and GPU."""
    ttft: float
    """What the time to the first token was multiplied by."""
    tpot: float
    """What the time for each further token was multiplied by."""


def in_words(found: Anchoring, figures: Sequence[str] = FIGURES) -> str:
    """`anchored on 2 of your measurements, TPOT x 1.12`."""
    some = [f"{found.own} of your measurements"] if found.own else []
    some += [f"{found.similar} of similar services"] if found.similar else []
    pulls = ", ".join(f"{figure.upper()} x {getattr(found, figure):.2f}" for figure in figures)
    return f"anchored on {' and '.join(some)}, {pulls}"
