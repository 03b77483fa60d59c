"""The device code of `simple`, and a call of it from NumPy."""

from __future__ import annotations

from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip
from numpy.typing import NDArray

from perfmodel.formats.elements import get_element
from perfmodel.formats.format import ScaleName
from perfmodel.formats.packing import pack_nibbles
from perfmodel.formats.scales import decode_scales
from perfmodel.kernels.reference import ELEMENTS
from perfmodel.kernels.weights import Weights

SCALES: dict[str, ScaleName] = {"mxfp4-w4a16": "e8m0", "mxfp4-w4a8": "e8m0", "nvfp4-w4a16": "e4m3"}
"""Formats whose scales are stored as bytes, and what the bytes are; those of the others are floats."""

SIGNATURE = tuple(
    types.Array(element, axes, "C")
    for element, axes in (
        (types.float32, 2), (types.float32, 2), (types.int32, 1), (types.uint8, 3), (types.float64, 1), (types.float64, 3),
        (types.uint8, 3), (types.float64, 1),
    )
)  # fmt: skip
"""Of `kernel`."""


def kernel(y, x, offsets, codes, values, scales, zeros, tensor_scales):
    """y[t, n] = sum of x[t, k] * W[e, n, k] over k, for expert e of token t. One thread for each element of y, in its order.

    y: f32 [T, N]. x: f32 [T, K]. offsets: i32 [E + 1]. codes: u8 [E, N, K / 2], even k in the low nibble. values: f64 [16], what codes
    mean. scales: f64 [E, N, blocks]. zeros: u8 [E, N, blocks], codes that mean zero. tensor_scales: f64 [E].
    """
    tokens, rows = y.shape
    index = cuda.grid(1)
    if index >= tokens * rows:
        return
    t = index // rows
    n = index % rows
    e = 0
    while offsets[e + 1] <= t:
        e += 1
    block = x.shape[1] // scales.shape[2]
    total = 0.0
    for k in range(x.shape[1]):
        byte = np.int64(codes[e, n, k // 2])
        code = byte >> 4 if k % 2 else byte & 15
        weight = (values[code] - values[zeros[e, n, k // block]]) * scales[e, n, k // block]
        total += x[t, k] * weight
    y[t, n] = total * tensor_scales[e]


def grouped_gemm(x: NDArray[Any], weights: Weights, offsets: NDArray[Any], threads: int = 128) -> NDArray[np.float32]:
    """y [T, N] of `reference.grouped_gemm`, computed by the kernel on the GPU or in the CUDA simulator."""
    experts, rows, _ = weights.codes.shape
    element = get_element(ELEMENTS[weights.format])
    kind = SCALES.get(weights.format)
    scales = decode_scales(weights.scales, kind) if kind else weights.scales.astype(np.float64)
    zero = int(np.flatnonzero(element.values == 0)[0])
    zeros = np.full(scales.shape, zero, np.uint8) if weights.zeros is None else weights.zeros
    tensor_scales = np.ones(experts) if weights.tensor_scale is None else weights.tensor_scale.astype(np.float64)
    y = np.zeros((len(x), rows), np.float32)
    arguments = (x.astype(np.float32), offsets.astype(np.int32), pack_nibbles(weights.codes), element.values, scales, zeros, tensor_scales)
    if y.size:
        cuda.jit(kernel)[-(-y.size // threads), threads](y, *arguments)
    return y
