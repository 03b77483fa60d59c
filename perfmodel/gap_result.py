"""What a gap answers: the JSON object of `perfmodel gap`, typed. Units stand in the names of the fields."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfmodel.validated import Strict
from perfmodel.workload.layer import MoeLayer


class Loss(Strict):
    """One cause of lost time. `ideal_us` and the losses of a row add up to its `latency_us`."""

    cause: str
    us: float
    saves_us: float
    """What would be saved with this cause alone off and all else on."""
    why: str
    cure: str


class GapOp(Strict):
    """One op of the layer, all stages one after the other."""

    name: str
    us: float


class DramBytes(Strict):
    """Compulsory traffic of the busiest rank, bytes."""

    weights: float
    scales: float
    activations: float
    output: float


class GapRow(Strict):
    """The layer at one token count; figures of the busiest rank."""

    tokens: int
    kernel: str
    kernel_status: str
    """measured, estimated or derived: where the kernel's numbers for this GPU and format come from."""
    latency_us: float
    interval_us: tuple[float, float] = Field(strict=False)
    """80 % interval."""
    flops: float
    """Of expert GEMMs, shared experts included, router excluded."""
    tflops: float
    ideal_us: float
    """flops at the peak."""
    floor_us: float
    """The slower of flops at the peak and compulsory bytes at the DRAM bandwidth: no prediction is below it."""
    bound: Literal["launch", "weights", "activations", "compute", "scheduling", "communication"]
    arithmetic_intensity: float
    """FLOP/B."""
    ridge: float
    """FLOP/B at which the GPU's peak and bandwidth take the same time."""
    active_experts: float
    """Expected routed experts with tokens."""
    rank_imbalance: float
    """Pairs of the busiest rank over the mean rank's."""
    dram_bytes: DramBytes
    losses: tuple[Loss, ...] = Field(strict=False)
    ops: tuple[GapOp, ...] = Field(strict=False)


class GapResult(Strict):
    """The gap between the peak and one MoE layer, a row a token count."""

    schema_: Literal["perfmodel.gap/1", "perfmodel.predict/1"] = Field(alias="schema")
    gpu: str
    model: str
    format: str
    kernel: str
    """The profile of all rows; auto where they differ."""
    routing: str
    peak_tflops: float
    layer: MoeLayer
    notes: tuple[str, ...] = Field(strict=False)
    rows: tuple[GapRow, ...] = Field(strict=False)
    ep: int
    tp: int
    launch: str
    comm: str
    clock: str
    placement: str
    redundant: int
    changes: tuple[str, ...] = Field(strict=False)
