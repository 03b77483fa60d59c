"""Which formats a search tries on a GPU, and how the layers beside the experts and the caches are stored."""

from __future__ import annotations

from perfmodel.formats import get_format
from perfmodel.hardware import GpuSpec
from perfmodel.scenario import default_format
from perfmodel.serving.formats import Formats, formats_of
from perfmodel.workload.model import ModelSpec


def runs(form: str, gpu: GpuSpec) -> bool:
    """Whether the GPU has units for a format. Raises PerfModelError for formats that do not exist."""
    return bool(set(get_format(form).math) & set(gpu.math_types))


def formats_for(asked: tuple[str, ...], model: ModelSpec, gpu: GpuSpec) -> list[str]:
    """The formats to try, `auto` resolved, without those that the GPU lacks units for."""
    named = [default_format(model.format, gpu) if form == "auto" else form for form in asked]
    return [form for form in dict.fromkeys(named) if runs(form, gpu)]


def all_formats(form: str, model: ModelSpec, gpu: GpuSpec, cache: str | None) -> Formats:
    """Formats of experts, other layers and caches; fp16 where the GPU knows no bf16."""
    found = formats_of(model, form, cache)
    return found if runs(found.dense, gpu) else found._replace(dense="fp16")
