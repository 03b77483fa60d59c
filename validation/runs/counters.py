"""Counters of Nsight Compute: which ones, and the few that the model is held against."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from perfmodel.diagnose import ncu

READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2, L2_HITS = "lts__t_bytes.sum", "lts__t_sector_hit_rate.pct"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
TIME = "gpu__time_duration.sum"
METRICS = (READ, WRITE, L2, L2_HITS, TENSOR, TIME)
FIELDS = {READ: "dram_read_bytes", WRITE: "dram_write_bytes", L2: "l2_bytes", L2_HITS: "l2_hit_pct", TENSOR: "tensor_pct"}
"""Metric -> field of a run."""
WEIGHT = {L2_HITS: L2, TENSOR: TIME}
"""Percentages are averaged over the kernels of a call by these; all else adds up."""


def parse_ncu(text: str) -> list[dict[str, float]]:
    """Metric -> value (bytes, percent, ns) of each kernel in what `ncu --csv` printed. Raises PerfModelError as `ncu.parse_ncu`."""
    return [launch.metrics for launch in ncu.parse_ncu(text)]


def add_up(kernels: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The counters of all kernels of a call as those of one: those that every kernel has, for a sum over some would be too small."""
    kernels = list(kernels)
    everywhere = [name for name in (kernels[0] if kernels else ()) if all(name in one for one in kernels)]
    out = {}
    for name in everywhere:
        weight = WEIGHT.get(name, TIME)
        if not (name.endswith(".pct") or ".pct_of" in name):
            out[name] = sum(one[name] for one in kernels)
        elif len(kernels) == 1:
            out[name] = kernels[0][name]
        elif weight in everywhere:
            out[name] = sum(one[name] * one[weight] for one in kernels) / max(sum(one[weight] for one in kernels), 1e-30)
    return out


def counted(metrics: Mapping[str, float]) -> dict[str, Any]:
    """The fields of a run that counters fill."""
    fields = {field: float(metrics[name]) for name, field in FIELDS.items() if name in metrics}
    return fields | {"counters": json.dumps(dict(metrics), sort_keys=True)}
