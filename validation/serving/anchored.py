"""`validate serving --anchors N`: of each measured configuration N rows pull the predictions of the others, as a user's anchors do.

The anchors are chosen by their load alone: of the rows in the order of prompt, answer and clients, the middle ones of N equal parts.
Rows of the very load of an anchor are not scored. Configurations pull only themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.serving.anchoring import FIGURES, Prior, distances, load_of, posteriors
from perfmodel.validation.measurements import Floats, Integers, Mask
from perfmodel.validation.serving.fit import chosen_rows, fit_serving
from perfmodel.validation.serving.flags import flag_services
from perfmodel.validation.serving.predict import Services
from perfmodel.validation.serving.rows import Service, read_services
from perfmodel.validation.serving.validate import SCHEMA, ServingValidation, by_groups, edges_of, errors, predict_services

ENOUGH = 4
"""Rows of a configuration that may have anchors, so that one is left beside three."""
FOLDS = 5
"""Of the fitted configurations, each predicted by a fit without it."""
CALM = {"ttft": 0.9, "tpot": 0.4}
"""Residuals beyond these count as these: twice the spread, so that wild rows do not widen the prior."""
BEGIN = Prior(pair=0.13, configuration=0.13, load=0.13, reach=1.7, noise=0.03)
LOOSE = 1.5
"""Spread of the logarithms of a prior's numbers around BEGIN's: weak, for what few configurations tell."""


@dataclass(frozen=True, eq=False)
class AnchoredValidation:
    """Services of which some rows are anchors; `at` are the rows [m] that are scored, the others with their pulled predictions."""

    held: ServingValidation
    anchors: int
    """Of each configuration."""
    configurations: int
    at: Integers
    predicted: Mapping[str, Floats]
    """`ttft` and `tpot` -> [m] seconds."""
    left: Mapping[str, Floats]
    """[m] what is left of their spread."""

    def summary(self) -> dict[str, Any]:
        """The JSON object of `validate serving --anchors`."""
        return {
            "schema": SCHEMA,
            "target": "serving",
            "anchors": self.anchors,
            "configurations": self.configurations,
            "calibration": {"fraction_used": self.held.share, "rows": int(self.held.used.sum())},
            "overall": self._score(np.ones(len(self.held.flags), bool)),
            "not_fitted": self._score(~self.held.used),
            **by_groups(self.held.services.rows, self._score),
        }

    def _score(self, chosen: Mask) -> dict[str, Any]:
        """Of the chosen rows: errors with anchors, and `plain`, those of the same rows without."""
        mine = chosen[self.at]
        at = self.at[mine]
        out: dict[str, Any] = {"n": int(chosen.sum()), "scored": len(at)}
        for figure in FIGURES:
            measured, edges = getattr(self.held.services, figure)[at], edges_of(self.held.services.rows, figure)[:, at]
            plain = errors(getattr(self.held, figure)[at], measured, edges)
            out[figure] = errors(self.predicted[figure][mine], measured, edges ** self.left[figure][mine]) | {"plain": plain}
        return out


def validate_anchored(held: ServingValidation, count: int) -> AnchoredValidation:
    """What `count` anchors of each configuration make of its other rows."""
    groups = [np.array(group) for group in groups_of(held.services.rows, held.scored) if len(group) >= ENOUGH]
    found = [_one(held, group, count) for group in groups]
    at = np.concatenate([rows for rows, _ in found] or [np.zeros(0, int)])
    joined = [{f: np.concatenate([pulls[f][i] for _, pulls in found] or [np.zeros(0)]) for f in FIGURES} for i in (0, 1)]
    return AnchoredValidation(held, count, len(groups), at, *joined)


def groups_of(rows: Sequence[Service], usable: Mask) -> list[list[int]]:
    """Usable rows by configuration, in the order of prompt, answer and clients."""
    found: dict[Any, list[int]] = {}
    for at in np.flatnonzero(usable).tolist():
        found.setdefault(rows[at].configuration, []).append(at)
    return [sorted(group, key=lambda at: (*_load(rows[at]), rows[at].line)) for group in found.values()]


def choose(group: Integers, count: int) -> Integers:
    """The middle row of each of `count` equal parts."""
    return group[(2 * np.arange(count) + 1) * len(group) // (2 * count)]


def _load(row: Service) -> tuple[int, int, int]:
    return row.prompt, row.output, row.clients


def _one(held: ServingValidation, group: Integers, count: int) -> tuple[Integers, dict[str, tuple[Floats, Floats]]]:
    """Rows of a configuration at other loads than its anchors, and by figure their pulled predictions and what is left of the spread."""
    services = held.services
    anchors = choose(group, count)
    taken = {_load(services.rows[at]) for at in anchors}
    others = np.array([at for at in group if _load(services.rows[at]) not in taken], dtype=int)
    measured, predicted = (np.array([getattr(of, figure)[anchors] for figure in FIGURES]) for of in (services, held))
    of = posteriors(measured, predicted, loads(services, anchors), np.ones((count, count), bool))
    pulls = {figure: of[figure].at(np.ones((len(others), count), bool), loads(services, others)) for figure in FIGURES}
    return others, {figure: (getattr(held, figure)[others] * pull.factor, pull.shrink) for figure, pull in pulls.items()}


def loads(services: Services, at: Integers) -> Floats:
    """[n, 3] as `load_of`, by mean lengths."""
    load = services.load
    return load_of(load.clients[at], load.prompt[at] + load.output[at] / 2, load.prompt[at])


def fit_priors(heard: Callable[[str], None]) -> tuple[dict[str, Prior], int]:
    """Priors of both figures by marginal likelihood, and the rows that they were fitted on. Raises MissingRequirementError without data.

    The rows are those of the fitted configurations alone. Each is predicted by a fit without its configuration: residuals of a fit on
    itself would be too small.
    """
    rows = read_services()
    fitted = np.flatnonzero(chosen_rows(rows, np.array([not flag for flag in flag_services(rows)], bool)))
    services = Services.of([rows[at] for at in fitted])
    residual = _unseen_residuals(services, heard)
    return {figure: fit_prior(services, residual[figure], CALM[figure]) for figure in FIGURES}, len(fitted)


def _unseen_residuals(services: Services, heard: Callable[[str], None]) -> Mapping[str, Floats]:
    """[n] logarithms of measured over predicted, by fits without the row's configuration."""
    names = list(dict.fromkeys(row.configuration for row in services.rows))
    fold = np.array([names.index(row.configuration) % FOLDS for row in services.rows])
    found = {figure: np.empty(len(fold)) for figure in FIGURES}
    for number in range(FOLDS):
        heard(f"fit {number + 1} of {FOLDS}, without its configurations")
        mine = np.flatnonzero(fold == number)
        part = services.take(mine)
        times = predict_services(part, fit_serving(services, np.flatnonzero(fold != number), rounds=2))
        for figure, predicted in zip(FIGURES, times, strict=True):
            found[figure][mine] = np.log(getattr(part, figure) / predicted)
    return found


def fit_prior(services: Services, residual: Floats, calm: float) -> Prior:
    """The prior under which the residuals [n], wild ones drawn in to `calm`, are likeliest; pairs of model, GPU and backend are apart."""
    from scipy.optimize import minimize

    names = tuple(Prior.model_fields)
    groups: dict[Any, list[int]] = {}
    for at, row in enumerate(services.rows):
        groups.setdefault((*row.pair, row.backend), []).append(at)
    parts = [_Part.of(services, np.array(group), np.clip(residual[group], -calm, calm)) for group in groups.values()]
    begin = np.log([getattr(BEGIN, name) for name in names])

    def cost(x: Floats) -> float:
        prior = Prior(**dict(zip(names, np.exp(x).tolist(), strict=True)))
        return sum(part.surprise(prior) for part in parts) + 0.5 * float(np.sum(((x - begin) / LOOSE) ** 2))

    best = minimize(cost, begin, method="L-BFGS-B")
    return Prior(**{name: float(f"{value:.4g}") for name, value in zip(names, np.exp(best.x).tolist(), strict=True)})


class _Part:
    """Rows of one pair: which share a configuration, how far their loads are apart, what is left of them."""

    def __init__(self, same: Mask, distance: Floats, residual: Floats) -> None:
        self.same, self.distance, self.residual = same, distance, residual

    @classmethod
    def of(cls, services: Services, group: Integers, residual: Floats) -> _Part:
        names = [services.rows[at].configuration for at in group]
        load = loads(services, group)
        return cls(np.array([[a == b for b in names] for a in names], bool), distances(load, load), residual)

    def surprise(self, prior: Prior) -> float:
        """Negative logarithm of the likelihood, but for a constant."""
        covariance = prior.covariance(self.same, self.distance) + prior.noise**2 * np.eye(len(self.residual))
        lower = np.linalg.cholesky(covariance)
        white = np.linalg.solve(lower, self.residual)
        return float(0.5 * white @ white + np.log(np.diag(lower)).sum())


HEAD = """# How far measured services differ from their predictions, and how much of that is alike: standard deviations of logarithms of
# measured over predicted, and the reach of a load in doublings. Written by `perfmodel calibrate --op anchors --write`; anchoring.py says
# what each number is.
"""


def priors_text(priors: Mapping[str, Prior], rows: int) -> str:
    """The file anchors.yaml."""
    lines = [
        f"{figure}: {{{', '.join(f'{name}: {value}' for name, value in prior.model_dump().items())}}}" for figure, prior in priors.items()
    ]
    about = [
        "provenance:", "  status: measured", f"  rows: {rows}",
        "  dataset: aiconfigurator-core 0.12.0, silicon_sample.csv (Apache-2.0; public InferenceMAX / InferenceX runs)",
        "  source: marginal likelihood of residuals of the fitted configurations, each predicted by a fit without it",
    ]  # fmt: skip
    return HEAD + "\n".join([*lines, *about]) + "\n"
