"""An estimate of a GPU's power: idle, and what memory and tensor units take by how busy the load keeps them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.planning.candidates import Table
from perfmodel.planning.points import Points, Requests
from perfmodel.planning.prices import PowerModel
from perfmodel.serving.anchored import lanes
from perfmodel.serving.engine import Engine
from perfmodel.serving.step import Batch, decode, step_ops
from perfmodel.workload.expectation import Array

PEAKS = ("dense_peak", "expert_peak", "attention_peak")
WORK = ("dense", "head", "attention", "experts", "activations")
SHARES = (
    "bandwidth", "cache_bandwidth", "expert_bandwidth", "fp4", "dequantised", "tensor", "tensor_fp4", "expert_tensor", "attention",
    "blackwell_tensor",
)  # fmt: skip
"""What an engine makes of the peaks: 1 each where the work is held against the peaks themselves."""


def watts(table: Table, points: Points, requests: Requests, engine: Engine, model: PowerModel) -> Array:
    """Watts of a GPU, the mean over all of a point: TDP x (idle + memory x busy DRAM + tensor x busy tensor units), at most TDP."""
    decoding = table.take(points.decode)
    used = _decode_busy(decoding, points, requests, engine)
    rate = points.requests_per_s
    mixed = ~points.disaggregated
    ranks = points.decoders * decoding.gpus / decoding.work.tp
    prompts = _prompt_busy(decoding, rate / ranks, requests, engine)
    tdp = np.array([d.gpu.tdp for d in decoding.deployments])
    own = _draw([u + np.where(mixed, p, 0.0) for u, p in zip(used, prompts, strict=True)], model)
    if not points.disaggregated.any():
        return tdp * own
    first = table.take(np.where(mixed, points.decode, points.prefill))
    ranks = np.maximum(points.prefillers, 1.0) * first.gpus / first.work.tp
    others = _draw(_prompt_busy(first, rate / ranks, requests, engine), model)
    share = points.prefillers * first.gpus / points.gpus
    result: Array = tdp * (own + (others - own) * np.where(mixed, 0.0, share))
    return result


def _draw(busy: list[Array], model: PowerModel) -> Array:
    memory, tensor = busy
    result: Array = np.minimum(model.idle.value + model.memory.value * memory + model.tensor.value * tensor, 1.0)
    return result


def _decode_busy(sub: Table, points: Points, requests: Requests, engine: Engine) -> list[Array]:
    """Shares of the time that decode steps at the peak rates would take: of the DRAM, of the tensor units."""
    an_instance = points.clients / points.decoders
    split = lanes(sub.work.pp, an_instance)
    running = an_instance * np.minimum((points.output - 1) * points.tpot / points.latency, 1.0)
    a_rank = np.maximum(running / (sub.work.dp * split), np.minimum(running, 1.0))
    batch = decode(a_rank, np.full_like(a_rank, requests.context))
    return [time / points.tpot * split / sub.work.pp for time in at_peak(sub, engine, batch)]


def _prompt_busy(sub: Table, rate: Array, requests: Requests, engine: Engine) -> list[Array]:
    """The same of prompts, `rate` a second on each attention rank of each stage."""
    zero = np.zeros_like(rate)
    batch = Batch(zero, zero, zero + requests.prompt, zero + requests.cached)
    return [time * rate for time in at_peak(sub, engine, batch)]


def at_peak(sub: Table, engine: Engine, batch: Batch) -> list[Array]:
    """Seconds that a step's bytes take at the DRAM's peak, and its FLOP at the tensor units' peak."""
    perfect = replace(engine, **dict.fromkeys(SHARES, 1.0), tile=0.0)
    endless = np.full_like(sub.rates.bandwidth, np.inf)
    found = []
    for rates in (replace(sub.rates, **dict.fromkeys(PEAKS, endless)), replace(sub.rates, bandwidth=endless)):
        ops = step_ops(sub.work, rates, perfect, batch)
        found.append(np.sum([ops[name] for name in WORK], axis=0))
    return found
