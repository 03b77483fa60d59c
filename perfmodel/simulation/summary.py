"""A simulation that is done, as the JSON object of `perfmodel simulate`."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.serving.memory import USABLE, memory_bytes
from perfmodel.serving.step import decode
from perfmodel.simulation.deploy import Instances
from perfmodel.simulation.run import Outcome
from perfmodel.simulation.state import SUMS
from perfmodel.units import GB, MICROSECOND
from perfmodel.workload.expectation import Array

MS = 1e3
CURVE = ("ttft_ms", "tpot_ms", "latency_ms", "tokens_per_s", "requests_per_s", "utilisation", "kv_full_share", "preempted")
"""What a point of a curve says beside its rate."""


SHOWN = ("backend", "seed", "arrivals", "lengths", "chunk", "prefix_cache", "speculative", "dispatch", "max_sequences")
"""Fields of the request that the result repeats."""


def as_object(outcome: Outcome) -> dict[str, Any]:
    """The object; times in the units of their names."""
    s = outcome.state
    wall = float(s.done.max() - s.arrival.min())
    counted = _counted(outcome)
    several = counted & (s.output > 1)
    tpot = (s.done - s.first)[several] / (s.output[several] - 1)
    sums = dict(zip(SUMS, s.sums.tolist(), strict=True))
    return {
        **_asked(outcome),
        "completed": int(np.isfinite(s.done).sum()),
        "ttft_ms": percentiles((s.first - s.arrival)[counted] * MS),
        "tpot_ms": percentiles(tpot * MS) if tpot.size else None,
        "latency_ms": percentiles((s.done - s.arrival)[counted] * MS),
        "seconds": wall,
        "tokens_per_s": float(s.output.sum()) / wall,
        "tokens_per_s_per_gpu": float(s.output.sum()) / wall / outcome.request.gpus,
        "requests_per_s": s.output.size / wall,
        **_utilisation(outcome, wall),
        "memory": _memory(outcome, sums, wall),
        "step": _mean_step(outcome.decoding, sums),
        "step_us": _step_us(outcome.decoding, sums),
        "kv_full_share": sums["full"] / (wall * s.ends.size),
        "preempted": int(sums["preempted"]),
        "anchored": outcome.anchored.model_dump() if outcome.anchored else None,
        "notes": _notes(outcome, counted),
    }


def point(result: dict[str, Any]) -> dict[str, Any]:
    """A point of the curve of percentiles against load."""
    return {"rate": result["rate"], **{name: result[name] for name in CURVE}}


def percentiles(values: Array) -> dict[str, float]:
    """p50, p90, p99 and the mean."""
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    return {"p50": p50, "p90": p90, "p99": p99, "mean": float(values.mean())}


def _counted(outcome: Outcome) -> Any:
    """Which requests the percentiles are of: in a closed loop not the first of each client, which all come at once, if others follow."""
    requests, clients = outcome.state.arrival.size, outcome.request.concurrency or 0
    return np.arange(requests) >= (clients if clients < requests else 0)


def _asked(outcome: Outcome) -> dict[str, Any]:
    request, prefill, decoding = outcome.request, outcome.prefill, outcome.decoding
    lengths = outcome.load.lengths
    return {
        "schema": "perfmodel.simulate/1",
        "model": outcome.model.id,
        "gpu": outcome.gpu.id,
        "format": outcome.format,
        "gpus": request.gpus,
        "mode": request.mode,
        **vars(decoding.parallel),
        "instances": decoding.count,
        **({"prefill_instances": prefill.count} if prefill else {}),
        "rate": request.rate,
        "concurrency": request.concurrency,
        "trace": request.trace,
        "requests": int(lengths.prompt.size),
        "isl_mean": float(lengths.prompt.mean()),
        "osl_mean": float(lengths.output.mean()),
        **request.model_dump(include=set(SHOWN)),
    }


def _utilisation(outcome: Outcome, wall: float) -> dict[str, float]:
    """Share of the time that instances run steps; of those for prompts and for decode apart, where there are both."""
    busy, split = outcome.state.busy / wall, outcome.prefill.count if outcome.prefill else 0
    found = {"utilisation": float(busy.mean())}
    if split:
        found |= {"prefill_utilisation": float(busy[:split].mean()), "decode_utilisation": float(busy[split:].mean())}
    return found


def _memory(outcome: Outcome, sums: dict[str, float], wall: float) -> dict[str, float]:
    """GB of a GPU that decodes; caches on average over time and instances, and at most."""
    some = outcome.decoding
    ranks = some.parallel.dp * GB
    fixed = memory_bytes(some.deployment.work, np.zeros(1), np.ones(1))
    return {
        "capacity_GB": outcome.gpu.dram_capacity / GB,
        "usable_GB": outcome.gpu.dram_capacity * USABLE / GB,
        "weights_GB": float(fixed["weights"][0]) / GB,
        "workspace_GB": float(fixed["workspace"][0]) / GB,
        "cache_room_GB": some.room / GB,
        "cache_mean_GB": sums["bytes"] / (wall * some.count) / ranks,
        "cache_peak_GB": sums["peak"] / ranks,
    }


def _mean_step(some: Instances, sums: dict[str, float]) -> dict[str, float] | None:
    """The mean step without a prompt: sequences of an instance, their context, and its time; None where no step was one."""
    if not sums["sequences"]:
        return None
    return {
        "sequences": sums["sequences"] / sums["steps"],
        "context": sums["context"] / sums["sequences"],
        "us": sums["decoding"] / sums["steps"] / MICROSECOND,
        "steps": sums["steps"],
        "steps_with_prompts": sums["prompts"],
        "prompt_tokens_a_step": sums["prompt_tokens"] / max(sums["prompts"], 1.0),
    }


def _step_us(some: Instances, sums: dict[str, float]) -> dict[str, float]:
    """Microseconds of each op in the mean step; that of one sequence where no step was without a prompt."""
    mean = _mean_step(some, sums) or {"sequences": 1.0, "context": 1.0}
    ranked = max(mean["sequences"] / some.parallel.dp, min(mean["sequences"], 1.0))
    ops = some.deployment.ops(decode(np.array([ranked]), np.array([mean["context"]])))
    return {name: float(seconds[0]) / MICROSECOND for name, seconds in ops.items()}


def _notes(outcome: Outcome, counted: Any) -> list[str]:
    request, s = outcome.request, outcome.state
    notes = [*outcome.gpu.notes, *outcome.model.notes, *outcome.load.notes, *outcome.notes]
    if request.concurrency and not counted.all():
        notes.append("percentiles leave out the first request of each client: these all come at once")
    if request.concurrency is None and _grows(s.first - s.arrival):
        notes.append("the queue grows all the time: the load is more than the service bears, and percentiles depend on --requests")
    if request.format is None and outcome.model.format is None:
        notes.append(f"the format of the weights is not known: {outcome.format} is assumed (--format names another)")
    if outcome.decoding.parallel.pp > 1:
        notes.append("stages of a pipeline work on one batch at a time: the throughput of several batches under way is not counted")
    return notes


def _grows(ttft: Array) -> bool:
    """Whether the first token of the last fifth comes much later than that of the second one."""
    part = ttft.size // 5
    return part >= 20 and float(np.median(ttft[-part:])) > 2 * float(np.median(ttft[part : 2 * part]))
