"""A kernel's facts and a finding about it, and the estimates that rules share."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.diagnose.bounds import Bound
from perfmodel.diagnose.counters import Counters, dram_bytes
from perfmodel.diagnose.thresholds import threshold
from perfmodel.hardware import GpuSpec
from perfmodel.units import GB, MB


@dataclass(frozen=True)
class Expected:
    """What the model says of a kernel: seconds, and DRAM bytes of every operand once."""

    op: str
    seconds: float
    bytes: float | None


@dataclass(frozen=True)
class Facts:
    """All that is known of a kernel."""

    kind: str
    counters: Counters
    bound: Bound
    gpu: GpuSpec | None = None
    expected: Expected | None = None

    @property
    def time(self) -> float:
        """Seconds measured."""
        return self.counters["duration"]


@dataclass(frozen=True)
class Finding:
    """One cause. `saves`: seconds that the cure takes off at most, None where the counters do not say."""

    cause: str
    evidence: str
    cure: str
    saves: float | None = None


def to_reach(f: Facts) -> float:
    """Seconds saved if the busiest unit worked as well as it can."""
    return f.time * (1 - f.bound.least_time)


def with_less(f: Facts, share: float, *units: str) -> float | None:
    """Seconds saved at most if these units had `share` of their work: until another unit is as busy as the one that bounds was."""
    if f.bound.busy <= 0:
        return None
    return f.time * (1 - max(use * (share if unit in units else 1.0) for unit, use in f.bound.use.items()) / f.bound.busy)


def dram_time(f: Facts) -> float:
    """Seconds that the bytes of the kernel take at the bandwidth a good stream reaches."""
    moved = dram_bytes(f.counters)
    if f.gpu is None or moved is None:
        return f.time * min(1.0, f.bound.busy / threshold("reach_dram"))
    return moved / (f.gpu.dram_bandwidth * (f.gpu.dram_read_efficiency or threshold("reach_dram")))


def moved(f: Facts) -> str:
    """`: 62.1 MB at 3,393 GB/s`, nothing where bytes were not counted."""
    total = dram_bytes(f.counters)
    return "" if total is None else f": {total / MB:,.1f} MB at {total / f.time / GB:,.0f} GB/s"


def percent(share: float) -> str:
    """A share as text."""
    return f"{100 * share:.0f} %" if share >= 0.02 else f"{100 * share:.1f} %"
