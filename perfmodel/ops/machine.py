"""A GPU as one kernel profile drives it in one format: plain SI numbers, the only view of hardware that the ops have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfmodel.causes import Causes
from perfmodel.formats import Format
from perfmodel.hardware import GpuSpec
from perfmodel.profiles import Fit, Parameters, Profile, Stage, TileMenu
from perfmodel.units import KIB, MICROSECOND, NANOSECOND, PICOSECOND


@dataclass(frozen=True)
class Machine:
    """Numbers of a GPU, a format and a fit, in SI."""

    sm_count: int
    peak: float
    """Dense FLOP/s of the units that the format runs on."""
    clock_fraction: float
    """Clock under the load asked for over the clock of the peak, at most 1."""
    bandwidth: float
    l2_bandwidth: float | None
    warm_l2: float
    """Bytes of L2 that hold what the last call left there; 0 where nothing did."""
    dram_latency: float | None
    weight_bytes: float
    """Bytes of one weight, without scales."""
    scale_bytes: float
    """Bytes of scale per weight."""
    act_bytes: float
    """Bytes of one activation that enters a GEMM, with scales."""
    quantises: bool
    """Activations are quantised (narrower than 16 bits)."""
    compute_efficiency: float
    bandwidth_efficiency: float
    l2_efficiency: float
    activation_bandwidth: float
    token_bandwidth: float
    overlap_exponent: float
    fixed: float
    gemm_latency: float
    tile_fixed: float
    routing: float
    """s per token and (expert + 24 top-k)."""
    expert: float
    """s per local expert."""
    sort: float
    """s per doubling of the tokens."""
    dequantise: float
    """s per weight on one SM; 0 where the weights need no conversion."""
    dequantise_overlap: float
    """Exponent that joins conversion and tensor work; 1 adds them up."""
    in_flight: float
    """Bytes per strip of columns."""
    sm_in_flight: float
    """Bytes per SM at most: its shared memory."""
    tiles: TileMenu
    stages: tuple[Stage, ...]
    all_tokens: bool
    """The stages pass over all tokens of the group."""
    launches: int

    def sm_flops(self, on: Causes) -> float:
        """FLOP/s of one SM's tensor cores."""
        rate = self.peak / self.sm_count
        rate *= self.clock_fraction if on.clock else 1.0
        return rate * (self.compute_efficiency if on.tensor else 1.0)

    def weight_bandwidth(self, on: Causes) -> float:
        """B/s from DRAM when enough is in flight."""
        return self.bandwidth * (self.bandwidth_efficiency if on.ramp else 1.0)


def build_machine(gpu: GpuSpec, form: Format, profile: Profile, *, sustained: bool = False, warm: bool = False) -> Machine:
    """The Machine of a GPU, format and profile; `sustained` takes the clock of long tensor work where the GPU's file knows it; with
    `warm` caches the same layer ran just before.

    Raises PerfModelError where the GPU lacks the units or the profile has no kernel.
    """
    math = form.math_type(gpu.math_types)
    fit: Fit = profile.fit(gpu.architecture, form.id)
    clock = gpu.sustained_clock if sustained and gpu.sustained_clock else gpu.tensor_peak_clock
    return Machine(
        sm_count=gpu.sm_count,
        peak=gpu.peak_flops(math),
        clock_fraction=min(1.0, clock / gpu.tensor_peak_clock),
        bandwidth=gpu.dram_bandwidth,
        l2_bandwidth=gpu.l2_bandwidth,
        warm_l2=(gpu.l2_capacity or 0.0) if warm else 0.0,
        dram_latency=gpu.dram_latency,
        weight_bytes=form.weights.value_bits / 8,
        scale_bytes=form.weights.scale_bits / 8,
        act_bytes=form.activations.bits / 8,
        quantises=form.activations.value_bits < 16,
        **parameters_si(fit.parameters, form.execution(gpu.architecture) == "dequantised"),
        sm_in_flight=gpu.shared_memory_per_sm,
        tiles=fit.tiles,
        stages=tuple(stage for stage in profile.stages if not stage.formats or form.id in stage.formats),
        all_tokens=profile.token_rows == "all",
        launches=profile.launches,
    )


def parameters_si(p: Parameters, dequantises: bool) -> dict[str, Any]:
    """The fields of a Machine that a fit's parameters give."""
    return {
        "compute_efficiency": p.compute_efficiency,
        "bandwidth_efficiency": p.bandwidth_efficiency,
        "l2_efficiency": p.l2_efficiency,
        "activation_bandwidth": p.activation_bandwidth,
        "token_bandwidth": p.token_bandwidth or p.activation_bandwidth,
        "overlap_exponent": p.overlap_exponent,
        "fixed": p.fixed_us * MICROSECOND,
        "gemm_latency": p.gemm_latency_us * MICROSECOND,
        "tile_fixed": p.tile_fixed_us * MICROSECOND,
        "routing": p.routing_ps * PICOSECOND,
        "expert": p.expert_ns * NANOSECOND,
        "sort": p.sort_us * MICROSECOND,
        "dequantise": p.dequantise_ps * PICOSECOND if dequantises else 0.0,
        "dequantise_overlap": p.dequantise_overlap,
        "in_flight": p.in_flight_KiB * KIB,
    }
