"""The roundings that kernels make, computed from float64 in one step."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.arrays import Array, cast, namespace

BF16_BITS, BF16_LEAST = 8, -133
"""Significant bits of a bfloat16, the hidden one included, and the exponent of its smallest subnormal."""
E4M3_BITS, E4M3_LEAST, E4M3_MAX = 4, -9, 448.0
BF16_MAX = float(np.float32(np.uint32(0x7F7F0000).view(np.float32)))


def round_bf16(values: Array) -> Array:
    """The nearest bfloat16 of each value, ties to even, subnormals kept, beyond the largest infinity; float64, NumPy or torch.

    From float64 at once: through float32, a value just over a midpoint would land on the midpoint first.
    """
    xp, wide = namespace(values), cast(values, "float64")
    rounded = _nearest(wide, BF16_BITS, BF16_LEAST)
    rounded = xp.where(rounded > BF16_MAX, float("inf"), xp.where(rounded < -BF16_MAX, -float("inf"), rounded))
    return xp.where(xp.isfinite(wide), rounded, wide)


def round_e4m3(values: Array) -> Array:
    """The nearest E4M3 of each value, ties to even, subnormals kept, beyond the largest the largest; float64, NumPy or torch."""
    return namespace(values).clip(_nearest(cast(values, "float64"), E4M3_BITS, E4M3_LEAST), -E4M3_MAX, E4M3_MAX)


def _nearest(wide: Array, bits: int, least: int) -> Array:
    """The nearest number of so many significant bits, and no bit below 2**least."""
    xp = namespace(wide)
    _, exponent = xp.frexp(wide)
    step = xp.clip(exponent - bits, least, None)
    return xp.ldexp(xp.round(xp.ldexp(wide, -step)), step)
