"""Weights of experts as a checkpoint holds them, NumPy or torch: what packing and references start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.kernels import layouts
from perfmodel.kernels.arrays import Array, cast, namespace
from perfmodel.kernels.layouts_w4a8 import W4A8, pack_mxfp4_w4a8

if TYPE_CHECKING:
    from perfmodel.formats.blocks import Encoded

FORMATS = ("mxfp4-w4a16", "nvfp4-w4a16", "int4-w4a16", "nf4-w4a16", "mxfp4-w4a8")
"""Ids of the formats that kernels of ours take."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Matrices [N, K] of E experts in one of `FORMATS`."""

    format: str
    codes: Array
    """uint8 [E, N, K], one code each"""
    scales: Array
    """[E, N, K / block]: uint8 codes (E8M0, E4M3), or floats (INT4, NF4)"""
    tensor_scale: Array | None = None
    """NVFP4: float [E], above the block scales."""
    zeros: Array | None = None
    """INT4 with zero points: uint8 codes in the shape of the scales."""

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise PerfModelError(
                "no kernel takes this format", field="format", value=self.format, mend=did_you_mean(str(self.format), FORMATS)
            )
        for name, form in (("tensor_scale", "nvfp4-w4a16"), ("zeros", "int4-w4a16")):
            if getattr(self, name) is not None and self.format != form:
                raise PerfModelError(f"belongs to {form}", field=name, value=self.format, mend="Leave it away.")
        if self.format == "nvfp4-w4a16" and self.tensor_scale is None:
            raise PerfModelError("is missing", field="tensor_scale", mend="NVFP4 has one FP32 scale for each expert.")

    @classmethod
    def of(cls, encoded: Encoded, format_id: str) -> Weights:
        """What `perfmodel.formats` encoded or read from a checkpoint, [E, N, K] or one matrix [N, K], as weights of this format."""
        lead = (lambda part: part[None]) if encoded.codes.ndim == 2 else (lambda part: part)
        parts = (encoded.codes, encoded.scales, encoded.tensor_scale, encoded.zeros)
        return cls(format_id, *(None if part is None else lead(np.asarray(part)) for part in parts))

    def expert(self, index: int) -> Weights:
        """The weights of one expert, E = 1."""
        parts = (self.codes, self.scales, self.tensor_scale, self.zeros)
        return Weights(self.format, *(None if part is None else part[index : index + 1] for part in parts))

    def to_torch(self, device: str = "cpu") -> Weights:
        """The same as torch tensors on a device. BF16 scales of `ml_dtypes` become FP32, which holds them."""
        import torch

        def tensor(part: Array | None) -> Array | None:
            if part is None:
                return None
            array = np.ascontiguousarray(part.astype(np.float32) if part.dtype.kind == "V" else part)
            return torch.from_numpy(array).to(device)

        return Weights(self.format, *(tensor(part) for part in (self.codes, self.scales, self.tensor_scale, self.zeros)))

    def fused(self) -> Weights:
        """Gate and up rows, alternating, in the order that kernels with a fused activation take: see `layouts.fused_rows`."""
        parts = (self.codes, self.scales, None, self.zeros)
        codes, scales, _, zeros = (None if part is None else layouts.fused_rows(part) for part in parts)
        return Weights(self.format, codes, scales, self.tensor_scale, zeros)


def pack(weights: Weights, rows: int = 128) -> layouts.W4A16 | W4A8:
    """Weights in the tiles of the kernels of their format. Raises PerfModelError where they do not fit or a scale is NaN."""
    if weights.format == "mxfp4-w4a8":
        return pack_mxfp4_w4a8(weights.codes, weights.scales, rows)
    if weights.format == "mxfp4-w4a16":
        return layouts.pack_mxfp4_w4a16(weights.codes, weights.scales, rows)
    if weights.format == "nvfp4-w4a16":
        return layouts.pack_nvfp4_w4a16(weights.codes, weights.scales, weights.tensor_scale, rows)
    if weights.format == "int4-w4a16":
        return layouts.pack_int4_w4a16(weights.codes, weights.scales, weights.zeros, rows)
    return layouts.pack_nf4_w4a16(weights.codes, weights.scales, rows)


def unpack_nibbles(packed: Array) -> Array:
    """Bytes uint8 [..., K / 2] of a checkpoint, even k in the low nibble, as codes uint8 [..., K]."""
    pairs = namespace(packed).stack([packed & 0xF, packed >> 4], -1)
    return cast(pairs, "uint8").reshape(*packed.shape[:-1], -1)
