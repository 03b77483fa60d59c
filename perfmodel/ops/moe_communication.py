"""Communication of one MoE layer: dispatch and combine over the expert-parallel group, all-reduce over the tensor-parallel group."""

from __future__ import annotations

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.ops.activation import BF16
from perfmodel.ops.fabric import Fabric
from perfmodel.workload.expectation import Array


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
