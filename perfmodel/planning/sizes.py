"""How many GPUs a search may use: what was asked, else a node or what the weights need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.formats import get_format
from perfmodel.hardware import GpuSpec
from perfmodel.planning.formats import all_formats, formats_for
from perfmodel.planning.request import MOST_GPUS, PlanRequest
from perfmodel.serving.links import domain_of
from perfmodel.serving.memory import USABLE, WORKSPACE
from perfmodel.serving.parallel import Parallel
from perfmodel.serving.work import work_of
from perfmodel.workload.model import ModelSpec

NODE = 8
"""GPUs of the usual node; of a larger NVLink domain as many are taken."""
ROOM = 1.1
"""Memory wanted for weights and some cache, over the weights."""


@dataclass(frozen=True)
class Kind:
    """A GPU and a format to search, and how many GPUs may be used."""

    gpu: GpuSpec
    format: str
    instance: int
    """By one instance."""
    mixed: float
    """By the prefill and decode instances that work together."""
    total: float
    """By all instances; infinite where the load decides."""
    weights: float
    """Bytes of the model."""


def kinds_of(model: ModelSpec, gpus: list[GpuSpec], request: PlanRequest) -> tuple[list[Kind], list[str]]:
    """What to search, and notes on what was left out or assumed. Raises PerfModelError where no GPU runs any of the formats."""
    found, notes = [], []
    for gpu in gpus:
        forms = formats_for(request.format, model, gpu)
        if not forms:
            notes.append(f"{gpu.id} lacks the units for {', '.join(request.format)}")
        found += [_kind(model, gpu, form, request) for form in forms]
        notes += gpu.notes
    if not found:
        get_format(request.format[0]).math_type(gpus[0].math_types)  # raises, naming what runs
    if request.gpus is None:
        sizes = sorted({f"{k.instance} {k.gpu.id}" for k in found})
        notes.append(f"without --gpus, an instance may take a node or what the weights need: {', '.join(sizes)}")
    if model.format is None and "auto" in request.format:
        notes.append(f"the format of the weights is not known: {found[0].format} is assumed (--format names another)")
    return found, notes


def _kind(model: ModelSpec, gpu: GpuSpec, form: str, request: PlanRequest) -> Kind:
    forms = all_formats(form, model, gpu, request.kv_format)
    work = work_of(model, Parallel(), form, dense=forms.dense, cache=forms.cache)
    weights = float(work.weight_bytes[0])
    if request.gpus is not None:
        return Kind(gpu, form, request.gpus, request.gpus, request.gpus, weights)
    open_ended = request.rate is not None or request.concurrency is not None
    node = min(NODE, domain_of(gpu))
    needed = ROOM * weights / max(gpu.dram_capacity * USABLE - WORKSPACE, 1.0)
    instance = min(max(node, 2 ** int(np.ceil(np.log2(max(needed, 1.0))))), MOST_GPUS)
    return Kind(gpu, form, instance, 4 * instance if open_ended else instance, np.inf if open_ended else instance, weights)


def check_whole(model: ModelSpec) -> None:
    """Raises PerfModelError for what is no whole model."""
    if not model.attention or model.vocab is None:
        raise PerfModelError("is no whole model", field="MODEL", value=model.id, mend="Give a bundled id or a config.json.")
