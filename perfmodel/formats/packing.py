"""Codes of 4 bits in bytes and 32-bit words, as checkpoints hold them. The element with even k is always the lower one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfModelError

INT4_OFFSET = np.uint8(8)
"""INT4 words hold value + 8, which is the two's complement code with its top bit flipped."""


def pack_nibbles(codes: NDArray[Any]) -> NDArray[np.uint8]:
    """Codes [..., K] of 4 bits as bytes [..., K // 2]: even k in the low nibble. Raises PerfModelError for odd K or wider codes."""
    codes = _four_bits(codes, multiple=2)
    return codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)


def unpack_nibbles(packed: NDArray[Any]) -> NDArray[np.uint8]:
    """Bytes [..., K // 2] as codes [..., K]."""
    if packed.dtype != np.uint8:
        raise PerfModelError("packed nibbles must be uint8", value=str(packed.dtype), mend="View the tensor as bytes.")
    return np.stack([packed & np.uint8(0xF), packed >> np.uint8(4)], axis=-1).reshape(*packed.shape[:-1], -1)


def pack_int4_words(codes: NDArray[Any]) -> NDArray[np.int32]:
    """INT4 codes [..., K] as words [..., K // 8] of value + 8, the first element in the lowest bits.

    Raises PerfModelError for K that is no multiple of 8 or wider codes.
    """
    offset = _four_bits(codes, multiple=8) ^ INT4_OFFSET
    return np.ascontiguousarray(pack_nibbles(offset)).view("<i4").astype(np.int32, copy=False)


def unpack_int4_words(packed: NDArray[Any]) -> NDArray[np.uint8]:
    """Words [..., K // 8] as INT4 codes [..., K]."""
    if packed.dtype != np.int32:
        raise PerfModelError("packed INT4 weights must be int32", value=str(packed.dtype), mend="View the tensor as int32.")
    return unpack_nibbles(np.ascontiguousarray(packed.astype("<i4", copy=False)).view(np.uint8)) ^ INT4_OFFSET


def _four_bits(codes: NDArray[Any], multiple: int) -> NDArray[np.uint8]:
    if codes.dtype != np.uint8 or (codes.size and codes.max() > 0xF):
        raise PerfModelError("codes to pack must be uint8 under 16", value=str(codes.dtype), mend="Encode with an element of 4 bits.")
    if codes.shape[-1] % multiple:
        raise PerfModelError(f"K must be a multiple of {multiple}", field="K", value=codes.shape[-1], mend="Pad K with zeros.")
    return codes
