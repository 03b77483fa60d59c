"""The diagnosis of a report: the object that `perfmodel diagnose --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfmodel.diagnose.bounds import LABELS, bound_of
from perfmodel.diagnose.counters import COLLECT, Counters, counters, dram_bytes, quantities, stalls
from perfmodel.diagnose.expected import GEMM, Asked, Layer, expect, match
from perfmodel.diagnose.facts import Expected, Facts, Finding
from perfmodel.diagnose.findings import findings
from perfmodel.diagnose.kinds import kind_of, short_name
from perfmodel.diagnose.ncu import EXPORT, Launch
from perfmodel.diagnose.nsys import MEMORY, Summed, Trace
from perfmodel.diagnose.read import Report, read_report
from perfmodel.diagnose.thresholds import threshold
from perfmodel.diagnose.timeline import gap_finding, timeline
from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec, gpu_ids, load_gpu
from perfmodel.hardware.devices import gpu_of
from perfmodel.units import MHZ, MICROSECOND

SCHEMA = "perfmodel.diagnose/1"
MOST = 1e30
"""In SI units: a counter over it is no counter."""


def diagnose(path: str | Path, *, gpu: str | GpuSpec | None = None, asked: Asked | None = None) -> dict[str, Any]:
    """What bounds the kernels of a report, why, and what cures would bring.

    gpu: the one profiled, where the report does not name it. asked: the MoE layer that ran, for predictions beside the counters.
    Raises PerfModelError for a file that is no report, one without times, and a scenario that does not fit.
    """
    report = read_report(path)
    spec, notes = _gpu(gpu, report)
    if report.launches and len(report.devices) > 1:
        notes.append(f"the launches are of {' and '.join(report.devices)}: diagnose them apart, all are held against one GPU here")
    layer = None
    if asked is not None:
        if spec is None:
            raise PerfModelError("a prediction needs the GPU", field="--gpu", mend="Name the GPU that was profiled.")
        layer = expect(asked, spec)
    parts = _launches(report.launches, path, spec, layer) if report.launches else _nsys(report, layer)
    kinds = _kinds(parts["kernels"], layer)
    return {
        "schema": SCHEMA,
        "file": str(path),
        "tool": report.tool,
        "device": report.device,
        "gpu": spec.id if spec else None,
        "scenario": None if asked is None or layer is None else _scenario(asked, layer),
        "total_us": sum(one["total_us"] for one in kinds),
        "kinds": kinds,
        **parts,
        "notes": [*notes, *parts["notes"], *_match_notes(parts["kernels"], layer)],
    }


def _gpu(gpu: str | GpuSpec | None, report: Report) -> tuple[GpuSpec | None, list[str]]:
    """The GPU asked for, or else the one that the report names."""
    named = gpu_of(report.device) if report.device else None
    if gpu is not None:
        spec = gpu if isinstance(gpu, GpuSpec) else load_gpu(gpu)
        other = named is not None and spec.id in gpu_ids() and spec.id != named
        return spec, [f"the report is of a {report.device}, but --gpu says {spec.id}"] if other else []
    if named is not None:
        return load_gpu(named), []
    what = f"{report.device} is not in the catalogue" if report.device else "the report does not say which GPU it is of"
    return None, [f"{what}: --gpu names one, and what cures bring is then held against its file"]


def _scenario(asked: Asked, layer: Layer) -> dict[str, Any]:
    return {
        "model": str(asked.model), "tokens": asked.tokens, "format": layer.format, "kernel": layer.kernel, "routing": asked.routing,
        "ep": asked.ep, "tp": asked.tp, "clock": asked.clock, "ops": list(asked.ops),
    }  # fmt: skip


def _launches(launches: Sequence[Launch], path: str | Path, gpu: GpuSpec | None, layer: Layer | None) -> dict[str, Any]:
    """The kernels of an ncu report."""
    read = [counters(launch) for launch in launches]
    for launch, c in zip(launches, read, strict=True):
        _check(launch, c, path)
    kinds = [kind_of(launch.name) for launch in launches]
    rows = [
        _kernel(launch, kind, c, gpu, expected)
        for launch, kind, c, expected in zip(launches, kinds, read, match(kinds, layer), strict=True)
    ]
    return {"kernels": rows, "timeline": None, "notes": [*_missing(rows), *_held_clock(read, gpu)]}


def _check(launch: Launch, c: Counters, path: str | Path) -> None:
    """Raise PerfModelError for counters that no kernel has."""
    for name, value in c.items():
        if not 0 <= value < MOST:
            metric, mend = quantities()[name].metrics[0], f"Export it again: {EXPORT}."
            raise PerfModelError("is impossible for a kernel", file=path, line=launch.line, field=metric, value=value, mend=mend)
    if not c.get("duration"):
        metric = quantities()["duration"].metrics[0]
        raise PerfModelError("has no time", file=path, line=launch.line, field=metric, mend=f"Collect it: {COLLECT}.")


def _kernel(launch: Launch, kind: str, c: Counters, gpu: GpuSpec | None, expected: Expected | None) -> dict[str, Any]:
    moved, time = dram_bytes(c), c["duration"]
    bound = bound_of(c, moved / time / gpu.dram_bandwidth if gpu is not None and moved is not None else None)
    found = findings(Facts(kind, c, bound, gpu, expected))
    return {
        **_identity(launch.name, launch.line, kind, expected),
        "id": launch.words.get("ID"),
        "instances": 1,
        "us": time / MICROSECOND,
        "bound": bound.kind,
        "unit": LABELS.get(bound.unit),
        "use": {LABELS[unit]: value for unit, value in bound.use.items()},
        "dram_bytes": moved,
        "stalls": dict(sorted(stalls(c).items(), key=lambda item: -item[1])[:3]),
        "counters": {name: value for name, value in c.items() if not name.startswith("stall_")},
        "findings": [as_json(one, time) for one in found],
    }


def _identity(name: str, line: int, kind: str, expected: Expected | None) -> dict[str, Any]:
    return {
        "name": name,
        "short": short_name(name),
        "line": line,
        "kind": kind,
        "op": expected.op if expected else None,
        "predicted_us": expected.seconds / MICROSECOND if expected else None,
        "predicted_dram_bytes": expected.bytes if expected else None,
    }


def as_json(finding: Finding, time: float) -> dict[str, Any]:
    """A finding; `saves_us` at most, `after_us` what is left of the time then."""
    saves = None if finding.saves is None else finding.saves / MICROSECOND
    after = None if saves is None else time / MICROSECOND - saves
    return {"cause": finding.cause, "evidence": finding.evidence, "cure": finding.cure, "saves_us": saves, "after_us": after}


def _missing(rows: Sequence[dict[str, Any]]) -> list[str]:
    unknown = sum(row["bound"] == "unknown" for row in rows)
    if not unknown:
        return []
    return [f"{unknown} of {len(rows)} launches lack what tells their bound (throughput of DRAM and of the SMs): {COLLECT}"]


def _held_clock(read: Sequence[Counters], gpu: GpuSpec | None) -> list[str]:
    """Whether ncu held the clock at its base, as it does by default: the same in all launches, long and short."""
    clocks = [c["sm_clock"] for c in read if "sm_clock" in c]
    if len(clocks) < 3 or max(clocks) > 1.01 * min(clocks):
        return []
    where = f", and under the boost of {gpu.boost_clock / MHZ:,.0f} MHz" if gpu is not None and max(clocks) < 0.95 * gpu.boost_clock else ""
    return [f"the SM clock is {max(clocks) / MHZ:,.0f} MHz in all launches{where}: ncu holds it unless told --clock-control none"]


def _nsys(report: Report, layer: Layer | None) -> dict[str, Any]:
    """The kernels of an nsys report, summed by name, and the timeline of its busiest device."""
    if report.summed:
        note = "a summary has no gaps between kernels: nsys stats --report cuda_gpu_trace shows them"
        return {"kernels": [_summed(one, report.summed, layer) for one in report.summed], "timeline": None, "notes": [note]}
    trace = report.traces[0]
    line = timeline(trace)
    gap = gap_finding(line)
    summed = summed_of(trace)
    fields = {
        "device": line.device, "count": line.count, "span_us": line.span / MICROSECOND, "busy_us": line.busy / MICROSECOND,
        "idle": line.idle, "gaps": line.gaps, "median_gap_us": line.median_gap / MICROSECOND,
        "launch_gaps_us": line.launch_gaps / MICROSECOND, "breaks_us": line.breaks / MICROSECOND,
        "findings": [as_json(gap, line.busy + line.launch_gaps)] if gap else [],
    }  # fmt: skip
    others = len(report.traces) - 1
    more = "1 more device is" if others == 1 else f"{others} more devices are"
    notes = [f"{more} in the trace; this is the one with the most work"] if others else []
    return {"kernels": [_summed(one, summed, layer) for one in summed], "timeline": fields, "notes": notes}


def summed_of(trace: Trace) -> list[Summed]:
    """The work of a trace by name, what takes longest first."""
    import numpy as np

    places: dict[str, list[int]] = {}
    for place, name in enumerate(trace.names):
        places.setdefault(name, []).append(place)
    found = []
    for name, at in places.items():
        times = trace.durations[at]
        found.append(
            Summed(name, trace.lines[at[0]], len(at), float(times.sum()), float(np.median(times)), float(times.min()), float(times.max()))
        )
    return sorted(found, key=lambda one: -one.total)


def _summed(one: Summed, all_of_them: Sequence[Summed], layer: Layer | None) -> dict[str, Any]:
    kind = kind_of(one.name)
    expected = None
    if layer is not None and kind == GEMM and sum(kind_of(other.name) == GEMM for other in all_of_them) == 1:
        mean = sum(op.seconds for op in layer.gemms) / len(layer.gemms)
        expected = Expected(" and ".join(op.op for op in layer.gemms), mean, None)
    found = []
    if one.median < threshold("short_kernel_us") * MICROSECOND and not MEMORY.match(one.name):
        found = [as_json(finding, one.median) for finding in findings(Facts(kind, {"duration": one.median}, bound_of({}), None, None))]
    return {
        **_identity(one.name, one.line, kind, expected), "id": None, "instances": one.instances, "us": one.median / MICROSECOND,
        "total_us": one.total / MICROSECOND, "bound": "unknown", "unit": None, "use": {}, "dram_bytes": None, "stalls": {}, "counters": {},
        "findings": found,
    }  # fmt: skip


def _kinds(rows: Sequence[dict[str, Any]], layer: Layer | None) -> list[dict[str, Any]]:
    """Time by kind of kernel; beside it what the model expects of as many layers as the grouped GEMMs are of."""
    totals: dict[str, list[float]] = {}
    for row in rows:
        entry = totals.setdefault(row["kind"], [0.0, 0.0])
        entry[0] += row["instances"]
        entry[1] += row.get("total_us", row["us"])
    whole = sum(total for _, total in totals.values())
    layers = totals.get(GEMM, [0.0])[0] / len(layer.gemms) if layer else 0.0
    return [
        {
            "kind": kind, "launches": int(count), "total_us": total, "share": total / whole if whole else 0.0,
            "predicted_us": layer.kinds[kind] * layers / MICROSECOND if layer and layers and kind in layer.kinds else None,
        }
        for kind, (count, total) in sorted(totals.items(), key=lambda item: -item[1][1])
    ]  # fmt: skip


def _match_notes(rows: Sequence[dict[str, Any]], layer: Layer | None) -> list[str]:
    if layer is None:
        return []
    count = sum(row["instances"] for row in rows if row["kind"] == GEMM)
    if count == 0:
        return ["no kernel's name is that of a grouped GEMM: nothing is held against the scenario"]
    if count % len(layer.gemms):
        names = " and ".join(op.op for op in layer.gemms)
        return [f"{count} grouped GEMMs are no whole number of layers of {names}: --ops says which ones the report holds"]
    return []
