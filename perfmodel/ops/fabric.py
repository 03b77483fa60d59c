"""The links of a GPU as communication sees them: how many GPUs they join, how fast, and how late."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import Field

from perfmodel.errors import PerfModelError
from perfmodel.files import load_yaml
from perfmodel.hardware import GpuSpec
from perfmodel.units import MICROSECOND
from perfmodel.validated import Strict, validate

FILE = Path(__file__).parent / "links.yaml"


class LinkKind(Strict):
    """Latency and efficiency of collectives over one kind of link, with source."""

    latency_us: float = Field(ge=0)
    efficiency: float = Field(gt=0, le=1)
    status: str
    source: str


@dataclass(frozen=True)
class Wire:
    """A link as collectives see it, SI."""

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Fabric:
    """The wires of a GPU: `near` within the NVLink domain (PCIe without NVLink), `far` beyond it."""

    near: Wire
    far: Wire | None
    domain: int


@lru_cache(maxsize=1)
def _kinds() -> dict[str, LinkKind]:
    return {name: validate(LinkKind, fields, file=FILE) for name, fields in load_yaml(FILE).items()}


def link_bandwidth(gpu: GpuSpec) -> float:
    """B/s each way between GPUs of a node: NVLink, or else PCIe. Raises PerfModelError without either."""
    bandwidth = gpu.nvlink_bandwidth or gpu.pcie_bandwidth
    if bandwidth is None:
        mend = "Add links.nvlink or links.pcie to its file, or leave communication out."
        raise PerfModelError(f"{gpu.id} names no link", field="links", mend=mend)
    return bandwidth


def link_domain(gpu: GpuSpec) -> int:
    """GPUs that the link joins: the NVLink domain, or the GPUs of a node without NVLink."""
    return gpu.nvlink_domain if gpu.nvlink_bandwidth else gpu.gpus_per_node


def network_bandwidth(gpu: GpuSpec) -> float:
    """B/s each way of a GPU's network card. Raises PerfModelError without one."""
    if gpu.network_bandwidth is None:
        problem = f"{gpu.id}: ranks beyond its domain of {link_domain(gpu)} need a network"
        raise PerfModelError(problem, field="links.network", mend="Add links.network to the GPU's file.")
    return gpu.network_bandwidth


def fabric(gpu: GpuSpec) -> Fabric:
    """The wires of a GPU. Raises PerfModelError where its file names no link at all."""
    near = _wire("nvlink" if gpu.nvlink_bandwidth else "pcie", link_bandwidth(gpu))
    far = None if gpu.network_bandwidth is None else _wire("network", gpu.network_bandwidth)
    return Fabric(near, far, link_domain(gpu))


def _wire(kind: str, bandwidth: float) -> Wire:
    facts = _kinds()[kind]
    return Wire(bandwidth * facts.efficiency, facts.latency_us * MICROSECOND)
