"""Launches: how long the device waits between the kernels of a layer."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import Field, PositiveInt

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.files import load_yaml
from perfmodel.hardware import GpuSpec
from perfmodel.units import MICROSECOND
from perfmodel.validated import Strict, validate

FILE = Path(__file__).parent / "launch.yaml"


class LaunchMode(Strict):
    """One launch mode with its source."""

    gap_us: float = Field(gt=0)
    launches: PositiveInt | None = None
    status: str
    source: str

    def time(self, launches: int) -> float:
        """Seconds for a layer of `launches` kernels."""
        return (self.launches or launches) * self.gap_us * MICROSECOND


@lru_cache(maxsize=1)
def launch_modes() -> dict[str, LaunchMode]:
    """All modes by name: eager, graph, pdl, persistent."""
    return {name: validate(LaunchMode, fields, file=FILE) for name, fields in load_yaml(FILE).items()}


def launch_mode(name: str, gpu: GpuSpec) -> LaunchMode:
    """The mode with this name. Raises PerfModelError for an unknown one, and for `pdl` before Hopper."""
    modes = launch_modes()
    if name not in modes:
        raise PerfModelError("no such launch mode", field="launch", value=name, mend=did_you_mean(name, modes))
    if name == "pdl" and float(gpu.compute_capability) < 9.0:
        raise PerfModelError(
            f"{gpu.id} has compute capability {gpu.compute_capability}; programmatic dependent launch needs 9.0",
            field="launch",
            value=name,
            mend="Choose eager, graph or persistent.",
        )
    return modes[name]
