"""What every op beside the MoE layer is to the rest: sizes, parameters with their bounds, and a time that knows what bounds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec
from perfmodel.profiles.op_profile import Regime
from perfmodel.workload.expectation import Array

REGIMES: tuple[Regime, ...] = get_args(Regime)
"""In the order of `OpTime.regime`."""


@dataclass(frozen=True)
class Parameter:
    """A number of a profile: what it is expected to be, the spread of its logarithm, its bounds, and what it means."""

    expected: float
    spread: float
    low: float
    high: float
    meaning: str = ""


@dataclass(frozen=True)
class OpTime:
    """Seconds, vectors over rows."""

    total: Array
    floor: Array
    """What physics allows: FLOPs at the peak, compulsory bytes at the bandwidth."""
    compute: Array
    memory: Array

    def regime(self) -> NDArray[np.int64]:
        """[n] index into REGIMES: launch where neither compute nor memory makes up half of the time."""
        larger = np.where(self.compute >= self.memory, 1, 2)
        return np.where(np.maximum(self.compute, self.memory) < 0.5 * self.total, 0, larger)


@dataclass(frozen=True)
class Use:
    """How an op is run: on which GPU, in which format, out of which menus."""

    gpu: GpuSpec
    format: str
    menus: Mapping[str, tuple[int, ...]]


L2_OVER_DRAM = 4.0
"""Bandwidth of L2 over that of DRAM where a GPU's file says nothing of it: it is 2.0 on H200, 2.7 on A100 and B200, 6 on L40S."""


def l2_bandwidth(gpu: GpuSpec) -> float:
    """B/s of the GPU's L2, or what is likely where its file has none."""
    return gpu.l2_bandwidth or L2_OVER_DRAM * gpu.dram_bandwidth


FIELDS = {"l2_capacity": "l2.capacity_MiB", "l2_latency": "l2.latency_ns", "dram_latency": "memory.latency_ns"}
"""Fact of a GPU that may be absent -> where it stands in the GPU's YAML file."""


def known(gpu: GpuSpec, fact: str) -> float:
    """A fact of the GPU's file that may be absent, one of FIELDS. Raises PerfModelError that names its field where it is."""
    value: float | None = getattr(gpu, fact)
    if value is None:
        mend = f"Add {FIELDS[fact]} to the GPU's YAML file, with its source."
        raise PerfModelError(f"the file of {gpu.id} does not say it, and this op needs it", field=FIELDS[fact], mend=mend)
    return value


@dataclass(frozen=True)
class Op:
    """One kind of op. `time(use, sizes, parameters)` is a function of plain arrays: sizes [n] by name, parameters by name in the
    units that their names say."""

    id: str
    sizes: tuple[str, ...]
    grows: str
    """The size that grows along a series of measurements."""
    menus: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    time: Callable[[Use, Mapping[str, Array], Mapping[str, float]], OpTime]
    needs: tuple[tuple[str, ...], ...] = ()
    """Menus without which there is no time: of each of these, one or another."""
    by_ranks: tuple[str, ...] = ()
    """Menus whose entries stand for numbers of ranks."""
    scarce: bool = False
    """Measured in few rows: fits pool the formats, draw single rows and take their intervals from cross-validation."""

    def complete(self, parameters: Mapping[str, float]) -> dict[str, float]:
        """All parameters: those given, the others as expected."""
        return {name: parameters.get(name, parameter.expected) for name, parameter in self.parameters.items()}
