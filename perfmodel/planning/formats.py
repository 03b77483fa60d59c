"""Which formats a search tries on a GPU."""

from __future__ import annotations

from perfmodel.hardware import GpuSpec
from perfmodel.serving.deployment import runs, serving_format
from perfmodel.workload.model import ModelSpec


def formats_for(asked: tuple[str, ...], model: ModelSpec, gpu: GpuSpec) -> list[str]:
    """The formats to try, `auto` resolved, without those that the GPU lacks units for."""
    named = [serving_format(model.format, gpu) if form == "auto" else form for form in asked]
    return [form for form in dict.fromkeys(named) if runs(form, gpu)]
