"""The few array operations in which NumPy and torch differ, so that packing is written once for both.

The rest (`&`, `|`, `<<`, `reshape`, `where`, `amax`, `argwhere`, `argsort`, `searchsorted`) has one name in both: see `namespace`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = Any
"""A NumPy array or a torch tensor. What goes in comes out: tensors stay on their device."""


def namespace(array: Array) -> Any:
    """The module whose functions take `array`: numpy or torch."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def dtype_name(array: Array) -> str:
    """Name of the type of the elements, without a module before it: "uint8"."""
    return str(array.dtype).removeprefix("torch.")


def cast(array: Array, name: str) -> Array:
    """`array` with elements of the type of this name."""
    return array.astype(name) if isinstance(array, np.ndarray) else array.to(getattr(namespace(array), name))


def bitcast(array: Array, name: str) -> Array:
    """The bytes of `array` read as another type; the last axis shrinks or grows with the size of the element."""
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array).view(name)
    return array.contiguous().view(getattr(namespace(array), name))


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Zeros of this shape, of the type and on the device of `like`."""
    return np.zeros(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_zeros(shape)


def arange(stop: int, like: Array) -> Array:
    """int64 0 .. stop - 1 on the device of `like`."""
    return np.arange(stop) if isinstance(like, np.ndarray) else namespace(like).arange(stop, device=like.device)


def constant(values: NDArray[Any], like: Array) -> Array:
    """A NumPy array in the library and on the device of `like`."""
    return values if isinstance(like, np.ndarray) else namespace(like).as_tensor(values, device=like.device)


def permute(array: Array, *axes: int) -> Array:
    """`array` with its axes in another order."""
    return array.transpose(axes) if isinstance(array, np.ndarray) else array.permute(axes)


def pad_to(array: Array, *shape: int) -> Array:
    """`array` in the lower corner of zeros of this shape."""
    if tuple(array.shape) == shape:
        return array
    padded = zeros(shape, array)
    padded[tuple(slice(size) for size in array.shape)] = array
    return padded


def stable_order(values: Array) -> Array:
    """int64 indices that sort along the last axis, equal values in the order in which they stand."""
    if isinstance(values, np.ndarray):
        return np.argsort(values, axis=-1, kind="stable")
    return namespace(values).argsort(values, dim=-1, stable=True)
