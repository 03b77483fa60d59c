"""One MoE layer on one GPU with one kernel profile: seconds, with any set of causes switched on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.causes import ON, Causes
from perfmodel.ops.activation import BF16, routing_time, stage_time
from perfmodel.ops.dram import lost_between_calls
from perfmodel.ops.fabric import Fabric
from perfmodel.ops.grouped_gemm import GemmShape, GemmTime, grouped_gemm
from perfmodel.ops.machine import Machine
from perfmodel.ops.moe_communication import moe_communication
from perfmodel.workload.expectation import Array
from perfmodel.workload.loads import Load, single_group


@dataclass(frozen=True)
class LayerRows:
    """MoE layers at token counts, float vectors over rows (one row, one prediction)."""

    tokens: Array
    """Tokens that enter the layer over the whole expert-parallel group, before top-k."""
    hidden: Array
    width: Array
    """K of the first expert GEMM: hidden, or the latent width."""
    inter: Array
    """Intermediate width of one expert, before tensor parallelism."""
    shared_inter: Array
    """Intermediate width of all shared experts together, 0 without."""
    experts: Array
    topk: Array
    ep: Array
    tp: Array
    gated: bool = True

    @property
    def projections(self) -> int:
        """Projections into the intermediate width: gate and up, or up alone."""
        return 2 if self.gated else 1


@dataclass(frozen=True)
class Layer:
    """All that the time of a layer depends on. `load` is the busiest rank's; `launch` the seconds of its launches."""

    rows: LayerRows
    load: Load
    machine: Machine
    launch: float
    fabric: Fabric | None = None
    """The wires, where communication counts."""

    @property
    def own_tokens(self) -> Array:
        """Tokens that a rank brings itself: those its shared experts see."""
        return np.ceil(self.rows.tokens / self.rows.ep)

    @property
    def stage_tokens(self) -> Array:
        """Tokens that the stages of the rank pass over."""
        if self.machine.all_tokens:
            return self.rows.tokens
        return np.maximum(self.load.tokens, np.where(self.rows.shared_inter > 0, self.own_tokens, 0.0))

    @property
    def weights(self) -> Array:
        """Weights that the rank must read: those of its active experts and its shared ones."""
        r = self.rows
        routed = self.load.active * r.width * r.inter
        return (r.projections + 1) * (routed + r.hidden * r.shared_inter) / r.tp

    @property
    def flops(self) -> Array:
        """FLOP of the rank's expert GEMMs, shared experts included, router excluded: 2 M N K each."""
        r = self.rows
        routed = self.load.pairs * r.width * r.inter
        shared = self.own_tokens * r.hidden * r.shared_inter
        return 2.0 * (r.projections + 1) * (routed + shared) / r.tp

    @property
    def input_bytes(self) -> Array:
        """The states that the rank must read, bf16: its tokens once, or, with a latent width, what routed and shared experts take apart."""
        r = self.rows
        own = np.where(r.shared_inter > 0, self.own_tokens, 0.0)
        apart = self.load.tokens * r.width + own * r.hidden
        return np.where(r.width == r.hidden, np.maximum(self.load.tokens, own) * r.hidden, apart) * BF16

    @property
    def output_bytes(self) -> Array:
        """The states that the rank must write, bf16: as many as it reads."""
        return self.input_bytes

    @property
    def compulsory_bytes(self) -> Array:
        """DRAM bytes that no kernel avoids: weights, scales, input, output, less what warm caches may hold of them."""
        moved = self.weight_bytes + self.input_bytes + self.output_bytes
        return np.maximum(moved - self.machine.warm_l2, 0.0) if self.machine.warm_l2 else moved

    @property
    def weight_bytes(self) -> Array:
        """Bytes of the weights and their scales that the rank must read."""
        return self.weights * (self.machine.weight_bytes + self.machine.scale_bytes)

    @property
    def from_dram(self) -> Array | float:
        """Share of the weights that L2 does not hold: all, but where the same layer ran just before."""
        if not self.machine.warm_l2:
            return 1.0
        between = self.load.pairs * self.rows.width * (2 * BF16)  # what flows from stage to stage displaces weights, too
        return lost_between_calls(self.weight_bytes + self.input_bytes + between, self.machine.warm_l2)

    @property
    def floor(self) -> Array:
        """Seconds that no kernel goes under: the slower of FLOPs at the peak and compulsory bytes at the DRAM bandwidth."""
        return np.maximum(self.flops / self.machine.peak, self.compulsory_bytes / self.machine.bandwidth)


OPS = ("launch_and_routing", "quantise", "grouped_gemm.gate_up", "grouped_gemm.down", "shared_experts", "activations", "communication")
"""Ops of a layer, in the order of execution as far as there is one; `grouped_gemm.up` where experts are not gated."""


def layer_ops(layer: Layer, on: Causes = ON) -> tuple[Array, ...]:
    """Seconds of each of OPS with all stages one after the other. Their sum is the latency."""
    rows, machine = layer.rows, layer.machine
    up, down, *shared = gemms(layer, on)
    inter = rows.inter / rows.tp
    zero = np.zeros_like(rows.tokens)
    tokens = layer.stage_tokens
    counts = {"tokens": tokens, "pairs": layer.load.pairs, "slots": tokens * rows.topk}
    widths = {"hidden": rows.width, "inter": inter, "up": rows.projections * inter}
    routing = routing_time(tokens, rows.experts, rows.topk, rows.experts / rows.ep, machine)
    launch = layer.launch + machine.fixed + routing if on.launch else zero
    quantise = stage_time("quantise", counts, widths, machine) if on.quantise else zero
    moved = stage_time("move", counts, widths, machine) + passing_time(layer) if on.unfused else zero
    moved = moved + compulsory_activation_time(layer, on)
    shared_time = shared[0].total + shared[1].total if shared else zero
    return launch, quantise, up.total, down.total, shared_time, moved, communication_time(layer) if on.communication else zero


def layer_time(layer: Layer, on: Causes = ON) -> Array:
    """Seconds of the layer with the causes of `on`. With none it is FLOPs at the peak, with weights and activations the floor.

    Without `scheduling` compute and memory of the GEMMs overlap fully, across both of them.
    """
    ops = layer_ops(layer, on)
    if on.scheduling:
        serial: Array = np.sum(ops, axis=0)
        return serial
    parts = gemms(layer, on)
    launch, quantise, _, _, _, moved, communication = ops
    necessary = compulsory_activation_time(layer, on)
    compute = np.sum([g.compute for g in parts], axis=0)
    memory = np.sum([g.memory for g in parts], axis=0) + necessary
    overlapped: Array = np.maximum(compute, memory) + (moved - necessary) + launch + quantise + communication
    return overlapped


def compulsory_activation_time(layer: Layer, on: Causes) -> Array:
    """Seconds to read the input and write the output once."""
    if not on.activations:
        return np.zeros_like(layer.rows.tokens)
    return (layer.input_bytes + layer.output_bytes) / layer.machine.weight_bandwidth(on)


def passing_time(layer: Layer) -> Array:
    """Seconds to read and write the states of tokens that have no expert on the rank, where its stages pass over all tokens."""
    passed = np.maximum(layer.stage_tokens - np.maximum(layer.load.tokens, layer.own_tokens * (layer.rows.shared_inter > 0)), 0.0)
    return passed * layer.rows.width * (2 * BF16) / (layer.machine.token_bandwidth * layer.machine.bandwidth)


def gemms(layer: Layer, on: Causes) -> list[GemmTime]:
    """The grouped GEMMs gate+up and down, then those of the shared experts where there are any."""
    rows = layer.rows
    inter = rows.inter / rows.tp
    parts = [
        grouped_gemm(layer.load, _shape(layer, rows.projections * inter, rows.width), layer.machine, on),
        grouped_gemm(layer.load, _shape(layer, rows.width, inter), layer.machine, on),
    ]
    if (rows.shared_inter > 0).any():
        load, shared = single_group(layer.own_tokens), rows.shared_inter / rows.tp
        for n, k in ((rows.projections * shared, rows.hidden), (rows.hidden, shared)):
            shape = GemmShape(n, k, layer.own_tokens, np.ones_like(n), layer.own_tokens, layer.from_dram)
            parts.append(_where(rows.shared_inter > 0, grouped_gemm(load, shape, layer.machine, on)))
    return parts


def _shape(layer: Layer, n: Array, k: Array) -> GemmShape:
    rows = layer.rows
    return GemmShape(n, k, rows.tokens * rows.topk, rows.experts / rows.ep, rows.tokens, layer.from_dram)


def _where(present: np.ndarray, time: GemmTime) -> GemmTime:
    return GemmTime(*(np.where(present, part, 0.0) for part in (time.compute, time.memory, time.total)))


def communication_time(layer: Layer) -> Array:
    """Seconds of dispatch, combine and all-reduce; 0 where they are left out."""
    rows = layer.rows
    if layer.fabric is None:
        return np.zeros_like(rows.tokens)
    return moe_communication(rows.tokens, layer.load.tokens, rows.width, rows.ep, rows.tp, layer.machine.act_bytes, layer.fabric)
