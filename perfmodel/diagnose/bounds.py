"""What bounds a kernel: the memory, the compute units, or latency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfmodel.diagnose.counters import Counters
from perfmodel.diagnose.thresholds import threshold

Kind = Literal["memory", "compute", "latency", "unknown"]
LABELS = {"dram": "DRAM", "l2": "L2", "l1": "L1 and shared memory", "tensor": "tensor pipe", "compute": "SM pipes"}
"""Units, as people call them."""
KINDS: dict[str, Kind] = {"dram": "memory", "l2": "memory", "l1": "memory", "tensor": "compute", "compute": "compute"}


@dataclass(frozen=True)
class Bound:
    """What bounds a kernel, the busiest unit, and how busy each unit is, a fraction of its peak over the kernel's whole time."""

    kind: Kind
    unit: str
    use: dict[str, float]

    @property
    def busy(self) -> float:
        """Use of the busiest unit."""
        return self.use.get(self.unit, 0.0)

    @property
    def near(self) -> bool:
        """Whether the busiest unit is near its peak."""
        return self.busy >= threshold("near_peak")

    @property
    def least_time(self) -> float:
        """Share of the kernel's time that the same work would take if the busiest unit worked as well as it can."""
        if not self.use:
            return 1.0
        return min(1.0, max(use / reach(unit) for unit, use in self.use.items()))


def reach(unit: str) -> float:
    """Fraction of its peak that a unit reaches at best."""
    return threshold({"dram": "reach_dram", "tensor": "reach_tensor"}.get(unit, "reach_other"))


def bound_of(c: Counters, dram_use: float | None = None) -> Bound:
    """The bound by the counters; `dram_use` stands in for a DRAM throughput that was not collected.

    A cache bounds only where it is `cache_margin` busier than DRAM or the tensor pipe; with every unit under `latency_below` latency does.
    """
    use = _use(c, dram_use)
    if "dram" not in use or not {"compute", "tensor"} & set(use):
        return Bound("unknown", "", use)
    ends = ("tensor" if "tensor" in use else "compute", "dram")  # what the caches move things for
    end = max(ends, key=lambda unit: use[unit])
    unit = max(use, key=lambda name: use[name])
    if unit not in ends and (
        use[end] >= threshold("near_peak") or (unit != "compute" and use[unit] <= use[end] + threshold("cache_margin"))
    ):
        unit = end
    if unit == "compute" and use.get("tensor", 0.0) >= use["compute"] - 1e-3:
        unit = "tensor"
    kind = "latency" if use[unit] < threshold("latency_below") else KINDS[unit]
    return Bound(kind, unit, use)


def _use(c: Counters, dram_use: float | None) -> dict[str, float]:
    """Units -> use; what ncu takes over the cycles in which an SM is active is taken over all cycles, where these are known."""
    use: dict[str, float] = {unit: c[unit] for unit in ("tensor", "dram", "l2", "compute") if unit in c}
    if "dram" not in use and dram_use is not None:
        use["dram"] = dram_use
    if {"sm_active", "sm_elapsed"} <= set(c):
        over_active = {"l1": "l1", "tensor": "tensor_active"}
        use |= {unit: c[name] * active(c, 1.0) for unit, name in over_active.items() if unit not in use and name in c}
    return use


def active(c: Counters, default: float) -> float:
    """Share of the elapsed cycles in which the mean SM has a warp."""
    if "sm_active" not in c or not c.get("sm_elapsed"):
        return default
    return min(1.0, c["sm_active"] / c["sm_elapsed"])
