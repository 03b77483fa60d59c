"""How long prompts and answers are."""

from __future__ import annotations

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.simulation.words import number_after
from perfmodel.workload.expectation import Array

LONGEST = 16
"""Times the mean: where a lognormal distribution is cut."""


def check_lengths(lengths: str) -> tuple[str, float]:
    """(kind, number) of `fixed`, `uniform:LOW` or `lognormal:CV`. Raises PerfModelError."""
    kind, _, rest = lengths.partition(":")
    if kind == "uniform":
        return kind, number_after("lengths", lengths, low=0.0, high=1.0, example="uniform:0.8")
    if kind == "lognormal":
        return kind, number_after("lengths", lengths, low=0.01, high=10.0, example="lognormal:0.5")
    if lengths != "fixed":
        mend = did_you_mean(lengths, ("fixed", "uniform:0.8", "lognormal:0.5")) if not rest else f"{kind} takes no number."
        raise PerfModelError("no such distribution", field="lengths", value=lengths, mend=mend)
    return kind, 0.0


def draw_lengths(lengths: str, tokens: int, requests: int, rng: np.random.Generator) -> Array:
    """Whole numbers of tokens from 1: all `tokens`, uniform in LOW to 1 times as many, or lognormal of this mean and variation."""
    kind, number = check_lengths(lengths)
    if kind == "fixed":
        return np.full(requests, float(tokens))
    if kind == "uniform":
        return rng.integers(max(int(np.ceil(number * tokens)), 1), tokens, requests, endpoint=True).astype(float)
    sigma2 = np.log1p(number**2)
    drawn = rng.lognormal(np.log(tokens) - sigma2 / 2, np.sqrt(sigma2), requests)
    result: Array = np.clip(np.rint(drawn), 1, LONGEST * tokens)
    return result
