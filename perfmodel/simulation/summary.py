"""A simulation that is done, as the JSON object of `perfmodel simulate`."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.hardware import GpuSpec
from perfmodel.serving.memory import memory_bytes
from perfmodel.serving.step import decode
from perfmodel.simulation.run import Outcome
from perfmodel.simulation.state import SUMS
from perfmodel.units import GB, MICROSECOND
from perfmodel.workload.expectation import Array
from perfmodel.workload.model import ModelSpec

MS = 1e3


def as_object(outcome: Outcome, model: ModelSpec, gpu: GpuSpec, form: str) -> dict[str, Any]:
    """The object; times in the units of their names."""
    s, sums = outcome.state, dict(zip(SUMS, outcome.state.sums.tolist(), strict=True))
    output = s.output
    counted = np.arange(output.size) >= min(outcome.request.concurrency or 0, output.size - 1)
    ttft, latency = s.first - s.arrival, s.done - s.arrival
    several = counted & (output > 1)
    tpot = (s.done - s.first)[several] / (output[several] - 1)
    wall = float(s.done.max() - s.arrival.min())
    return {
        "schema": "perfmodel.simulate/1",
        "completed": int(np.isfinite(s.done).sum()),
        "ttft_ms": percentiles(ttft[counted] * MS),
        "tpot_ms": percentiles(tpot * MS) if tpot.size else None,
        "latency_ms": percentiles(latency[counted] * MS),
        "tokens_per_s": float(output.sum()) / wall,
        "requests_per_s": output.size / wall,
        "utilisation": sums["busy"] / (wall * s.ends.size),
    }


def percentiles(values: Array) -> dict[str, float]:
    """p50, p90, p99 and the mean."""
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    return {"p50": p50, "p90": p90, "p99": p99, "mean": float(values.mean())}
