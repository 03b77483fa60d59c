"""The parts of a GPU, one class a section of its YAML file. Units are those of the file and stand in the field names."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from pydantic import Field

from perfmodel.hardware.quantity import GB, FlopPerClock, Fraction, GBps, KiB, Mhz, MiB, Nanoseconds, Number, Tflops, Watts
from perfmodel.validated import Strict

T = TypeVar("T")
Instruction = Literal["mma", "wgmma", "tcgen05", "mma-block-scale", "cp-async", "tma", "multicast"]


class Memory(Strict):
    """Device memory."""

    type: str
    capacity_GB: GB
    """Decimal GB of what the driver shows, not the marketing figure."""
    bandwidth_GBps: GBps
    """Peak of the interface."""
    read_efficiency: Fraction | None = None
    """Part of the peak bandwidth that a plain read of a large buffer reaches."""
    latency_ns: Nanoseconds | None = None
    """Load-to-use latency of a miss in L2."""


class L2(Strict):
    """Level-2 cache."""

    capacity_MiB: MiB | None = None
    near_capacity_MiB: MiB | None = None
    """Capacity for data that all SMs read, where the halves of a partitioned L2 each keep a copy."""
    bandwidth_GBps: GBps | None = None
    """Read bandwidth of data that hits."""
    latency_ns: Nanoseconds | None = None
    """Load-to-use latency of a hit."""


class PerMathType(Strict, Generic[T]):
    """One `T` for each arithmetic type of the tensor units that has one."""

    fp16: T | None = None
    bf16: T | None = None
    tf32: T | None = None
    fp8: T | None = None
    fp6: T | None = None
    fp4: T | None = None
    int8: T | None = None
    int4: T | None = None


MATH_TYPES = tuple(PerMathType.model_fields)


class DenseTflops(PerMathType[Tflops]):
    """Dense rate for each arithmetic type, accumulating in fp32 (int32 for the integers)."""


class SparseTflops(PerMathType[Tflops]):
    """Peak with 2:4 structured sparsity. Never used for a dense layer; here so that nobody takes it for the dense one."""


class FlopPerClockPerSm(PerMathType[FlopPerClock]):
    """Dense rate of one SM for each arithmetic type: the independent figure that the peaks are checked against."""


class PeakExceptions(PerMathType[str]):
    """Types whose peak does not follow from clock and SMs, each with the reason."""


class VectorTflops(Strict):
    """Peaks of the CUDA cores and of the fp64 tensor cores."""

    fp32: Tflops | None = None
    fp64: Tflops | None = None
    fp64_tensor: Tflops | None = None


class Compute(Strict):
    """Arithmetic."""

    sm_count: Number
    instructions: tuple[Instruction, ...] = Field(strict=False)
    """Tensor and copy instruction families that the SMs have."""
    dense_tflops: DenseTflops
    flop_per_clock_per_sm: FlopPerClockPerSm
    peak_exceptions: PeakExceptions = PeakExceptions()
    sparse_tflops: SparseTflops | None = None
    vector_tflops: VectorTflops | None = None
    measured_gemm_tflops: DenseTflops | None = None
    """Best dense GEMM that anyone measured."""


class Sm(Strict):
    """What one streaming multiprocessor holds."""

    shared_memory_KiB: KiB
    shared_memory_per_block_KiB: KiB
    registers: Number
    """32-bit registers."""
    max_threads: Number
    max_warps: Number
    max_blocks: Number
    tensor_memory_KiB: KiB | None = None


class Clock(Strict):
    """SM clocks."""

    boost_MHz: Mhz
    """Highest clock under light load."""
    base_MHz: Mhz | None = None
    tensor_peak_MHz: Mhz
    """Clock that the datasheet's tensor peaks assume."""
    sustained_MHz: Mhz | None = None
    """Clock at which long tensor work settles under the power limit."""


class Power(Strict):
    """Board power."""

    tdp_W: Watts


class Link(Strict):
    """A link of one GPU."""

    generation: str | None = None
    per_direction_GBps: GBps


class Links(Strict):
    """Ways out of the GPU."""

    nvlink: Link | None = None
    c2c: Link | None = None
    """Coherent link to the CPU of a superchip."""
    pcie: Link | None = None
    network: Link | None = None
    """This GPU's share of the node's network adapters."""


class Node(Strict):
    """The server that the GPU usually comes in."""

    gpus_per_node: Number
    nvlink_domain: Number
    """GPUs that reach each other by NVLink."""
