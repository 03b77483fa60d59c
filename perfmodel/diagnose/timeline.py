"""The gaps between kernels: how long the GPU waits for the next launch, and what launching otherwise would save."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.diagnose.facts import Finding
from perfmodel.diagnose.nsys import Trace
from perfmodel.diagnose.thresholds import threshold
from perfmodel.ops.launch import launch_modes
from perfmodel.units import MICROSECOND

BREAK = 1e-3
"""A gap of a millisecond is no launch gap: the program did something else."""


@dataclass(frozen=True)
class Timeline:
    """Seconds of one device, from the first start to the last end."""

    device: str | None
    count: int
    span: float
    busy: float
    gaps: int
    """Between work, however many streams overlap, and shorter than BREAK."""
    median_gap: float
    launch_gaps: float
    """Their sum."""
    breaks: float
    """Sum of the longer ones."""

    @property
    def idle(self) -> float:
        """Share of the time without the breaks in which nothing runs."""
        whole = self.busy + self.launch_gaps
        return self.launch_gaps / whole if whole > 0 else 0.0


def timeline(trace: Trace) -> Timeline:
    """The timeline of a trace; work that overlaps counts once."""
    ends = np.maximum.accumulate(trace.starts + trace.durations)
    gaps = np.maximum(trace.starts[1:] - ends[:-1], 0.0)
    gaps = gaps[gaps > 0]
    span, launch = float(ends[-1] - trace.starts[0]), gaps[gaps < BREAK]
    return Timeline(
        device=trace.device,
        count=len(trace.names),
        span=span,
        busy=span - float(gaps.sum()),
        gaps=len(launch),
        median_gap=float(np.median(launch)) if len(launch) else 0.0,
        launch_gaps=float(launch.sum()),
        breaks=float(gaps[gaps >= BREAK].sum()),
    )


def gap_finding(line: Timeline) -> Finding | None:
    """Launch gaps, where they take over `idle_share` of the time without breaks: what a CUDA graph's gaps would leave of them."""
    if line.idle < threshold("idle_share"):
        return None
    graph = launch_modes()["graph"].gap_us * MICROSECOND
    return Finding(
        "launch gaps",
        f"nothing runs in {100 * line.idle:.0f} % of the time: {line.gaps} gaps, "
        f"{line.median_gap / MICROSECOND:.1f} us at the median (under nsys)",
        f"one CUDA graph, whose gaps are about {graph / MICROSECOND:.1f} us; fewer, fused kernels; programmatic dependent launch",
        max(0.0, line.launch_gaps - line.gaps * graph),
    )
