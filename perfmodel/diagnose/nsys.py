"""Nsight Systems' CSV: the summary of kernels (cuda_gpu_kern_sum) and the trace of what ran on the GPU (cuda_gpu_trace)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from perfmodel.errors import PerfModelError

EXPORT = "nsys stats --report cuda_gpu_kern_sum --format csv REPORT.nsys-rep"
TRACE = EXPORT.replace("kern_sum", "trace")
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
HEADERS = {"sum": re.compile(r'"?Time ?\(%\)'), "trace": re.compile(r'"?Start ?\(\w+\)"?,"?Duration ?\(')}
"""How the tables that are read begin."""
MOST = 1e15
"""Seconds, or instances: a number over it was not measured."""
T = TypeVar("T")
MEMORY = re.compile(r"\[CUDA mem(cpy|set)")


@dataclass(frozen=True)
class Summed:
    """A kernel over all its instances; seconds."""

    name: str
    line: int
    instances: int
    total: float
    median: float
    least: float
    most: float


@dataclass(frozen=True, eq=False)
class Trace:
    """What ran on one device, in the order of the starts: seconds [n]."""

    names: list[str]
    lines: list[int]
    starts: np.ndarray
    durations: np.ndarray
    device: str | None


def page_of(text: str) -> str | None:
    """sum or trace; None for what is no such table."""
    found = [(at, page) for page, pattern in HEADERS.items() if (at := _header_line(text, pattern)) is not None]
    return min(found)[1] if found else None


def _header_line(text: str, pattern: re.Pattern[str]) -> int | None:
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), None)


def parse_sum(text: str, file: str | Path | None = None) -> list[Summed]:
    """The kernels of cuda_gpu_kern_sum, by their total time. Raises PerfModelError for another summary, and for a line that is cut."""
    found = []
    for line, row in _rows(text, "sum", file):
        if not {"Instances", "Total Time", "Name"} <= set(row):
            raise PerfModelError(
                "is another summary of nsys", file=file, line=line, field="nsys", value=list(row)[:4], mend=f"Run {EXPORT}."
            )
        count, total = _number(row, "Instances", file, line), _number(row, "Total Time", file, line)
        if count < 1:
            raise PerfModelError("must be at least 1", file=file, line=line, field="Instances", value=count, mend=f"Run {EXPORT}.")
        mean = total / count
        rest = [_number(row, name, file, line) if name in row else mean for name in ("Med", "Min", "Max")]
        found.append(Summed(row["Name"], line, int(count), total, *rest))
    return _some(found, file)


def parse_trace(text: str, file: str | Path | None = None) -> list[Trace]:
    """A Trace for each device of cuda_gpu_trace, the one with the most work first: kernels, and copies and sets of memory.

    Raises PerfModelError for a line that is cut.
    """
    found: dict[str, list[tuple[float, float, str, int]]] = {}
    for line, row in _rows(text, "trace", file):
        item = _number(row, "Start", file, line), _number(row, "Duration", file, line), row.get("Name", ""), line
        found.setdefault(row.get("Device", ""), []).append(item)
    traces = []
    for device, items in found.items():
        starts, durations, names, lines = zip(*sorted(items), strict=True)
        traces.append(Trace(list(names), list(lines), np.array(starts), np.array(durations), re.sub(r" \(\d+\)$", "", device) or None))
    return _some(sorted(traces, key=lambda trace: -len(trace.names)), file)


def _some(found: list[T], file: str | Path | None) -> list[T]:
    if not found:
        raise PerfModelError("holds no kernel", file=file, field="nsys", mend="Profile with `nsys profile -t cuda`, while kernels run.")
    return found


def _rows(text: str, page: str, file: str | Path | None) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, column -> cell) of the table; times in seconds, the unit taken off the column's name. A table ends at an empty line."""
    start = _header_line(text, HEADERS[page])
    if start is None:
        raise PerfModelError("holds no such table", file=file, field="nsys", mend=f"Run {EXPORT}.")
    lines = text.splitlines()[start - 1 :]
    header = next(csv.reader([lines[0]]))
    for number, line in enumerate(lines[1:], start + 1):
        if not line.strip():
            return
        try:
            cells = next(csv.reader([line], strict=True))
        except csv.Error:
            cells = []
        if len(cells) != len(header):
            problem = f"the line is cut, or the name is not quoted: {len(cells)} cells of {len(header)}"
            raise PerfModelError(problem, file=file, line=number, field="nsys", mend=f"Export it again: {EXPORT}.")
        yield number, dict(_in_seconds(name, cell) for name, cell in zip(header, cells, strict=True))


def _in_seconds(name: str, cell: str) -> tuple[str, str]:
    """`Total Time (ns)` and `309088` as `Total Time` and a number of seconds; other columns as they are."""
    match = re.fullmatch(r"(.+?) ?\((ns|us|ms|s)\)", name)
    if match is None:
        return name, cell
    try:
        return match[1], repr(float(cell) * SECONDS[match[2]])
    except ValueError:
        return match[1], cell


def _number(row: dict[str, str], name: str, file: str | Path | None, line: int) -> float:
    if name not in row:
        raise PerfModelError("the column is missing", file=file, line=line, field=name, value=list(row)[:6], mend=f"Run {EXPORT}.")
    try:
        value = float(row[name])
    except ValueError:
        value = float("nan")
    if not 0 <= value < MOST:
        mend = f"Export it with LC_ALL=C and without --timeunit: {EXPORT}."
        raise PerfModelError("is no number from 0", file=file, line=line, field=name, value=row[name], mend=mend)
    return value
