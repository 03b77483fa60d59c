"""What a kernel's counters say, by quantity instead of by the profiler's names for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field

from perfmodel.diagnose.ncu import Launch
from perfmodel.files import load_yaml
from perfmodel.validated import Strict, validate

FILE = Path(__file__).parent / "counters.yaml"
STALLS = "stall_"

Counters = dict[str, float]
"""Quantity of `counters.yaml` -> value: seconds, bytes, Hz, fractions of a peak, counts. What was not collected is absent."""


class Quantity(Strict):
    """Where a quantity stands in a report."""

    metrics: list[str] = Field(min_length=1)
    """ncu's names for it; the first one that is there counts."""
    label: str | None = None
    """Its "Section/Label" on the details page."""
    scale: float = 1.0
    """From ncu's base unit to the model's."""
    needed: bool = False
    """Nothing can be said without it."""

    @property
    def keys(self) -> list[str]:
        """What a launch may call it."""
        return [*self.metrics, *([self.label] if self.label else [])]


@cache
def quantities() -> dict[str, Quantity]:
    """All quantities by name."""
    return {name: validate(Quantity, fields, file=FILE) for name, fields in load_yaml(FILE).items()}


@cache
def wanted() -> frozenset[str]:
    """All that a report may hold of them."""
    return frozenset(key for quantity in quantities().values() for key in quantity.keys)


def counters(launch: Launch) -> Counters:
    """The quantities that a launch has; bytes of DRAM from their rate where only that was collected."""
    found = {}
    for name, quantity in quantities().items():
        key = next((key for key in quantity.keys if key in launch.metrics), None)
        if key is not None:
            found[name] = launch.metrics[key] * quantity.scale
    return found


def dram_bytes(c: Counters) -> float | None:
    """Bytes read from and written to DRAM; None where they were not counted."""
    if "dram_read" in c and "dram_write" in c:
        return c["dram_read"] + c["dram_write"]
    return c["dram_rate"] * c["duration"] if "dram_rate" in c and "duration" in c else None


def stalls(c: Counters) -> dict[str, float]:
    """Reason -> share of the cycles that warps spent between instructions; empty where they were not counted."""
    found = {name.removeprefix(STALLS): value for name, value in c.items() if name.startswith(STALLS)}
    total = sum(found.values())
    return {name: value / total for name, value in found.items()} if total > 0 else {}


COLLECT = "ncu --set full --csv --page raw PROGRAM"
"""Collects all of them."""
