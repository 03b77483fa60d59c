"""Element types: what each code means, and the nearest code of a value.

Tables come from `ml_dtypes` where it has the type. Rounding is our own, because `ml_dtypes` goes from float64 through float32 and so
rounds twice: a value just over a midpoint would land on the midpoint first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.errors import PerfModelError
from perfmodel.formats.format import ELEMENT_BITS, ElementName, MathType

Codes = NDArray[np.unsignedinteger[Any]]
Floats = NDArray[np.float64]

NF4_CODEBOOK = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of a normal distribution, as float32 (Dettmers et al., QLoRA, arXiv:2305.14314, appendix E)."""

ELEMENT_MATH: dict[ElementName, MathType | None] = {
    "e2m1": "fp4", "e3m0": None, "nf4": None, "int4": "int4", "int8": "int8", "e4m3": "fp8", "e5m2": "fp8", "bf16": "bf16", "fp16": "fp16",
}  # fmt: skip
"""Arithmetic type of the tensor units that multiply the element as it is stored; None where no GPU has one."""


@dataclass(frozen=True, eq=False)
class Element:
    """One element type. `values[c]` is what code `c` means, infinity and NaN included."""

    name: ElementName
    bits: int
    values: Floats
    """[2**bits]"""
    sign_bit: bool
    """Whether the top bit is the sign and the rest the magnitude (so -0 has a code), not two's complement or a codebook."""

    @property
    def math(self) -> MathType | None:
        """Arithmetic type of the tensor units that take this element directly."""
        return ELEMENT_MATH[self.name]

    @cached_property
    def max(self) -> float:
        """Largest finite value: what a block's largest magnitude is scaled to."""
        return float(self._finite.max())

    @cached_property
    def min(self) -> float:
        """Lowest finite value; for integers one step below `-max`."""
        return float(self._finite.min())

    @cached_property
    def min_positive(self) -> float:
        """Smallest value over zero."""
        return float(self._finite[self._finite > 0].min())

    def encode(self, values: ArrayLike) -> Codes:
        """Codes of the nearest values: ties to the even code, saturating at the largest magnitude.

        values: any shape. Raises PerfModelError for NaN and infinity.
        """
        x = finite(values)
        if not self.sign_bit:
            return self._ascending[np.searchsorted(self._thresholds, x, side="right")]
        magnitudes = self._ascending[np.searchsorted(self._thresholds, np.abs(x), side="right")]
        return np.where(np.signbit(x), magnitudes | self._sign_code, magnitudes)

    def decode(self, codes: NDArray[Any]) -> Floats:
        """Values of the codes, float64, same shape. Raises PerfModelError for codes of more than `bits` bits or not unsigned."""
        codes = np.asarray(codes)
        if codes.dtype.kind != "u":
            raise PerfModelError(f"codes of {self.name} must be unsigned integers", value=str(codes.dtype), mend="Pass uint8 or uint16.")
        if codes.size and int(codes.max()) >= len(self.values):
            raise PerfModelError(f"codes of {self.name} have {self.bits} bits", value=int(codes.max()), mend="Unpack the codes first.")
        return np.asarray(self.values[codes])

    def round(self, values: ArrayLike) -> Floats:
        """`values` as this element holds them."""
        return self.decode(self.encode(values))

    @property
    def _dtype(self) -> type[np.uint8] | type[np.uint16]:
        return np.uint8 if self.bits <= 8 else np.uint16

    @property
    def _sign_code(self) -> np.unsignedinteger[Any]:
        return self._dtype(1 << (self.bits - 1))

    @property
    def _finite(self) -> Floats:
        return self.values[np.isfinite(self.values)]

    @cached_property
    def _ascending(self) -> Codes:
        """Codes that `encode` may give before the sign, in the order of their values."""
        codes = np.arange(len(self.values) // (2 if self.sign_bit else 1))
        codes = codes[np.isfinite(self.values[codes])]
        return codes[np.argsort(self.values[codes], kind="stable")].astype(self._dtype)

    @cached_property
    def _thresholds(self) -> Floats:
        """The least float64 that goes to the upper one of each two neighbours; midpoints themselves go to the even code."""
        ordered = self.values[self._ascending]
        middle = (ordered[:-1] + ordered[1:]) / 2
        tie_goes_up = self._ascending[1:] % 2 == 0
        return np.where(tie_goes_up, middle, np.nextafter(middle, np.inf))


def finite(values: ArrayLike) -> Floats:
    """`values` as float64. Raises PerfModelError for NaN, infinity, or what is no real number."""
    try:
        x = np.asarray(values)
        if x.dtype.kind == "c":
            raise TypeError
        x = x.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise PerfModelError("values to encode must be real numbers", mend="Pass an array of floats or integers.") from error
    bad = int(x.size - np.count_nonzero(np.isfinite(x)))
    if bad:
        raise PerfModelError(
            f"{bad} of {x.size} values to encode are NaN or infinite", mend="A block with one of them has no scale: mend the weights."
        )
    return x


@lru_cache(maxsize=16)
def get_element(name: ElementName) -> Element:
    """The element type of this name."""
    return Element(name=name, bits=ELEMENT_BITS[name], values=_values(name), sign_bit=name not in ("nf4", "int4", "int8"))


def _values(name: ElementName) -> Floats:
    """What each code of the type means, float64 [2**bits]."""
    import ml_dtypes

    if name == "nf4":
        return np.array(NF4_CODEBOOK)
    if name == "e3m0":  # exponent field 0 is zero, without a mantissa there are no subnormals; bias 3
        magnitudes = np.concatenate([[0.0], np.exp2(np.arange(1.0, 8.0) - 3)])
        return np.concatenate([magnitudes, -magnitudes])
    types: dict[str, Any] = {
        "e2m1": ml_dtypes.float4_e2m1fn,
        "int4": ml_dtypes.int4,
        "int8": np.int8,
        "e4m3": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
        "bf16": ml_dtypes.bfloat16,
        "fp16": np.float16,
    }
    bits = ELEMENT_BITS[name]
    codes = np.arange(1 << bits, dtype=np.uint8 if bits <= 8 else np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaNs among the codes
        return np.asarray(codes.view(types[name]).astype(np.float64))
