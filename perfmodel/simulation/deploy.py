"""Which instances there are, and what each side of them costs: from a request to tables and rooms for caches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec
from perfmodel.ops.fabric import link_domain
from perfmodel.serving.deployment import check_backend, formats_on, rates_on, words_of
from perfmodel.serving.engine import load_calibration
from perfmodel.serving.links import linked
from perfmodel.serving.memory import cache_room
from perfmodel.serving.parallel import Parallel, allowed
from perfmodel.serving.work import Work, work_of
from perfmodel.simulation.load import Lengths
from perfmodel.simulation.request import SimulationRequest
from perfmodel.simulation.state import Side
from perfmodel.simulation.table import Deployment, decode_table, grid, mixed_table
from perfmodel.units import GB
from perfmodel.workload.model import ModelSpec

WHOLE_PROMPT = 16_384
"""Tokens of one prompt in a step at most where no chunk is asked for."""


@dataclass(frozen=True)
class Instances:
    """`count` alike ones."""

    parallel: Parallel
    count: int
    deployment: Deployment
    room: float
    """Bytes of one GPU for caches."""


def instances(request: SimulationRequest, model: ModelSpec, gpu: GpuSpec, form: str, gpus: int) -> Instances:
    """The instances on `gpus` GPUs. Raises PerfModelError where the model does not fit, or the ranks do not divide."""
    parallel = _asked(request, model, gpu, form, gpus)
    if gpus % parallel.gpus:
        mend = f"An instance takes {parallel.gpus} GPUs: give a multiple of it."
        raise PerfModelError("instances do not fill the GPUs", field="gpus", value=gpus, mend=mend)
    room = room_of(model, gpu, form, parallel)
    if room <= 0:
        problem = f"the weights of {model.id} in {form} do not fit {parallel.gpus} x {gpu.id}"
        mend = f"{-room / GB:,.0f} GB a GPU are missing: give more GPUs to an instance, or a smaller format."
        raise PerfModelError(problem, field="gpus", value=gpus, mend=mend)
    return Instances(parallel, gpus // parallel.gpus, _deployment(request, model, gpu, form, parallel), room)


def _deployment(request: SimulationRequest, model: ModelSpec, gpu: GpuSpec, form: str, parallel: Parallel) -> Deployment:
    """The work and the rates, with the fitted engine and its offset for services like this one."""
    check_backend(request.backend)
    calibration = load_calibration()
    words = words_of(model, gpu, form, mode=request.mode, backend=request.backend)
    return Deployment(
        work=_work(model, gpu, parallel, form),
        rates=rates_on(gpu, formats_on(model, gpu, form), alone=parallel.gpus == 1 and request.mode == "aggregated"),
        engine=calibration.engine_of(request.backend),
        speculation=request.speculation,
        factor=calibration.factor("tpot", words),
    )


def _work(model: ModelSpec, gpu: GpuSpec, parallel: Parallel, form: str) -> Work:
    formats = formats_on(model, gpu, form)
    return work_of(model, parallel, formats.experts, dense=formats.dense, cache=formats.cache)


def _asked(request: SimulationRequest, model: ModelSpec, gpu: GpuSpec, form: str, gpus: int) -> Parallel:
    given = {name: getattr(request, name) for name in ("tp", "pp", "dp", "ep") if getattr(request, name) is not None}
    parallel = Parallel(**given) if given else plausible(model, gpu, form, gpus)
    parallel.check(model)
    return parallel


def plausible(model: ModelSpec, gpu: GpuSpec, form: str, gpus: int) -> Parallel:
    """The widest tensor parallelism within the GPUs that a link joins, and as few pipeline stages of it as hold the weights."""
    domain = min(link_domain(gpu), gpus) if linked(gpu) else 1
    widths = [tp for tp in range(domain, 0, -1) if gpus % tp == 0 and allowed(Parallel(tp=tp), model)]
    tp = widths[0] if widths else 1
    depths = [pp for pp in range(1, min(gpus // tp, model.layers) + 1) if gpus % (tp * pp) == 0]
    splits = [Parallel(tp=tp, pp=pp) for pp in depths if allowed(Parallel(tp=tp, pp=pp), model)] or [Parallel(tp=tp)]
    return next((split for split in splits if room_of(model, gpu, form, split) > 0), splits[-1])


def room_of(model: ModelSpec, gpu: GpuSpec, form: str, parallel: Parallel) -> float:
    """Bytes of a GPU for caches; negative where the weights do not fit."""
    return float(cache_room(_work(model, gpu, parallel, form), np.array([gpu.dram_capacity]))[0])


def side_of(some: Instances, lengths: Lengths, request: SimulationRequest) -> Side:
    """What the compiled loop knows of an instance. Raises PerfModelError where a request alone does not fit its memory."""
    work, ranks = some.deployment.work, some.parallel.dp
    whole = lengths.prompt + lengths.output
    longest = float(whole.max())
    _check_room(some, longest)
    most = min(request.max_sequences, whole.size)
    tokens = min(request.chunk or WHOLE_PROMPT, int(longest) if request.chunk is None else request.chunk)
    points = grid(max(most / ranks, 1.0), float(lengths.prompt.min()), longest, tokens)
    forgets = bool(np.isfinite(work.kept[work.stored > 0]).any())
    stored = work.stored[:, 0] / work.pp
    return Side(
        sequences=points.sequences, context=points.context, prompt=points.prompt, seen=points.seen,
        decode=decode_table(some.deployment, points), mixed=mixed_table(some.deployment, points),
        stored=stored, kept=work.kept[:, 0].copy(), slope=np.nan if forgets else float(stored.sum()),
        state=float(work.state_bytes[0] / work.pp[0]), room=some.room * ranks, ranks=float(ranks), most_sequences=int(most),
        most_tokens=int(tokens), most_prompts=1 if request.chunk is None else int(tokens),
    )  # fmt: skip


def _check_room(some: Instances, longest: float) -> None:
    wanted = float((some.deployment.work.cache_bytes(np.array([longest])) / some.deployment.work.pp)[0])
    if wanted > some.room:
        raise PerfModelError(
            f"the cache of a request takes {wanted / GB:,.1f} GB a GPU and {some.room / GB:,.1f} are free",
            field="isl",
            value=int(longest),
            mend="Give shorter requests, or more GPUs to an instance.",
        )
