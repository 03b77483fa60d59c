"""Which GPUs are joined. Those of a box that nothing joins serve one by one."""

from __future__ import annotations

from perfmodel.hardware import GpuSpec
from perfmodel.hardware.parts import Link, Links
from perfmodel.hardware.quantity import Quantity
from perfmodel.ops.fabric import link_domain

NOTHING = Quantity(value=1.0, source="no instance of one GPU uses it", status="derived")


def linked(gpu: GpuSpec) -> bool:
    """Whether the GPU's file names a link to others."""
    return gpu.nvlink_bandwidth is not None or gpu.pcie_bandwidth is not None


def domain_of(gpu: GpuSpec) -> int:
    """GPUs that a tensor-parallel group may span: those that NVLink joins, or those of a node; 1 without a link."""
    return max(link_domain(gpu), gpu.gpus_per_node) if linked(gpu) else 1


def network_notes(gpu: GpuSpec, gpus: int) -> tuple[str, ...]:
    """A note where so many GPUs reach beyond what the link joins and the GPU's file names no network."""
    if gpus <= domain_of(gpu) or gpu.network_bandwidth is not None:
        return ()
    return (
        f"{gpu.id} names no network: beyond its {domain_of(gpu)} joined GPUs messages are taken to go at the link's rate "
        "(links.network in its file, or --set links.network.per_direction_GBps=50)",
    )


def with_link(gpu: GpuSpec) -> GpuSpec:
    """The GPU itself, or one with a link that is never used, for rates that ask for one."""
    return gpu if linked(gpu) else gpu.model_copy(update={"links": Links(pcie=Link(per_direction_GBps=NOTHING))})
