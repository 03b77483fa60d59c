"""Seconds of one step of an engine: decode of some sequences, a prompt or a part of it, or both together.

Each op is (memory^3 + compute^3)^(1/3) of its bytes over the bandwidth and its FLOP over the peak that the engine reaches, and a collective
is its latency plus its bytes over the link. Kernels are not told apart here: what they lose is in the engine's shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from perfmodel.formats import get_format
from perfmodel.hardware import GpuSpec
from perfmodel.ops.fabric import link_bandwidth, link_domain
from perfmodel.serving.engine import Engine
from perfmodel.serving.work import Work
from perfmodel.units import MICROSECOND
from perfmodel.workload.expectation import Array

OPS = ("dense", "head", "attention", "experts", "activations", "communication", "overhead")


@dataclass(frozen=True)
class Rates:
    """What the GPUs can do, SI: vectors over deployments."""

    bandwidth: Array
    dense_peak: Array
    expert_peak: Array
    attention_peak: Array
    """In 16 bits."""
    dense_fp4: Array
    """1 where dense layers run on FP4 units."""
    expert_fp4: Array
    link: Array
    """B/s of one direction within the domain."""
    network: Array
    """B/s beyond it; that of the link where the GPU's file names none."""
    domain: Array
    """GPUs that the link joins."""
    dequantised: Array
    """1 where kernels convert the experts' weights."""
    blackwell: Array
    """1 where the GPU is of that generation."""

    def take(self, rows: Any) -> Rates:
        """The rates of the deployments `rows`."""
        return Rates(*(getattr(self, f.name)[rows] for f in fields(self)))


def rates_of(gpu: GpuSpec, form: str, dense: str | None = None) -> Rates:
    """The rates of a GPU in these formats. Raises PerfModelError where it lacks the units."""
    expert, other = (get_format(name).math_type(gpu.math_types) for name in (form, dense or form))
    sixteen = "bf16" if "bf16" in gpu.math_types else "fp16"
    near = link_bandwidth(gpu)
    values = (
        gpu.dram_bandwidth, gpu.peak_flops(other), gpu.peak_flops(expert), gpu.peak_flops(sixteen), float(other == "fp4"),
        float(expert == "fp4"), near, gpu.network_bandwidth or near, float(link_domain(gpu)),
        float(get_format(form).execution(gpu.architecture) == "dequantised"), float(gpu.architecture.startswith("blackwell")),
    )  # fmt: skip
    return Rates(*(np.array([value]) for value in values))


def stack_rates(rates: Iterable[Rates]) -> Rates:
    """Rates of several deployments as vectors."""
    rates = list(rates)
    return Rates(*(np.concatenate([getattr(one, f.name) for one in rates]) for f in fields(Rates)))


@dataclass(frozen=True)
class Batch:
    """What a step does on each attention rank: `sequences` decode one token each at `context`; `prompt` new tokens of `prompts` prompts
    follow `past` ones of each."""

    sequences: Array
    context: Array
    prompt: Array
    past: Array
    prompts: Array | float = 1.0

    @property
    def tokens(self) -> Array:
        """Tokens that pass the layers."""
        return self.sequences + self.prompt

    def split(self, parts: Array) -> Batch:
        """One of `parts` equal ones."""
        return Batch(self.sequences / parts, self.context, self.prompt / parts, self.past, self.prompts / parts)


def decode(sequences: Array, context: Array) -> Batch:
    """A step without a prompt."""
    zero = np.zeros_like(sequences)
    return Batch(sequences, context, zero, zero)


def step_ops(work: Work, rates: Rates, engine: Engine, batch: Batch) -> dict[str, Array]:
    """Seconds of each of OPS on the way of a token through all stages of the pipeline; they follow each other.

    Micro-batches take turns: each reads the weights and launches the layers anew, and communicates while the others compute. What is left
    of communication is that of the first part of the first layer, which has nothing to hide behind, and what is longer than all else.
    """
    parts = work.micro_batches
    ops = {name: parts * time for name, time in _ops(work, rates, engine, batch.split(parts)).items()}
    ops["overhead"] = ops["overhead"] - (parts - 1.0) * engine.step_us * MICROSECOND
    others: Array = np.sum([time for name, time in ops.items() if name != "communication"], axis=0)
    first = ops["communication"] / (parts * work.layers)
    left = np.maximum(ops["communication"] - others, first)
    return {**ops, "communication": np.where(parts > 1, left, ops["communication"])}


def _ops(work: Work, rates: Rates, engine: Engine, batch: Batch) -> dict[str, Array]:
    """Seconds of each of OPS of one batch alone."""
    tokens = batch.tokens
    share = np.where(rates.dense_fp4 > 0, engine.tensor_fp4, engine.tensor) * np.where(rates.blackwell > 0, engine.blackwell_tensor, 1.0)
    streaming = rates.bandwidth * engine.bandwidth * np.where(rates.dense_fp4 > 0, engine.fp4, 1.0)
    dense = _op(work.dense_bytes, 2.0 * work.dense_weights * tokens, streaming, rates.dense_peak * share)
    outputs = batch.sequences + (batch.prompt > 0) * batch.prompts
    head = _op(work.head_bytes, 2.0 * work.head_weights * outputs, rates.bandwidth * engine.bandwidth, rates.attention_peak * engine.tensor)
    passes = tokens * work.layers * work.hidden * engine.pass_bytes / rates.bandwidth
    return {
        "dense": dense,
        "head": head,
        "attention": _attention(work, rates, engine, batch),
        "experts": _experts(work, rates, engine, tokens),
        "activations": passes,
        "communication": _communication(work, rates, engine, tokens),
        "overhead": _overhead(work, rates, engine, batch),
    }


def step_time(work: Work, rates: Rates, engine: Engine, batch: Batch) -> Array:
    """Seconds of a step. Launches of a prompt run ahead of its kernels, so of a prompt the longer of both counts."""
    ops = step_ops(work, rates, engine, batch)
    total: Array = np.sum(list(ops.values()), axis=0)
    launched = (work.layers * engine.prompt_layer_us + work.moe_layers * engine.prompt_moe_layer_us + engine.step_us) * MICROSECOND
    time: Array = np.where(batch.prompt > 0, _norm(total, launched), total)
    return time


def _op(bytes_: Array, flops: Array, bandwidth: Array, peak: Array) -> Array:
    return _norm(bytes_ / bandwidth, flops / peak)


def _norm(a: Array, b: Array) -> Array:
    result: Array = np.cbrt(a * a * a + b * b * b)
    return result


def _attention(work: Work, rates: Rates, engine: Engine, batch: Batch) -> Array:
    """Keys and values of what each token sees: streams in decode, tensor work in prompts, half of whose tokens a token sees."""
    seen = np.minimum(batch.context, work.window)
    bandwidth = rates.bandwidth * engine.cache_bandwidth
    streamed = batch.sequences * ((work.read * seen).sum(axis=0) + 2.0 * work.state_bytes)
    decoded = batch.sequences * (work.decode_flops * seen).sum(axis=0)
    before = np.minimum(batch.past + batch.prompt / batch.prompts / 2, work.window)
    prompted = batch.prompt * ((work.prefill_flops * before).sum(axis=0) + work.state_flops)
    peak = rates.attention_peak * engine.attention
    result: Array = _op(streamed, decoded, bandwidth, peak) + prompted / peak
    return result


def _experts(work: Work, rates: Rates, engine: Engine, tokens: Array) -> Array:
    """Experts that at least one of the tokens of all attention ranks chose, E/ep (1 - (1 - k/E)^T), and the products with them.

    The busiest of ep ranks has sqrt(2 ln ep / pairs) more than the mean, as the largest of as many random counts.
    """
    everybody = tokens * work.dp
    local = work.experts / work.ep
    pairs = everybody * work.topk / work.ep
    active = local * -np.expm1(everybody * np.log1p(-np.minimum(work.topk / work.experts, 1 - 1e-9)))
    excess = 1.0 + engine.imbalance * np.minimum(np.sqrt(2.0 * np.log(work.ep) / np.maximum(pairs, 1e-9)), 1.0)
    active, rows = np.minimum(active * excess, local), pairs * excess
    rows = rows + active * engine.tile
    share = np.where(rates.expert_fp4 > 0, engine.tensor_fp4 / engine.tensor, 1.0) * np.where(
        rates.blackwell > 0, engine.blackwell_tensor, 1.0
    )
    left = np.where(rates.dequantised > 0, engine.dequantised, 1.0)
    bandwidth, peak = rates.bandwidth * engine.expert_bandwidth * left, rates.expert_peak * engine.expert_tensor * share * left
    result: Array = work.moe_layers * _op(active * work.expert_bytes, 2.0 * rows * work.expert_weights, bandwidth, peak)
    return result


def _communication(work: Work, rates: Rates, engine: Engine, tokens: Array) -> Array:
    """Two all-reduces a layer over the ranks of a token, a gather and a scatter between attention ranks in MoE layers, stage to stage."""
    state = tokens * work.hidden * 2.0
    reduces = np.where(work.dp > 1, 2 * work.layers - work.moe_layers, 2 * work.layers)
    reduced = reduces * _exchange(2.0 * state * (work.tp - 1) / work.tp, work.tp, rates, engine, engine.collective_us)
    ranks = work.tp * work.dp
    spread = np.where(work.dp > 1, 2.0 * work.moe_layers, 0.0)
    moved = np.minimum(work.topk, work.dp) * state / work.tp
    dispatched = spread * _exchange(moved, np.where(work.dp > 1, ranks, 1.0), rates, engine, engine.dispatch_us)
    passed = np.where(work.pp > 1, (work.pp - 1) * _hop(state / work.tp, ranks * work.pp, rates, engine), 0.0)
    result: Array = reduced + dispatched + passed
    return result


def _exchange(bytes_: Array, ranks: Array, rates: Rates, engine: Engine, latency_us: float) -> Array:
    """Seconds of one collective of `ranks`: its latency, and bytes over the slower wire that it uses; 0 for one rank alone."""
    beyond = ranks > rates.domain
    link = np.where(beyond, rates.network, rates.link) * engine.link
    return np.where(ranks > 1, np.where(beyond, 2.0, 1.0) * (latency_us + engine.hop_us * (ranks - 2)) * MICROSECOND + bytes_ / link, 0.0)


def _hop(bytes_: Array, gpus: Array, rates: Rates, engine: Engine) -> Array:
    """Seconds from one pipeline stage to the next, over the network where the instance is larger than the domain."""
    beyond = gpus > rates.domain
    link = np.where(beyond, rates.network, rates.link) * engine.link
    result: Array = np.where(beyond, 2.0, 1.0) * engine.collective_us * MICROSECOND + bytes_ / link
    return result


def _overhead(work: Work, rates: Rates, engine: Engine, batch: Batch) -> Array:
    """Launches and gaps by layer, and what the scheduler does for a step and its sequences."""
    layers = work.layers * engine.layer_us + work.moe_layers * engine.moe_layer_us
    layers = (
        layers
        + work.latent_layers * engine.latent_layer_us
        + work.scan_layers * engine.scan_layer_us
        + work.state_layers * engine.state_layer_us
    )
    layers = layers * np.where(rates.blackwell > 0, engine.blackwell_overhead, 1.0)
    result: Array = (layers + engine.step_us + batch.sequences * work.dp * engine.sequence_us) * MICROSECOND
    return result
