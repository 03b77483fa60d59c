"""A FORMAT: how weights and activations of a GEMM are stored and on which arithmetic units they are multiplied."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.validated import Strict, load_model

CATALOG = Path(__file__).parent / "catalog"
"""One YAML a format; the file's name is the format's id. Adding a format is adding a file."""

ElementName = Literal["e2m1", "e3m0", "nf4", "int4", "int8", "e4m3", "e5m2", "bf16", "fp16"]
ScaleName = Literal["e8m0", "e4m3", "fp32", "fp16", "bf16"]
MathType = Literal["fp16", "bf16", "fp8", "fp4", "int8", "int4"]
Execution = Literal["native", "rescaled", "dequantised"]

ELEMENT_BITS: dict[ElementName, int] = {
    "e2m1": 4, "e3m0": 4, "nf4": 4, "int4": 4, "int8": 8, "e4m3": 8, "e5m2": 8, "bf16": 16, "fp16": 16,
}  # fmt: skip
SCALE_BITS: dict[ScaleName, int] = {"e8m0": 8, "e4m3": 8, "fp32": 32, "fp16": 16, "bf16": 16}


def _tuple(value: object) -> object:
    """YAML knows lists only; a frozen model holds tuples."""
    return tuple(value) if isinstance(value, list) else value


class Scheme(Strict):
    """How the values of a matrix [rows, K] are stored: the type of an element, and how many elements share a scale."""

    element: ElementName
    per: Literal["none", "tensor", "channel", "token", "group"] = "none"
    """What shares one scale: nothing, the matrix, a row of weights, a row of activations, or a block of `block` elements."""
    block: Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(_tuple)] | None = None
    """Rows and elements along K that share one scale, where scales are per group."""
    scale: ScaleName | None = None
    """Type of the scale."""
    tensor_scale: bool = False
    """Whether one FP32 scale of the whole matrix multiplies the block scales (NVFP4)."""
    zero_point: bool = False
    """Whether each block of integers also stores which code means zero, so that it spends no codes on a sign it lacks."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Scheme:
        if (self.per == "group") != (self.block is not None):
            raise ValueError("`block` belongs to `per: group`, and only there")
        if (self.per == "none") != (self.scale is None):
            raise ValueError("`scale` belongs to every scheme but `per: none`")
        if self.tensor_scale and self.per != "group":
            raise ValueError("`tensor_scale` is a second scale above those of `per: group`")
        if self.zero_point and not (self.per == "group" and self.element in ("int4", "int8") and self.scale in ("fp32", "fp16", "bf16")):
            raise ValueError("`zero_point` belongs to integers in groups with a float scale")
        return self

    @property
    def value_bits(self) -> float:
        """Bits of one element without its share of the scales."""
        return float(ELEMENT_BITS[self.element])

    @property
    def scale_bits(self) -> float:
        """Bits of scale, and zero point, per element. A scale per tensor, channel or token is spread over K or more and counts as 0."""
        if self.block is None or self.scale is None:
            return 0.0
        bits = SCALE_BITS[self.scale] + (ELEMENT_BITS[self.element] if self.zero_point else 0)
        return bits / (self.block[0] * self.block[1])

    @property
    def bits(self) -> float:
        """Bits per element with its share of the scales."""
        return self.value_bits + self.scale_bits


class Format(Strict):
    """A FORMAT of the interface: storage of weights and activations, and the arithmetic that multiplies them."""

    id: str
    summary: str
    """One line for people."""
    weights: Scheme
    activations: Scheme
    math: Annotated[tuple[MathType, ...], BeforeValidator(_tuple), Field(min_length=1)]
    """Arithmetic types that can run it, the preferred one first."""
    scaled_in_hardware: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = ()
    """Architectures whose tensor units take these elements together with their block scales."""
    instead: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = ()
    """Formats that hold the same weights and run on GPUs without the arithmetic types of `math`, the best first."""
    source: str
    """Where the format is defined."""

    @property
    def dequantises(self) -> bool:
        """Whether weights are stored in another type than the one multiplied (W4A16, W4A8)."""
        return self.weights.element != self.activations.element

    def math_type(self, gpu_types: Collection[str]) -> str:
        """The arithmetic type of this format on a GPU whose tensor units know `gpu_types`.

        Raises PerfModelError that names the form that runs where none of `math` is there.
        """
        chosen = next((kind for kind in self.math if kind in gpu_types), None)
        if chosen is None:
            units = " or ".join(self.math)
            raise PerfModelError(f"{self.id} needs {units} units, which this GPU lacks", field="FORMAT", mend=self._mend(gpu_types))
        return chosen

    def runs_on(self, gpu_types: Collection[str]) -> bool:
        """Whether tensor units that know `gpu_types` run this format."""
        return any(kind in gpu_types for kind in self.math)

    def execution(self, architecture: str) -> Execution:
        """How tensor units of `architecture` that know one of the `math` types run this format.

        "native": they multiply what is stored. "rescaled": they multiply the stored elements, and the kernel applies the block
        scales to partial sums. "dequantised": the kernel first converts the weights.
        """
        if architecture in self.scaled_in_hardware:
            return "native"
        if self.dequantises:
            return "dequantised"
        return "rescaled" if "group" in (self.weights.per, self.activations.per) else "native"

    def _mend(self, gpu_types: Collection[str]) -> str:
        same = [other for other in self.instead if set(get_format(other).math) & set(gpu_types)]
        if same:
            return f"The same weights run there as {' or '.join(same)}."
        others = [other for other in format_ids() if set(get_format(other).math) & set(gpu_types)]
        return f"Formats that run there: {', '.join(others)}." if others else "No format of ours runs there."


@lru_cache(maxsize=1)
def _ids() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in CATALOG.glob("*.yaml")))


def format_ids() -> list[str]:
    """Ids of all formats of the catalogue, sorted."""
    return list(_ids())


@lru_cache(maxsize=256)
def get_format(format_id: str) -> Format:
    """The format with this id. Raises PerfModelError with the nearest ids where there is none."""
    if format_id not in _ids():
        raise PerfModelError("unknown format", field="FORMAT", value=format_id, mend=did_you_mean(format_id, _ids()))
    return load_model(Format, CATALOG / f"{format_id}.yaml", id=format_id)
