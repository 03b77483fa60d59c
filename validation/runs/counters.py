"""Counters of Nsight Compute: which ones, their CSV, and the few that the model is held against."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

from perfmodel.errors import PerfModelError

READ, WRITE = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2, L2_HITS = "lts__t_bytes.sum", "lts__t_sector_hit_rate.pct"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
TIME = "gpu__time_duration.sum"
METRICS = (READ, WRITE, L2, L2_HITS, TENSOR, TIME)
FIELDS = {READ: "dram_read_bytes", WRITE: "dram_write_bytes", L2: "l2_bytes", L2_HITS: "l2_hit_pct", TENSOR: "tensor_pct"}
"""Metric -> field of a run."""
WEIGHT = {L2_HITS: L2, TENSOR: TIME}
"""Percentages are averaged over the kernels of a call by these; all else adds up."""
COLUMNS = ("ID", "Kernel Name", "Metric Name", "Metric Value")
UNITS = {"": 1.0, "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "%": 1.0, "ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3,
         "ms": 1e6, "msecond": 1e6, "cycle": 1.0, "inst": 1.0}  # fmt: skip
"""Unit of a metric -> its base unit (bytes, percent, nanoseconds)."""


def parse_ncu(text: str) -> list[dict[str, float]]:
    """Metric -> value of each kernel in what `ncu --csv` printed, in the order of the launches; lines of others are passed over.

    Raises PerfModelError where there is no table, and for a unit that is not known.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise PerfModelError("printed no table", field="ncu", value=text.strip()[-200:], mend="Run the command by hand to see why.")
    table = csv.DictReader(io.StringIO("\n".join(line for line in lines[start:] if line.startswith('"'))))
    if not set(COLUMNS) <= set(table.fieldnames or ()):
        raise PerfModelError("printed other columns", field="ncu", value=table.fieldnames, mend=f"They must hold {', '.join(COLUMNS)}.")
    found: dict[str, dict[str, float]] = {}
    for row in table:
        unit = row.get("Metric Unit") or ""
        if unit not in UNITS:
            raise PerfModelError("printed a unit that is not known", field="ncu", value=unit, mend="Run it with --print-units base.")
        kernel = found.setdefault(row["ID"], {})
        try:
            value = float((row["Metric Value"] or "").replace(",", "")) * UNITS[unit]
        except ValueError:
            continue  # "n/a": the GPU does not have the counter
        kernel[row["Metric Name"]] = value
    return list(found.values())


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
