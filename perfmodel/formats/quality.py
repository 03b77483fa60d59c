"""What a scheme costs in accuracy: signal over quantisation noise and the largest error, on weights like those of real models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from perfmodel.formats.blocks import block_max, decode, encode
from perfmodel.formats.elements import Floats
from perfmodel.formats.format import Scheme
from perfmodel.formats.scales import ScaleRule

Distribution = Literal["gaussian", "student_t"]
DISTRIBUTIONS: tuple[Distribution, ...] = ("gaussian", "student_t")
SAMPLE_SHAPE = (128, 2048)
SEED = 20250901
DEGREES_OF_FREEDOM = 4


@dataclass(frozen=True)
class Quality:
    """Error of a scheme on given values."""

    sqnr_db: float
    """10 log10(sum of x**2 / sum of error**2) [dB]; infinite without any error."""
    max_error: float
    """Largest error as a share of the largest magnitude in its own block; in its row where there are no scales."""


def measure(values: Floats, scheme: Scheme, *, rule: ScaleRule = "floor") -> Quality:
    """The error that `scheme` makes on `values` [rows, K]. Raises what `encode` raises."""
    error = values - decode(encode(values, scheme, rule=rule))
    noise, signal = float(np.sum(error**2)), float(np.sum(values**2))
    amax = block_max(np.abs(values), scheme)
    largest = block_max(np.abs(error), scheme)
    share = np.divide(largest, amax, out=np.zeros_like(amax), where=amax > 0)
    return Quality(10 * math.log10(signal / noise) if noise else math.inf, float(share.max()))


@lru_cache(maxsize=128)
def typical_quality(scheme: Scheme, distribution: Distribution, rule: ScaleRule = "floor") -> Quality:
    """The error of `scheme` on the sample weights of `distribution`; always the same figures."""
    return measure(sample(distribution), scheme, rule=rule)


@lru_cache(maxsize=4)
def sample(distribution: Distribution, shape: tuple[int, int] = SAMPLE_SHAPE, seed: int = SEED) -> Floats:
    """Seeded weights [rows, K]: Gaussian, or Student t with 4 degrees of freedom for the heavy tails of real layers.

    Each row has its own spread, log-uniform over one octave: else power-of-two scales would shine or fail by where one spread happens
    to lie between two powers of two.
    """
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape) if distribution == "gaussian" else random.standard_t(DEGREES_OF_FREEDOM, shape)
    values *= np.exp2(random.uniform(0, 1, (shape[0], 1)))
    values.flags.writeable = False
    return values
