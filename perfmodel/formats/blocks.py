"""Matrices as codes and scales: `encode` and `decode` for every scheme, from one scale a tensor to one every 16 elements.

Everything is computed in float64, in which each stored value (code x block scale x tensor scale) is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.errors import PerfModelError
from perfmodel.formats.elements import Codes, Floats, finite, get_element
from perfmodel.formats.format import ScaleName, Scheme
from perfmodel.formats.scales import ScaleRule, decode_scales, encode_scales, encode_tensor_scale


@dataclass(frozen=True, eq=False)
class Encoded:
    """A stored matrix, or a stack of them: leading axes, such as experts, are matrices of their own."""

    scheme: Scheme
    codes: Codes
    """One code an element [..., rows, K]; see `packing` for denser forms."""
    scales: NDArray[Any] | None = None
    """[..., ceil(rows / block rows), K / block length]: codes (uint8) for E8M0 and E4M3, else floats of the scale's type."""
    tensor_scale: Floats | None = None
    """[...]: what multiplies the block scales of NVFP4."""

    @property
    def bits(self) -> float:
        """Bits per element as stored, every scale counted."""
        total = get_element(self.scheme.element).bits * self.codes.size
        total += 8 * self.scales.nbytes if self.scales is not None else 0
        total += 32 * self.tensor_scale.size if self.tensor_scale is not None else 0
        return total / self.codes.size


def encode(values: ArrayLike, scheme: Scheme, *, rule: ScaleRule = "floor") -> Encoded:
    """Quantise `values` [..., rows, K] (or [K], one row) to the nearest values that `scheme` holds.

    `rule` chooses E8M0 scales. Raises PerfModelError for NaN or infinity, for K that is no multiple of the block, for values too large
    for the scales.
    """
    x = finite(values)
    if x.ndim == 0 or x.size == 0:
        raise PerfModelError("nothing to encode", value=x.shape, mend="Pass at least one row of values, [..., rows, K].")
    element = get_element(scheme.element)
    if scheme.scale is None:
        return Encoded(scheme, element.encode(x))
    matrix = np.atleast_2d(x)
    amax = block_amax(matrix, scheme)
    tensor_scale = None
    if scheme.tensor_scale:
        tensor_scale = encode_tensor_scale(np.asarray(amax.max(axis=(-2, -1))), element)
        amax = amax / tensor_scale[..., None, None]
    scales = encode_scales(amax, scheme.scale, element, rule)
    codes = element.encode(matrix / _spread(_factors(scales, scheme.scale, tensor_scale), scheme, matrix.shape))
    return Encoded(scheme, codes.reshape(x.shape), scales.reshape(*x.shape[:-2], *scales.shape[-min(x.ndim, 2) :]), tensor_scale)


def decode(encoded: Encoded) -> Floats:
    """The values of a stored matrix, exactly: float64 [..., rows, K].

    Raises PerfModelError where scales are missing or their shape does not fit the codes.
    """
    scheme, codes = encoded.scheme, encoded.codes
    values = get_element(scheme.element).decode(codes)
    if scheme.scale is None:
        return values
    if encoded.scales is None or (encoded.tensor_scale is None) == scheme.tensor_scale:
        raise PerfModelError(
            "scales do not fit the scheme", mend=f"Pass scales{' and a tensor scale' if scheme.tensor_scale else ' alone'}."
        )
    matrix = np.atleast_2d(values)
    wanted = scales_shape(matrix.shape, scheme)
    scales = np.atleast_2d(encoded.scales)
    if scales.shape != wanted:
        raise PerfModelError(
            f"scales of codes {codes.shape} have shape {wanted}", value=scales.shape, mend="Check the block length and the order of axes."
        )
    factors = _factors(scales, scheme.scale, encoded.tensor_scale)
    return (matrix * _spread(factors, scheme, matrix.shape)).reshape(codes.shape)


def block_shape(shape: tuple[int, ...], scheme: Scheme) -> tuple[int, int]:
    """Rows and elements along K that share a scale in a matrix [..., rows, K]; a row where there are no scales.

    Raises PerfModelError where K does not divide.
    """
    rows, k = shape[-2:]
    if scheme.block is None:
        return (rows if scheme.per == "tensor" else 1), k
    if k % scheme.block[1]:
        raise PerfModelError(f"K must be a multiple of the block of {scheme.block[1]}", field="K", value=k, mend="Pad K with zeros.")
    return scheme.block


def scales_shape(shape: tuple[int, ...], scheme: Scheme) -> tuple[int, ...]:
    """Shape of the scales of a matrix [..., rows, K]; the last block of rows may be ragged."""
    rows, length = block_shape(shape, scheme)
    return (*shape[:-2], -(-shape[-2] // rows), shape[-1] // length)


def block_amax(matrix: Floats, scheme: Scheme) -> Floats:
    """Largest magnitude of each block of a matrix [..., rows, K], in the shape of its scales."""
    rows, length = block_shape(matrix.shape, scheme)
    by_length: Floats = np.abs(matrix).reshape(*matrix.shape[:-1], -1, length).max(axis=-1)
    if rows == 1:
        return by_length
    starts = np.arange(0, matrix.shape[-2], rows)
    return np.asarray(np.maximum.reduceat(by_length, starts, axis=-2))


def _factors(scales: NDArray[Any], kind: ScaleName, tensor_scale: Floats | None) -> Floats:
    """The factor of each block, in the shape of the scales."""
    factors = decode_scales(scales, kind)
    return factors if tensor_scale is None else factors * tensor_scale[..., None, None]


def _spread(factors: Floats, scheme: Scheme, shape: tuple[int, ...]) -> Floats:
    """The factor of each element, broadcastable to the matrix of this shape [..., rows, K]."""
    rows, length = block_shape(shape, scheme)
    if rows > 1:
        factors = np.repeat(factors, rows, axis=-2)[..., : shape[-2], :]
    return np.repeat(factors, length, axis=-1)
