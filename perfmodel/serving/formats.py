"""Formats of a whole model: what its experts, its other layers and its caches are stored in, by the format that is asked for."""

from __future__ import annotations

from typing import NamedTuple

from perfmodel.formats import get_format
from perfmodel.workload.model import ModelSpec

FOUR_BITS = 4.0


class Formats(NamedTuple):
    """Format ids."""

    experts: str
    """Of the routed experts; of all linear layers where there are none."""
    dense: str
    """Of the other linear layers."""
    cache: str


def formats_of(model: ModelSpec, form: str, cache: str | None = None) -> Formats:
    """As published checkpoints have it: with experts in 4 bits the other layers stay in bf16, and caches are FP8 beside FP8 and FP4 units.

    cache: another format for keys and values. Raises PerfModelError for formats that do not exist.
    """
    chosen = get_format(form)
    narrow = chosen.weights.value_bits <= FOUR_BITS
    dense = "bf16" if narrow and model.moe is not None else form
    sixteen = "bf16" in chosen.math or "fp16" in chosen.math
    return Formats(form, dense, cache or ("bf16" if sixteen else "fp8"))


def precision_of(form: str) -> str:
    """bf16, fp8, fp4 or int4: how a format's weights are called in tables of services."""
    scheme = get_format(form).weights
    if scheme.value_bits > 8:
        return "bf16"
    if scheme.value_bits == 8:
        return "fp8"
    return "int4" if scheme.element.startswith("int") else "fp4"
