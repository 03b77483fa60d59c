"""Scales of blocks: from the largest magnitude of a block to a stored scale, and back."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.formats.elements import Element, Floats, get_element
from perfmodel.formats.format import ScaleName

ScaleRule = Literal["floor", "ceil", "even", "rceil"]
RULES: tuple[ScaleRule, ...] = ("floor", "ceil", "even", "rceil")
E8M0_BIAS = 127
E8M0_NAN = 0xFF
FP32_TINY = float(np.finfo(np.float32).smallest_subnormal)
FP32_MAX = float(np.finfo(np.float32).max)
E4M3_MAX = 448.0


def encode_scales(amax: Floats, kind: ScaleName, element: Element, rule: ScaleRule = "floor") -> NDArray[Any]:
    """Stored scales of blocks whose largest magnitudes are `amax`, same shape.

    Returns E8M0 and E4M3 as codes (uint8), FP32, FP16 and BF16 as floats of that type. `rule` chooses among powers of two (E8M0 only).
    A block of zeros gets the scale 1 (E8M0: the least, 2**-127, as the formula gives); a scale that would vanish becomes the least one.
    Raises PerfModelError where the values are too large for the type of the scale.
    """
    if kind == "e8m0":
        return encode_e8m0(amax, element, rule)
    wanted = np.where(amax == 0, 1.0, amax / element.max)
    if kind == "fp32":
        _check_fits(wanted, FP32_MAX, kind)
        return np.maximum(wanted.astype(np.float32), np.float32(FP32_TINY))
    codec = get_element(kind)
    if kind != "e4m3":
        _check_fits(wanted, codec.max, kind)
    codes = codec.encode(np.maximum(wanted, codec.min_positive))
    return codes if kind == "e4m3" else codes.view(_float_dtype(kind))


def decode_scales(scales: NDArray[Any], kind: ScaleName) -> Floats:
    """Values of stored scales, float64, same shape. The E8M0 code 0xFF and NaN codes of E4M3 give NaN."""
    if kind == "e8m0":
        values = np.ldexp(1.0, scales.astype(np.int32) - E8M0_BIAS)
        return np.where(scales == E8M0_NAN, np.nan, values)
    return get_element("e4m3").decode(scales) if kind == "e4m3" else scales.astype(np.float64)


def encode_tensor_scale(amax: Floats, element: Element) -> Floats:
    """The FP32 scale of a whole matrix above E4M3 block scales: amax / (6 * 448) for E2M1, as float64 that FP32 holds exactly."""
    wanted = np.where(amax == 0, 1.0, amax / (element.max * E4M3_MAX))
    _check_fits(wanted, FP32_MAX, "fp32")
    return np.maximum(np.asarray(wanted, np.float32).astype(np.float64), FP32_TINY)


def encode_e8m0(amax: Floats, element: Element, rule: ScaleRule = "floor") -> NDArray[np.uint8]:
    """Powers of two for blocks whose largest magnitudes are `amax`, as E8M0 codes, clamped at 2**-127.

    With p the power of two in the element's largest value (4 for E2M1, 256 for E4M3):
    floor: 2**floor(log2 amax) / p, so that magnitudes over the element's largest saturate (OCP MX 1.0, section 6.3);
    ceil: 2**ceil(log2 amax) / p; even: floor of amax rounded to the element's mantissa;
    rceil: the least power of two at which amax does not pass the element's largest value.
    Raises PerfModelError for an unknown rule, and where the scale passes 2**127.
    """
    mantissa, exponent = np.frexp(amax)  # amax = mantissa * 2**exponent, mantissa in [0.5, 1)
    top_mantissa, top_exponent = np.frexp(element.max)
    if rule == "floor":
        power = exponent - top_exponent
    elif rule == "ceil":
        power = exponent - top_exponent + (mantissa > 0.5)
    elif rule == "even":
        power = exponent - top_exponent + (mantissa >= _carry(element))
    elif rule == "rceil":
        power = exponent - top_exponent + (mantissa > top_mantissa)
    else:
        raise PerfModelError("unknown rule for power-of-two scales", field="rule", value=rule, mend=did_you_mean(rule, RULES))
    power = np.where(amax == 0, -E8M0_BIAS, power)
    if np.any(power > E8M0_BIAS):
        raise PerfModelError("values are too large for an E8M0 scale", value=float(amax.max()), mend="Scale the matrix down first.")
    return (np.maximum(power, -E8M0_BIAS) + E8M0_BIAS).astype(np.uint8)


def _carry(element: Element) -> float:
    """The least mantissa in [0.5, 1) that the element's mantissa rounds up to 1: half a step below 1, a tie that goes to even."""
    binade = 2 ** np.floor(np.log2(element.max))
    below = element.values[element.values < binade].max()
    return float((below / binade + 1) / 2)


def _check_fits(wanted: Floats, largest: float, kind: ScaleName) -> None:
    if wanted.size and wanted.max() > largest:
        raise PerfModelError(f"values are too large for a scale in {kind}", value=float(wanted.max()), mend="Scale the matrix down first.")


def _float_dtype(kind: ScaleName) -> Any:
    import ml_dtypes

    return np.dtype(np.float16) if kind == "fp16" else np.dtype(ml_dtypes.bfloat16)
