"""Communication of one MoE layer: dispatch and combine over the expert-parallel group, all-reduce over the tensor-parallel group."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from pydantic import Field

from perfmodel.errors import PerfModelError
from perfmodel.files import load_yaml
from perfmodel.hardware import GpuSpec
from perfmodel.ops.activation import BF16
from perfmodel.units import MICROSECOND
from perfmodel.validated import Strict, validate
from perfmodel.workload.expectation import Array

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


def fabric(gpu: GpuSpec) -> Fabric:
    """The wires of a GPU. Raises PerfModelError where its file names no link at all."""
    near = _wire("nvlink", gpu.nvlink_bandwidth) or _wire("pcie", gpu.pcie_bandwidth)
    if near is None:
        raise PerfModelError(f"{gpu.id} names no link", field="links", mend="Add links.nvlink or links.pcie, or leave communication out.")
    domain = gpu.nvlink_domain if gpu.nvlink_bandwidth else gpu.gpus_per_node
    return Fabric(near, _wire("network", gpu.network_bandwidth), domain)


def _wire(kind: str, bandwidth: float | None) -> Wire | None:
    if bandwidth is None:
        return None
    facts = _kinds()[kind]
    return Wire(bandwidth * facts.efficiency, facts.latency_us * MICROSECOND)


def exchange_time(bytes_: Array, ranks: Array, domain: Array, wires: Fabric) -> Array:
    """Seconds for one rank to send or receive `bytes_` evenly to or from the other `ranks` - 1: latency + bytes / bandwidth.

    Messages within `domain` ranks go over the near wire, the others over the far one, both at once.
    Raises PerfModelError where ranks lie beyond the domain and the GPU's file names no network.
    """
    others = np.maximum(ranks - 1, 1e-12)
    beyond = np.clip((ranks - np.minimum(ranks, domain)) / others, 0.0, 1.0)
    near = wires.near.latency + (1 - beyond) * bytes_ / wires.near.bandwidth
    if (beyond > 0).any():
        if wires.far is None:
            raise PerfModelError("ranks beyond the node need a network", field="links.network", mend="Add links.network to the GPU's file.")
        near = np.where(beyond > 0, np.maximum(near, wires.far.latency + beyond * bytes_ / wires.far.bandwidth), near)
    return np.where(ranks > 1, near, 0.0)


def moe_communication(tokens: Array, touched: Array, width: Array, ep: Array, tp: Array, act_bytes: float, wires: Fabric) -> Array:
    """Seconds of dispatch, combine (EP) and all-reduce (TP) of the busiest rank, nothing hidden behind compute.

    Dispatch brings each touching token once, in the activations' format; combine takes it back in bf16. The all-reduce of the rank's
    own share of `tokens` moves 2 (tp - 1) / tp of the output. `width` is that of the states exchanged.
    """
    remote = touched * (1 - 1 / ep) * width
    domain = np.maximum(wires.domain / tp, 1.0)
    time = exchange_time(remote * act_bytes, ep, domain, wires) + exchange_time(remote * BF16, ep, domain, wires)
    reduced = 2 * (tp - 1) / tp * (tokens / ep) * width * BF16
    total: Array = time + exchange_time(reduced, tp, np.full_like(tp, float(wires.domain)), wires)
    return total
