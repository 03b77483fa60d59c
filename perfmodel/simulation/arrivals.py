"""When requests come: at random, in bursts, evenly."""

from __future__ import annotations

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.simulation.words import number_after
from perfmodel.workload.expectation import Array

KINDS = ("poisson", "gamma", "constant")


def gaps_cv(arrivals: str) -> float:
    """Coefficient of variation of the gaps between requests that `poisson`, `gamma:CV` or `constant` names. Raises PerfModelError."""
    kind, _, rest = arrivals.partition(":")
    if kind == "gamma":
        return number_after("arrivals", arrivals, low=0.01, high=100.0, example="gamma:2")
    if arrivals not in ("poisson", "constant"):
        mend = did_you_mean(arrivals, ("poisson", "gamma:2", "constant")) if not rest else f"{kind} takes no number."
        raise PerfModelError("no such kind of arrivals", field="arrivals", value=arrivals, mend=mend)
    return 1.0 if kind == "poisson" else 0.0


def arrival_times(arrivals: str, rate: float, requests: int, rng: np.random.Generator) -> Array:
    """Seconds at which `requests` come, `rate` a second on average. Gaps are gamma-distributed: of CV 1 that is a Poisson process."""
    cv = gaps_cv(arrivals)
    if cv == 0:
        return np.arange(1, requests + 1) / rate
    gaps = rng.gamma(1.0 / cv**2, cv**2 / rate, requests)
    result: Array = np.cumsum(gaps)
    return result
