"""Which formats a search tries on a GPU, and how the layers beside the experts are stored."""

from __future__ import annotations

from perfmodel.formats import get_format
from perfmodel.hardware import GpuSpec
from perfmodel.scenario import default_format
from perfmodel.workload.model import ModelSpec

SIXTEEN = ("bf16", "fp16")


def runs(form: str, gpu: GpuSpec) -> bool:
    """Whether the GPU has units for a format. Raises PerfModelError for formats that do not exist."""
    return bool(set(get_format(form).math) & set(gpu.math_types))


def formats_for(asked: tuple[str, ...], model: ModelSpec, gpu: GpuSpec) -> list[str]:
    """The formats to try, `auto` resolved, without those that the GPU lacks units for."""
    named = [default_format(model.format, gpu) if form == "auto" else form for form in asked]
    return [form for form in dict.fromkeys(named) if runs(form, gpu)]


def dense_format(form: str, model: ModelSpec, gpu: GpuSpec) -> str:
    """Format of attention and dense layers where the experts are in `form`.

    Checkpoints with experts of four bits keep the other layers as they were trained: in the format of the published weights, or in 16 bits
    where those have four bits themselves.
    """
    if model.moe is None or get_format(form).weights.value_bits > 4:
        return form
    stored = model.format or "bf16"
    wanted = "bf16" if get_format(stored).weights.value_bits <= 4 else stored
    return next((name for name in (wanted, *SIXTEEN) if runs(name, gpu)), form)
