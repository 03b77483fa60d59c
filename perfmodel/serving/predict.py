"""One step of a whole model on one instance, op by op: what `perfmodel predict MODEL --phase decode|prefill` gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, PositiveInt

from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec
from perfmodel.scenario import as_gpu
from perfmodel.serving.anchored import Anchored, Configuration, anchored_of, left_out
from perfmodel.serving.anchoring import Anchoring
from perfmodel.serving.anchors import Anchor, as_anchors
from perfmodel.serving.deployment import check_backend, formats_on, rates_on, serving_format, words_of
from perfmodel.serving.engine import load_calibration
from perfmodel.serving.formats import precision_of
from perfmodel.serving.links import network_notes
from perfmodel.serving.memory import longest_context, memory_bytes, most_sequences
from perfmodel.serving.parallel import Parallel
from perfmodel.serving.step import Batch, decode, step_ops, step_time
from perfmodel.serving.work import Work, work_of
from perfmodel.units import GB, MICROSECOND
from perfmodel.validated import Strict
from perfmodel.workload import load_model
from perfmodel.workload.expectation import Array
from perfmodel.workload.model import ModelSpec

Phase = Literal["decode", "prefill"]
NO_BARE_PROMPTS = "no prompt was measured alone: the interval is that of times to the first token, which hold queues as well"


class StepOp(Strict):
    """One kind of op over all layers of a step."""

    name: str
    us: float = Field(ge=0)


class StepResult(Strict):
    """A step of a model: its time with an 80 % interval, what it consists of, and the memory of a GPU."""

    schema_: str = Field(default="perfmodel.predict-model/1", alias="schema")
    model: str
    gpu: str
    phase: str
    backend: str | None
    format: str
    dense_format: str
    cache_format: str
    tp: PositiveInt
    pp: PositiveInt
    dp: PositiveInt
    ep: PositiveInt
    gpus: PositiveInt
    batch: PositiveInt
    """Sequences of the instance that decode, or prompts whose caches are held."""
    context: PositiveInt
    """Tokens that a sequence sees, or those of a prompt."""
    latency_us: float
    """Of the step, or of one prompt on each attention rank."""
    interval_us: tuple[float, float]
    tokens_per_s_per_gpu: float
    """Of one batch, or prompt, at a time: pipeline stages wait for each other."""
    ops: tuple[StepOp, ...]
    memory_GB: dict[str, float]
    """Of one GPU: weights, cache, workspace."""
    capacity_GB: float
    fits: bool
    most_sequences: int
    """Of this context that fit an instance at a time."""
    longest_context: int
    """That so many sequences may have at a time."""
    anchored: Anchoring | None = None
    """What the user's own measurements made of it."""
    notes: tuple[str, ...] = ()


def predict(
    model: str | Path | ModelSpec,
    gpu: str | Path | GpuSpec,
    *,
    phase: Phase = "decode",
    batch: int = 1,
    context: int = 4096,
    format: str | None = None,
    cache_format: str | None = None,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    backend: str | None = None,
    changes: str | Sequence[str] = (),
    anchors: Sequence[Anchor | Mapping[str, Any]] | str | Path = (),
) -> StepResult:
    """One step of a whole model: `batch` sequences that decode at `context` tokens, or a prompt of `context` tokens.

    tp, pp, dp, ep: how an instance's GPUs share the model (`serving.parallel.Parallel`). backend: trtllm, sglang or vllm, whose habits
    then count. anchors: a user's own measurements of services, or a file of them, that pull the time.
    Raises PerfModelError for what does not exist, does not split, or has no attention to predict.
    """
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    gpu_spec = as_gpu(gpu, changes)
    _check(spec, phase, batch, context, backend)
    _check_words(format=format, cache_format=cache_format)
    parallel = Parallel(tp, pp, dp, ep)
    parallel.check(spec)
    form = serving_format(spec.format, gpu_spec) if format is None else format
    formats = formats_on(spec, gpu_spec, form, cache_format)
    work = work_of(spec, parallel, formats.experts, dense=formats.dense, cache=formats.cache)
    rates = rates_on(gpu_spec, formats, alone=parallel.gpus == 1)
    calibration = load_calibration()
    engine = calibration.engine_of(backend)
    words = words_of(spec, gpu_spec, form, mode="aggregated", backend=backend)
    factor = calibration.factor("tpot", words) if phase == "decode" else 1.0  # offsets of TTFT are of queues as much as of prompts
    rows = as_anchors(anchors)
    held = anchored_of(rows, spec, as_gpu(gpu), backend)
    pull, spread, told = _pulled(held, phase, Configuration(precision_of(form), parallel), batch, context)
    factor *= pull
    step = _batch(phase, batch, context, parallel)
    seconds = float(step_time(work, rates, engine, step)[0]) * factor
    ops = {name: float(values[0]) * factor for name, values in step_ops(work, rates, engine, step).items()}
    ops["launches ahead of kernels"] = max(seconds - sum(ops.values()), 0.0)
    low, high = (value**spread for value in calibration.interval["tpot" if phase == "decode" else "ttft"])
    notes = (
        *gpu_spec.notes,
        *spec.notes,
        *network_notes(gpu_spec, parallel.gpus),
        *(left_out(rows, [held])),
        *(held.notes if held else ()),
    )
    tokens = batch if phase == "decode" else context * dp  # a prompt on each attention rank
    return StepResult(
        model=spec.id, gpu=gpu_spec.id, phase=phase, backend=backend, format=form, dense_format=formats.dense, cache_format=formats.cache,
        tp=tp, pp=pp, dp=dp, ep=ep, gpus=parallel.gpus, batch=batch, context=context, latency_us=seconds / MICROSECOND,
        interval_us=(seconds * low / MICROSECOND, seconds * high / MICROSECOND), tokens_per_s_per_gpu=tokens / seconds / parallel.gpus,
        ops=tuple(StepOp(name=name, us=value / MICROSECOND) for name, value in ops.items() if value > 0),
        **_memory(work, gpu_spec, batch, context), anchored=told, notes=notes if phase == "decode" else (*notes, NO_BARE_PROMPTS),
    )  # fmt: skip


def _pulled(held: Anchored | None, phase: str, own: Configuration, batch: int, context: int) -> tuple[float, float, Anchoring | None]:
    """(factor, what is left of the interval's logarithm, the pull in figures). A prompt is the load of one request."""
    if held is None:
        return 1.0, 1.0, None
    load, figure = ((batch, context, np.nan), "tpot") if phase == "decode" else ((1, np.nan, context), "ttft")
    pulls, told = held.pulls(own, *load)
    return float(pulls[figure].factor[0]), float(pulls[figure].shrink[0]), told


def _memory(work: Work, gpu: GpuSpec, batch: int, context: int) -> dict[str, Any]:
    """The fields of the result that say what the memory of a GPU holds."""
    capacity, sequences = _vector(gpu.dram_capacity), _vector(batch)
    most = int(most_sequences(work, capacity, _vector(context))[0])
    return {
        "memory_GB": {name: float(values[0]) / GB for name, values in memory_bytes(work, sequences, _vector(context)).items()},
        "capacity_GB": gpu.dram_capacity / GB,
        "fits": most >= batch,
        "most_sequences": most,
        "longest_context": int(longest_context(work, capacity, sequences)[0]),
    }


def _check(spec: ModelSpec, phase: str, batch: int, context: int, backend: str | None) -> None:
    if not spec.attention:
        raise PerfModelError(
            "is a single layer, not a whole model", field="MODEL", value=spec.id, mend="Leave --phase out, or name a model."
        )
    if phase not in ("decode", "prefill"):
        raise PerfModelError("no such phase", field="phase", value=phase, mend="Give decode or prefill.")
    check_backend(backend)
    for name, value in (("batch", batch), ("context", context)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise PerfModelError("must be a whole number from 1", field=name, value=value, mend="Give 64, say.")


def _check_words(**given: object) -> None:
    for name, word in given.items():
        if word is not None and not isinstance(word, str):
            raise PerfModelError("must be a word", field=name, value=word, mend="Give it as text, such as fp8, or leave it out.")


def _batch(phase: str, batch: int, context: int, parallel: Parallel) -> Batch:
    if phase == "decode":
        return decode(_vector(max(batch / parallel.dp, 1.0)), _vector(context))
    return Batch(_vector(0.0), _vector(0.0), _vector(context), _vector(0.0))


def _vector(value: float) -> Array:
    return np.array([float(value)])


def as_json(result: StepResult) -> dict[str, Any]:
    """The JSON object of the command."""
    return result.model_dump(by_alias=True)
