"""Matrices as codes and scales: `encode` and `decode` for every scheme, from one scale a tensor to one every 16 elements.

Everything is computed in float64, in which each stored value (code x block scale x tensor scale) is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
    zeros: Codes | None = None
    """The code that means zero in each block, in the shape of the scales, where the scheme has zero points."""

    @property
    def bits(self) -> float:
        """Bits per element as stored, every scale and zero point counted."""
        total = get_element(self.scheme.element).bits * (self.codes.size + (0 if self.zeros is None else self.zeros.size))
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
    if scheme.scale is None:
        return Encoded(scheme, get_element(scheme.element).encode(x))
    if x.ndim == 1:
        row = encode(x[None], scheme, rule=rule)
        return replace(row, **{part: getattr(row, part)[0] for part in ("codes", "scales", "zeros") if getattr(row, part) is not None})
    if scheme.zero_point:
        return _encode_with_zeros(x, scheme, scheme.scale)
    return _encode_symmetric(x, scheme, scheme.scale, rule)


def decode(encoded: Encoded) -> Floats:
    """The values of a stored matrix, exactly: float64 [..., rows, K].

    Raises PerfModelError where scales are missing or their shape does not fit the codes.
    """
    scheme = encoded.scheme
    element = get_element(scheme.element)
    values = element.decode(encoded.codes)
    if scheme.scale is None:
        return values
    matrix = np.atleast_2d(values)
    tensor_scale = encoded.tensor_scale
    if scheme.tensor_scale != (tensor_scale is not None) or (tensor_scale is not None and tensor_scale.shape != matrix.shape[:-2]):
        wanted = f"one scale for each matrix, {matrix.shape[:-2]}" if scheme.tensor_scale else "none"
        raise PerfModelError(f"the scheme needs {wanted}", field="tensor_scale", mend="Check the scheme and the leading axes.")
    factors = _factors(_fitting(encoded.scales, "scales", matrix.shape, scheme), scheme.scale, tensor_scale)
    if scheme.zero_point:
        zeros = element.decode(_fitting(encoded.zeros, "zeros", matrix.shape, scheme))
        matrix = matrix - _spread(zeros, scheme, matrix.shape)
    return (matrix * _spread(factors, scheme, matrix.shape)).reshape(values.shape)


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


def block_max(matrix: Floats, scheme: Scheme) -> Floats:
    """Largest value of each block of a matrix [..., rows, K], in the shape of its scales."""
    rows, length = block_shape(matrix.shape, scheme)
    by_length: Floats = matrix.reshape(*matrix.shape[:-1], -1, length).max(axis=-1)
    if rows == 1:
        return by_length
    starts = np.arange(0, matrix.shape[-2], rows)
    return np.asarray(np.maximum.reduceat(by_length, starts, axis=-2))


def _encode_symmetric(matrix: Floats, scheme: Scheme, kind: ScaleName, rule: ScaleRule) -> Encoded:
    """The largest magnitude of each block comes to the element's largest value."""
    element = get_element(scheme.element)
    amax = block_max(np.abs(matrix), scheme)
    tensor_scale = None
    if scheme.tensor_scale:
        tensor_scale = encode_tensor_scale(np.asarray(amax.max(axis=(-2, -1))), element)
        amax = amax / tensor_scale[..., None, None]
    scales = encode_scales(amax, kind, element, rule)
    factors = _factors(scales, kind, tensor_scale)
    return Encoded(scheme, element.encode(matrix / _spread(factors, scheme, matrix.shape)), scales, tensor_scale)


def _encode_with_zeros(matrix: Floats, scheme: Scheme, kind: ScaleName) -> Encoded:
    """Integers span the values of each block and zero: value = (code - zero) x scale, so that 0 stays exact."""
    element = get_element(scheme.element)
    high, low = np.maximum(block_max(matrix, scheme), 0), np.minimum(-block_max(-matrix, scheme), 0)
    share = element.max / (element.max - element.min)  # a scale is amax / element.max, but here all steps share the span
    scales = encode_scales((high - low) * share, kind, element)
    factors = decode_scales(scales, kind)
    zeros = element.encode(element.min - low / factors)
    steps = matrix / _spread(factors, scheme, matrix.shape) + _spread(element.decode(zeros), scheme, matrix.shape)
    return Encoded(scheme, element.encode(steps), scales, None, zeros)


def _fitting(part: NDArray[Any] | None, name: str, shape: tuple[int, ...], scheme: Scheme) -> NDArray[Any]:
    """Scales or zeros of a matrix of this shape, checked."""
    wanted = scales_shape(shape, scheme)
    if part is None or np.atleast_2d(part).shape != wanted:
        got = None if part is None else part.shape
        raise PerfModelError(
            f"codes {shape} need the shape {wanted}", field=name, value=got, mend="Check the block length and the order of axes."
        )
    return np.atleast_2d(part)


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
