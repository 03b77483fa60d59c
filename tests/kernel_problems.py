"""Problems for tests of kernels: weights, tokens, and the results they must have."""

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

from perfmodel.formats import get_format
from perfmodel.formats.blocks import encode
from perfmodel.kernels import reference
from perfmodel.kernels.compile import to_ptx
from perfmodel.kernels.weights import Weights

BF16 = ml_dtypes.bfloat16
BOUND = {"mxfp4-w4a16": 3e-4, "nvfp4-w4a16": 3e-4, "int4-w4a16": 3e-4, "nf4-w4a16": 3e-3}
"""Beside the rounding of the output: weights are exact but for NF4's codebook, and a sum in single precision may lie beyond a tie."""
NO_CONFLICTS = {1}


@cache
def ptx_of(arch, build, *choices):
    """(PTX, dynamic shared bytes) of the kernel `build(*choices)`, compiled once for all tests of a process."""
    source = build(*choices)
    return to_ptx(source, arch), source.shared_bytes


def random_weights(form, experts, n, k, scheme=None, seed=0):
    source = np.random.default_rng(seed)
    rows = np.exp(source.standard_normal((experts, n, 1)))
    return Weights.of(encode(source.standard_normal((experts, n, k)) * rows, scheme or get_format(form).weights), form)


@dataclass
class Problem:
    """Tokens for some weights, with everything that any epilogue takes."""

    weights: Weights
    counts: tuple[int, ...]
    x: np.ndarray
    x_rows: np.ndarray
    out_rows: np.ndarray
    factors: np.ndarray

    @classmethod
    def random(cls, weights, counts, seed=1):
        source, tokens = np.random.default_rng(seed), sum(counts)
        x = source.standard_normal((tokens, weights.codes.shape[2])).astype(BF16)
        return cls(weights, counts, x, source.permutation(tokens), source.permutation(tokens), source.uniform(0, 1, tokens))

    @property
    def offsets(self):
        return np.concatenate([[0], np.cumsum(self.counts)])

    def wanted(self, config):
        x = self.x[self.x_rows] if config.gather else self.x
        if config.epilogue == "swiglu":
            return reference.grouped_gemm_swiglu(x, self.weights, self.offsets)
        if config.epilogue == "scatter":
            return reference.grouped_gemm_scatter(x, self.weights, self.offsets, self.out_rows, self.factors.astype(np.float32))
        return reference.grouped_gemm(x, self.weights, self.offsets)
