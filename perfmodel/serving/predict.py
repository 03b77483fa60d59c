"""One step of a whole model on one instance, op by op: what `perfmodel predict MODEL --phase decode|prefill` gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, PositiveInt, ValidationInfo, field_validator

from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec
from perfmodel.scenario import as_gpu
from perfmodel.serving.anchored import Anchored, Configuration, anchored_of, left_out
from perfmodel.serving.anchoring import Anchoring
from perfmodel.serving.anchors import MOST_ANCHORS, Anchor, as_anchors
from perfmodel.serving.deployment import check_backend, formats_on, rates_on, serving_format, words_of
from perfmodel.serving.engine import load_calibration
from perfmodel.serving.formats import precision_of
from perfmodel.serving.links import network_notes
from perfmodel.serving.memory import longest_context, memory_bytes, most_sequences
from perfmodel.serving.parallel import Parallel
from perfmodel.serving.step import Batch, decode, step_ops, step_time
from perfmodel.serving.work import Work, work_of
from perfmodel.units import GB, MICROSECOND
from perfmodel.validated import Changes, Strict, validate
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
    changes: tuple[str, ...]
    """What-ifs on the GPU."""
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
    micro_batches: PositiveInt = 1
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


class StepRequest(Strict):
    """One step of a whole model on one instance."""

    model: str | ModelSpec
    """Bundled id, path to a config.json, or a loaded model."""
    gpu: str | GpuSpec
    """Id of the catalogue, path to a YAML file, or a loaded GPU."""
    phase: Phase = "decode"
    """decode: a token of each of `batch` sequences; prefill: a prompt of `context` tokens."""
    batch: int = Field(default=1, ge=1, lt=2**31)
    """Sequences of the instance that decode, or prompts whose caches are held."""
    context: int = Field(default=4096, ge=1, lt=2**31)
    """Tokens that a sequence sees, or those of a prompt."""
    format: str | None = None
    """Format of the experts' weights; default: the fastest that the GPU runs and the model's weights allow."""
    cache_format: str | None = None
    """Format of keys and values; default: fp8 beside FP8 and FP4 units, else bf16."""
    tp: int = Field(default=1, ge=1, lt=2**31)
    """Tensor-parallel ranks of an attention group."""
    pp: int = Field(default=1, ge=1, lt=2**31)
    """Pipeline stages."""
    dp: int = Field(default=1, ge=1, lt=2**31)
    """Ranks of data-parallel attention."""
    ep: int = Field(default=1, ge=1, lt=2**31)
    """Expert-parallel groups."""
    micro_batches: Literal[1, 2] = 1
    """2: two halves of the batch take turns, so that one communicates while the other computes."""
    backend: str | None = None
    """trtllm, sglang or vllm, whose habits then count."""
    changes: Changes = ()
    """What-ifs on the GPU, such as "memory.bandwidth_GBps=9600"."""
    anchors: tuple[Anchor, ...] = Field(default=(), max_length=MOST_ANCHORS, strict=False)
    """The user's own measurements of services, which pull the time."""

    @field_validator("phase", mode="before")
    @classmethod
    def _phase(cls, value: Any) -> Any:
        if value not in ("decode", "prefill"):
            raise PerfModelError("no such phase", field="phase", value=value, mend="Give decode or prefill.")
        return value

    @field_validator("batch", "context", mode="before")
    @classmethod
    def _count(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise PerfModelError("must be a whole number from 1", field=info.field_name, value=value, mend="Give 64, say.")
        return value

    @field_validator("tp", "pp", "dp", "ep", mode="before")
    @classmethod
    def _ranks(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            mend = "Give the number of ranks, such as 8."
            raise PerfModelError("must be a whole number from 1", field=info.field_name, value=value, mend=mend)
        return value


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
    micro_batches: Literal[1, 2] = 1,
    backend: str | None = None,
    changes: str | Sequence[str] = (),
    anchors: Sequence[Anchor | Mapping[str, Any]] | str | Path = (),
) -> StepResult:
    """One step of a whole model: `batch` sequences that decode at `context` tokens, or a prompt of `context` tokens.

    tp, pp, dp, ep: how an instance's GPUs share the model (`serving.parallel.Parallel`). backend: trtllm, sglang or vllm, whose habits
    then count. anchors: a user's own measurements of services, or a file of them, that pull the time.
    Raises PerfModelError for what does not exist, does not split, or has no attention to predict.
    """
    given = {k: v for k, v in locals().items() if k not in ("model", "gpu", "anchors")} | {"anchors": as_anchors(anchors)}
    names = {"model": str(model) if isinstance(model, Path) else model, "gpu": str(gpu) if isinstance(gpu, Path) else gpu}
    return predict_step(validate(StepRequest, {**names, **given}))


def predict_step(r: StepRequest) -> StepResult:
    """The answer to a request. Raises PerfModelError as `predict` does."""
    spec = r.model if isinstance(r.model, ModelSpec) else load_model(r.model)
    gpu = as_gpu(r.gpu, r.changes)
    _check_whole(spec)
    check_backend(r.backend)
    parallel = Parallel(r.tp, r.pp, r.dp, r.ep)
    parallel.check(spec)
    form = serving_format(spec.format, gpu) if r.format is None else r.format
    formats = formats_on(spec, gpu, form, r.cache_format)
    work = work_of(spec, parallel, formats.experts, dense=formats.dense, cache=formats.cache, micro_batches=r.micro_batches)
    rates = rates_on(gpu, formats, alone=parallel.gpus == 1)
    calibration = load_calibration()
    engine = calibration.engine_of(r.backend)
    words = words_of(spec, gpu, form, mode="aggregated", backend=r.backend)
    factor = calibration.factor("tpot", words) if r.phase == "decode" else 1.0  # offsets of TTFT are of queues as much as of prompts
    held = anchored_of(r.anchors, spec, as_gpu(r.gpu), r.backend)
    pull, spread, told = _pulled(held, r.phase, Configuration(precision_of(form), parallel), r.batch, r.context)
    factor *= pull
    step = _batch(r.phase, r.batch, r.context, parallel)
    seconds = float(step_time(work, rates, engine, step)[0]) * factor
    ops = {name: float(values[0]) * factor for name, values in step_ops(work, rates, engine, step).items()}
    ops["launches ahead of kernels"] = max(seconds - sum(ops.values()), 0.0)
    low, high = (value**spread for value in calibration.interval["aggregated"]["tpot" if r.phase == "decode" else "ttft"])
    tokens = r.batch if r.phase == "decode" else r.context * r.dp  # a prompt on each attention rank
    return StepResult(
        model=spec.id, gpu=gpu.id, changes=r.changes, phase=r.phase, backend=r.backend,
        format=form, dense_format=formats.dense, cache_format=formats.cache,
        tp=r.tp, pp=r.pp, dp=r.dp, ep=r.ep, gpus=parallel.gpus,
        micro_batches=r.micro_batches, batch=r.batch, context=r.context, latency_us=seconds / MICROSECOND,
        interval_us=(seconds * low / MICROSECOND, seconds * high / MICROSECOND), tokens_per_s_per_gpu=tokens / seconds / parallel.gpus,
        ops=tuple(StepOp(name=name, us=value / MICROSECOND) for name, value in ops.items() if value > 0),
        **_memory(work, gpu, r.batch, r.context), anchored=told, notes=_notes(r, spec, gpu, parallel, held),
    )  # fmt: skip


def _notes(r: StepRequest, spec: ModelSpec, gpu: GpuSpec, parallel: Parallel, held: Anchored | None) -> tuple[str, ...]:
    """What a user should know of the model, the GPU, its links, the anchors and a prompt alone."""
    anchors = (*left_out(r.anchors, [held]), *(held.notes if held else ()))
    alone = () if r.phase == "decode" else (NO_BARE_PROMPTS,)
    return (*gpu.notes, *spec.notes, *network_notes(gpu, parallel.gpus), *anchors, *alone)


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


def _check_whole(spec: ModelSpec) -> None:
    if not spec.attention:
        raise PerfModelError(
            "is a single layer, not a whole model", field="MODEL", value=spec.id, mend="Leave --phase out, or name a model."
        )


def _batch(phase: str, batch: int, context: int, parallel: Parallel) -> Batch:
    if phase == "decode":
        return decode(_vector(max(batch / parallel.dp, 1.0)), _vector(context))
    return Batch(_vector(0.0), _vector(0.0), _vector(context), _vector(0.0))


def _vector(value: float) -> Array:
    return np.array([float(value)])


def as_json(result: StepResult) -> dict[str, Any]:
    """The JSON object of the command."""
    return result.model_dump(by_alias=True)
