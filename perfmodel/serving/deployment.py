"""A model on a GPU: its formats, rates and offsets there. What predict, plan and simulate have in common."""

from __future__ import annotations

from perfmodel.errors import PerfModelError
from perfmodel.formats import get_format
from perfmodel.hardware import GpuSpec
from perfmodel.scenario import default_format
from perfmodel.serving.engine import load_calibration
from perfmodel.serving.formats import Formats, formats_of, precision_of
from perfmodel.serving.links import with_link
from perfmodel.serving.step import Rates, rates_of
from perfmodel.workload.model import ModelSpec

W4A8 = "mxfp4-w4a8"


def runs(form: str, gpu: GpuSpec) -> bool:
    """Whether the GPU has units for a format. Raises PerfModelError for formats that do not exist."""
    return bool(set(get_format(form).math) & set(gpu.math_types))


def serving_format(stored: str | None, gpu: GpuSpec) -> str:
    """The format that engines run by default: `default_format`, but MXFP4 weights that came with no format of activations meet MXFP8 ones
    where a layer alone would run fastest in W4A4. Raises PerfModelError where none runs."""
    found = default_format(stored, gpu)
    return W4A8 if found == "mxfp4" and stored != found and runs(W4A8, gpu) else found


def formats_on(model: ModelSpec, gpu: GpuSpec, form: str, cache: str | None = None) -> Formats:
    """Formats of experts, other layers and caches; fp16 where the GPU knows no bf16."""
    found = formats_of(model, form, cache)
    return found if runs(found.dense, gpu) else found._replace(dense="fp16")


def rates_on(gpu: GpuSpec, formats: Formats, *, alone: bool) -> Rates:
    """The rates of a GPU. One that is `alone` needs no link. Raises PerfModelError where it lacks the units, or the link."""
    return rates_of(with_link(gpu) if alone else gpu, formats.experts, formats.dense)


def words_of(model: ModelSpec, gpu: GpuSpec, form: str, *, mode: str, backend: str | None) -> dict[str, str]:
    """What offsets know a service by; without a backend only what all backends have in common counts."""
    words = {"model": model.id, "precision": precision_of(form), "architecture": gpu.architecture, "gpu": gpu.id, "mode": mode}
    return words | ({} if backend is None else {"backend": backend})


def check_backend(backend: str | None) -> None:
    """Raises PerfModelError for a backend that was not fitted."""
    known = load_calibration().backends
    if backend is not None and backend not in known:
        mend = f"Give {', '.join(known)}, or leave it out." if known else "Leave it out."
        raise PerfModelError("no such backend", field="backend", value=backend, mend=mend)
