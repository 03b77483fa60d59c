"""One GPU: the file's sections, and the same facts in SI units for the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator
from pydantic_core import PydanticCustomError

from perfmodel.errors import PerfModelError
from perfmodel.hardware.checks import contradictions
from perfmodel.hardware.parts import L2, Clock, Compute, Link, Links, Memory, Node, Power, Sm
from perfmodel.hardware.quantity import Quantity
from perfmodel.units import GB, GBPS, KIB, MHZ, MIB, NANOSECOND, TFLOPS
from perfmodel.validated import Strict

Architecture = Literal["volta", "ampere", "ada", "hopper", "blackwell", "blackwell-rtx"]


class GpuSpec(Strict):
    """A GPU as its YAML file describes it. The properties give SI units; what the file leaves out is None."""

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The name of the file without its suffix."""
    name: str = Field(min_length=1)
    architecture: Architecture
    """`blackwell` are the data-centre chips (sm_100, sm_103), `blackwell-rtx` the others (sm_120, sm_121)."""
    compute_capability: str = Field(pattern=r"^\d{1,2}\.\d$")
    """In quotes: as a number, 10.0 and 10 would be the same."""
    memory: Memory
    l2: L2 = L2()
    compute: Compute
    sm: Sm
    clock: Clock
    power: Power
    links: Links = Links()
    node: Node
    _notes: tuple[str, ...] = PrivateAttr(default=())

    @field_validator("compute_capability", mode="before")
    @classmethod
    def _in_quotes(cls, value: Any) -> Any:
        if not isinstance(value, str):
            raise PydanticCustomError(
                "not_text", "must be text", {"mend": 'Write it in quotes, "10.0" say: as numbers, 10.0 and 10 are the same.'}
            )
        return value

    @model_validator(mode="after")
    def _facts_agree(self) -> GpuSpec:
        for field, problem, mend in contradictions(self.compute, self.clock, self.sm):
            raise PydanticCustomError("contradiction", "{problem}", {"problem": problem, "field": field, "mend": mend})
        return self

    def with_notes(self, notes: Iterable[str]) -> GpuSpec:
        """This GPU, saying what a what-if changed beside what it was asked to."""
        copy = self.model_copy()
        copy._notes = tuple(notes)
        return copy

    @property
    def notes(self) -> tuple[str, ...]:
        """What a what-if rescaled, a sentence each. Empty for a file as it stands."""
        return self._notes

    @property
    def math_types(self) -> tuple[str, ...]:
        """Arithmetic types with a dense tensor peak."""
        return tuple(t for t, q in self.compute.dense_tflops if q is not None)

    def peak_flops(self, math_type: str) -> float:
        """Dense peak in FLOP/s for an arithmetic type. Raises PerfModelError naming the types that this GPU has."""
        if math_type not in self.math_types:
            problem, mend = f"{self.id} has no tensor units for this arithmetic type", f"It has {', '.join(self.math_types)}."
            raise PerfModelError(problem, field="compute.dense_tflops", value=math_type, mend=mend)
        peak: Quantity = getattr(self.compute.dense_tflops, math_type)
        return peak.value * TFLOPS

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors."""
        return self.compute.sm_count.value

    @property
    def boost_clock(self) -> float:
        """Hz."""
        return self.clock.boost_MHz.value * MHZ

    @property
    def tensor_peak_clock(self) -> float:
        """Hz that the dense peaks assume."""
        return self.clock.tensor_peak_MHz.value * MHZ

    @property
    def sustained_clock(self) -> float | None:
        """Hz under long tensor work."""
        return _si(self.clock.sustained_MHz, MHZ)

    @property
    def dram_bandwidth(self) -> float:
        """Peak in B/s."""
        return self.memory.bandwidth_GBps.value * GBPS

    @property
    def dram_read_efficiency(self) -> float | None:
        """Part of the peak bandwidth that a plain read of a large buffer reaches."""
        return _si(self.memory.read_efficiency, 1.0)

    @property
    def dram_capacity(self) -> float:
        """Bytes that the driver shows."""
        return self.memory.capacity_GB.value * GB

    @property
    def dram_latency(self) -> float | None:
        """Seconds, load to use."""
        return _si(self.memory.latency_ns, NANOSECOND)

    @property
    def l2_capacity(self) -> float | None:
        """Bytes."""
        return _si(self.l2.capacity_MiB, MIB)

    @property
    def l2_near_capacity(self) -> float | None:
        """Bytes of data read by all SMs that fit, on a partitioned L2."""
        return _si(self.l2.near_capacity_MiB, MIB)

    @property
    def l2_bandwidth(self) -> float | None:
        """B/s of hits."""
        return _si(self.l2.bandwidth_GBps, GBPS)

    @property
    def l2_latency(self) -> float | None:
        """Seconds, load to use."""
        return _si(self.l2.latency_ns, NANOSECOND)

    @property
    def shared_memory_per_sm(self) -> float:
        """Bytes."""
        return self.sm.shared_memory_KiB.value * KIB

    @property
    def shared_memory_per_block(self) -> float:
        """Bytes that one thread block may use."""
        return self.sm.shared_memory_per_block_KiB.value * KIB

    @property
    def registers_per_sm(self) -> int:
        """32-bit registers."""
        return self.sm.registers.value

    @property
    def tdp(self) -> float:
        """W."""
        return self.power.tdp_W.value

    @property
    def nvlink_bandwidth(self) -> float | None:
        """B/s per direction."""
        return _link(self.links.nvlink)

    @property
    def nvlink_domain(self) -> int:
        """GPUs that reach each other by NVLink; 1 without NVLink."""
        return self.node.nvlink_domain.value

    @property
    def network_bandwidth(self) -> float | None:
        """B/s per direction and GPU, out of the node."""
        return _link(self.links.network)

    @property
    def pcie_bandwidth(self) -> float | None:
        """B/s per direction."""
        return _link(self.links.pcie)

    @property
    def c2c_bandwidth(self) -> float | None:
        """B/s per direction to the CPU that the GPU shares its memory with (Grace); None on other hosts."""
        return _link(self.links.c2c)

    @property
    def gpus_per_node(self) -> int:
        """GPUs in the usual server."""
        return self.node.gpus_per_node.value


def _si(quantity: Quantity | None, unit: float) -> float | None:
    return None if quantity is None else quantity.value * unit


def _link(link: Link | None) -> float | None:
    return None if link is None else link.per_direction_GBps.value * GBPS
