"""The roundings that kernels make, computed from float64 in one step."""

from __future__ import annotations

import numpy as np

from perfmodel.kernels.arrays import Array, cast, namespace

BF16_BITS, BF16_LEAST = 8, -133
"""Significant bits of a bfloat16, the hidden one included, and the exponent of its smallest subnormal."""
BF16_MAX = float(np.float32(np.uint32(0x7F7F0000).view(np.float32)))


def round_bf16(values: Array) -> Array:
    """The nearest bfloat16 of each value, ties to even, subnormals kept, beyond the largest infinity; float64, NumPy or torch.

    From float64 at once: through float32, a value just over a midpoint would land on the midpoint first.
    """
    xp, wide = namespace(values), cast(values, "float64")
    _, exponent = xp.frexp(wide)
    step = xp.clip(exponent - BF16_BITS, BF16_LEAST, None)
    rounded = xp.ldexp(xp.round(xp.ldexp(wide, -step)), step)
    rounded = xp.where(rounded > BF16_MAX, float("inf"), xp.where(rounded < -BF16_MAX, -float("inf"), rounded))
    return xp.where(xp.isfinite(wide), rounded, wide)
