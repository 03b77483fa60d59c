"""Activations for the W4A8 kernels: bf16 rows to E4M3 codes with one FP32 scale a row, x = code x scale.

scale = max(amax, 2**-100) / 448, so that the largest code is 448, and rows of zeros have codes 0 and a scale that is no zero. A row with a
NaN or an infinity comes out as NaN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels.variants import KernelSource, Variant

LARGEST = 448.0
"""In E4M3."""
LEAST_POWER = -100
"""A row is taken to hold 2**-100 at least: nothing under- or overflows then."""
THREADS = 256
LEAST_CTAS = 6
"""Of an SM: what Ada has room for. Threads enough to keep memory busy."""


def quantise_tokens(x: NDArray[np.floating], rows: NDArray[np.int32] | None = None) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """(E4M3 codes uint8 [tokens, K], scales [tokens]) of activations [.., K]; the kernel gives the same to the bit.

    rows: int32 [tokens], the row of x that each token is; without it token t is row t. Computed in single precision: codes are x times
    448 / amax, to nearest even.
    """
    import ml_dtypes

    values = x.astype(np.float32) if rows is None else x[rows].astype(np.float32)
    least = np.float32(2.0**LEAST_POWER)
    with np.errstate(invalid="ignore"):
        amax = np.maximum(np.abs(values).max(axis=1, initial=0), least)  # NaN where the row has one
        scaled = np.clip(values * (np.float32(LARGEST) / amax)[:, None], -LARGEST, LARGEST)
        return scaled.astype(ml_dtypes.float8_e4m3fn).view(np.uint8), amax * np.float32(1 / LARGEST)


def dequantise_tokens(codes: NDArray[np.uint8], scales: NDArray[np.float32]) -> NDArray[np.float64]:
    """What codes [tokens, K] and scales [tokens] stand for, float64: the activations that a W4A8 kernel multiplies."""
    import ml_dtypes

    with np.errstate(invalid="ignore"):  # 0 x infinity
        return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * scales[:, None].astype(np.float64)


def build() -> KernelSource:
    """The kernel: (x, codes, scales, rows, tokens, k).

    x: bf16 [.., k]. codes: E4M3 [tokens, k]. scales: f32 [tokens]. rows: i32 [tokens] or address 0, as in `quantise_tokens`. k must be a
    multiple of 8, x aligned to 16 bytes and codes to 8. One CTA a row at a time; any grid does.
    """
    from perfmodel.kernels.quantise_kernel import SIGNATURE, quantise

    return KernelSource(quantise, SIGNATURE, THREADS, 0, (THREADS, LEAST_CTAS))


VARIANTS = (
    Variant(
        "numba-quantise-e4m3",
        "quantise",
        ("mxfp4-w4a8",),
        ("sm_89", "sm_90a", "sm_100a", "sm_120a"),
        "perfmodel.kernels.quantise:quantise_tokens",
        build,
    ),
)
