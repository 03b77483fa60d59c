"""Why a kernel takes its time: each cause with its evidence, its cure, and what the cure would save by the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from perfmodel.diagnose import rules_compute as compute
from perfmodel.diagnose import rules_latency as latency
from perfmodel.diagnose import rules_memory as memory
from perfmodel.diagnose.facts import Facts, Finding
from perfmodel.diagnose.thresholds import threshold
from perfmodel.units import MICROSECOND

RULES: tuple[Callable[[Facts], Finding | None], ...] = (
    *(latency.slower_than_model, latency.short, latency.idle_sms, latency.tail, latency.atomics, latency.low_occupancy, latency.waiting),
    *(memory.dram_near_peak, memory.dram_not_reached, memory.read_again, memory.cache_bound, memory.uncoalesced),
    *(memory.conflicts, memory.spills),
    *(compute.tensor_near_peak, compute.pipes_busy, compute.tensor_idle, compute.divergence, compute.clock),
)
"""Each looks for one cause."""


def findings(f: Facts) -> list[Finding]:
    """All causes found, what saves most first. No cure takes a kernel below what an empty one takes."""
    most = max(0.0, f.time - threshold("least_us") * MICROSECOND)
    found = [finding for rule in RULES if (finding := rule(f)) is not None]
    capped = [one if one.saves is None else replace(one, saves=min(max(one.saves, 0.0), most)) for one in found]
    return sorted(capped, key=lambda one: -(one.saves or 0.0))
