"""Sentences about the gap: for each cause why it costs what it costs, with the numbers, and what would cure it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.attribution import GapRows
from perfmodel.causes import NOT_NATIVE
from perfmodel.scenario import Scenario
from perfmodel.units import GB, GBPS, MB, MHZ, MICROSECOND, TFLOPS


@dataclass(frozen=True)
class Facts:
    """Plain numbers of one row that the sentences need."""

    scenario: Scenario
    rows: GapRows
    at: int
    against: float | None

    def number(self, values: np.ndarray) -> float:
        """The row's entry of a vector."""
        return float(values[self.at])


def why(cause: str, facts: Facts) -> str:
    """Why a cause costs what it costs on this row."""
    return _WHY[cause](facts)


def cure(cause: str) -> str:
    """What would make the loss smaller."""
    return _CURE[cause]


def _weights(f: Facts) -> str:
    layer = f.rows.layer
    bytes_ = f.number(layer.weights) * (layer.machine.weight_bytes + layer.machine.scale_bytes)
    active, local = f.number(layer.load.active), f.number(layer.rows.experts / layer.rows.ep)
    bits = 8 * (layer.machine.weight_bytes + layer.machine.scale_bytes)
    shared = ", and the shared ones" if f.number(layer.rows.shared_inter) else ""
    return (
        f"{active:.4g} of {local:.4g} experts are active{shared}: {_bytes(bytes_)} at {bits:.4g} bits a weight "
        f"through {layer.machine.bandwidth / GBPS:,.0f} GB/s"
    )


def _activations(f: Facts) -> str:
    layer = f.rows.layer
    return f"{_bytes(f.number(layer.input_bytes))} of hidden states in and as many out, each once, in bf16"


def _clock(f: Facts) -> str:
    gpu, machine = f.scenario.gpu, f.rows.layer.machine
    if f.scenario.clock == "burst":
        return "a burst: work of up to about 0.1 s runs at the clock that the peak assumes (--clock sustained holds it for longer)"
    return f"power holds the clock at {machine.clock_fraction * gpu.tensor_peak_clock / MHZ:.0f} of {gpu.tensor_peak_clock / MHZ:.0f} MHz"


def _tensor(f: Facts) -> str:
    share = f.rows.layer.machine.compute_efficiency
    return f"the main loop of {f.rows.profile.id} reaches {share:.0%} of the {f.scenario.peak / TFLOPS:,.0f} TFLOPS peak"


def _padding(f: Facts) -> str:
    layer = f.rows.layer
    smallest = min(layer.machine.tiles.m)
    mean = f.number(layer.load.pairs) / max(f.number(layer.load.active), 1e-12)
    filled = f.number(layer.load.pairs) / max(f.number(layer.load.tiles(smallest)) * smallest, 1e-12)
    return f"{mean:.4g} tokens per active expert fill {filled:.0%} of the rows of even the smallest tile ({smallest})"


def _scheduling(f: Facts) -> str:
    m = f.rows.layer.machine
    return (
        f"whole waves over {m.sm_count} SMs, {m.tile_fixed / MICROSECOND:.2g} us a tile to start and end, "
        f"{m.gemm_latency / MICROSECOND:.2g} us a GEMM to fill and drain, compute and memory overlapping only in part"
    )


def _ramp(f: Facts) -> str:
    m = f.rows.layer.machine
    parts = [f"{f.rows.profile.id} streams weights at {m.bandwidth_efficiency:.0%} of the DRAM bandwidth at best"]
    parts.append("less while few tiles are in flight" if m.dram_latency else "the DRAM latency is not known, so no ramp is counted")
    parts.append("tiles read again through L2" if m.l2_bandwidth else "the L2 bandwidth is not known, so no L2 limit is counted")
    return ", ".join(parts)


def _quantise(f: Facts) -> str:
    m, form = f.rows.layer.machine, f.scenario.format
    parts = []
    if m.dequantise:
        each = m.dequantise * 1e12
        parts.append(f"{form.weights.element} weights are converted for {form.activations.element} units ({each:.3g} ps each)")
    if m.quantises:
        parts.append(f"activations are quantised to {form.activations.element}")
    return " and ".join(parts) or "nothing is converted: weights and activations are multiplied as they are stored"


def _unfused(f: Facts) -> str:
    stages = [s.name for s in f.rows.layer.machine.stages if s.kind == "move"]
    return f"passes through memory: {', '.join(stages)}" if stages else "everything is fused"


def _imbalance(f: Facts) -> str:
    ratio = f.number(f.rows.imbalance)
    text = f"{f.scenario.routing} routing against equal loads of the same active experts"
    return text + (f"; the busiest rank has {ratio:.3g} times the mean rank's pairs, which its FLOPs hold already" if ratio > 1.005 else "")


def _launch(f: Facts) -> str:
    gaps = f.rows.layer.launch / MICROSECOND
    own = "top-k and sorting of the tokens (the router's logits are given, as in the measured rows)"
    return f"launch gaps {gaps:.3g} us, fixed latency {f.rows.layer.machine.fixed / MICROSECOND:.3g} us, {own}"


def _communication(f: Facts) -> str:
    layer = f.rows.layer
    ep, tp = f.number(layer.rows.ep), f.number(layer.rows.tp)
    if ep * tp == 1:
        return "one GPU: nothing to exchange"
    if layer.fabric is None:
        return "left out (--comm include adds dispatch, combine and all-reduce)"
    return f"dispatch and combine over EP{ep:.0f}, all-reduce over TP{tp:.0f}, none of it hidden behind compute"


def _not_native(f: Facts) -> str:
    assert f.against is not None
    units = f.scenario.format.math_type(f.scenario.gpu.math_types)
    return (
        f"held against {f.against / TFLOPS:,.0f} TFLOPS; {f.scenario.format.id} runs on the {units} units of {f.scenario.gpu.id}, "
        f"{f.scenario.peak / TFLOPS:,.0f} TFLOPS"
    )


def _bytes(count: float) -> str:
    return f"{count / GB:.3g} GB" if count >= GB else f"{count / MB:.3g} MB"


_WHY = {
    NOT_NATIVE: _not_native,
    "weights": _weights,
    "activations": _activations,
    "clock": _clock,
    "tensor": _tensor,
    "padding": _padding,
    "scheduling": _scheduling,
    "ramp": _ramp,
    "quantise": _quantise,
    "unfused": _unfused,
    "imbalance": _imbalance,
    "launch": _launch,
    "communication": _communication,
}

_CURE = {
    NOT_NATIVE: "a GPU with units for the format",
    "weights": "more tokens per expert (larger batch, wider EP), fewer bits a weight, more DRAM bandwidth",
    "activations": "fewer bytes in and out: fuse with the layers before and after",
    "clock": "a higher power limit or better cooling; fewer bytes moved also leave power for the clock",
    "tensor": "a kernel with a better main loop; 2-SM instructions and deeper pipelines on Blackwell",
    "padding": "smaller tiles, weights as the M operand (swap-AB), more tokens per expert",
    "scheduling": "a persistent kernel, stream-K or split-K, tiles that fill whole waves",
    "ramp": "more bytes in flight: more stages, more CTAs, TMA multicast for what L2 reads twice",
    "quantise": "fuse quantisation into the neighbouring kernels; a format that the tensor units multiply as stored",
    "unfused": "fuse permute, activation and weighted sum into the GEMMs",
    "imbalance": "balance experts over ranks, replicate hot ones, sort experts by load",
    "launch": "a CUDA graph, programmatic dependent launch, or one persistent kernel",
    "communication": "overlap it with compute, exchange in fewer bits, stay within the NVLink domain",
}
