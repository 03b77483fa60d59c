"""Dispatch or combine of expert parallelism: every rank sends its tokens to the ranks of their experts, or takes them back.

A kernel of the kind of DeepEP's normal one sends a token once to each rank that holds one of its experts, and needs SMs to fill the
link; one of the low-latency kind (menu `each: [1]`) sends it once for each expert. Beyond the NVLink domain a token crosses the network
once for each node of the at most `node_groups` that routing lets it reach, with one card a GPU, and is passed on there by NVLink
(low-latency: once for each expert, straight to its rank).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfmodel.formats import get_format
from perfmodel.ops.fabric import link_bandwidth, link_domain, network_bandwidth
from perfmodel.ops.grouped_gemm import smooth_maximum
from perfmodel.ops.op import Op, OpTime, Parameter, Use
from perfmodel.units import GB, MICROSECOND
from perfmodel.workload.expectation import Array

PARAMETERS = {
    "fixed_us": Parameter(20.0, 0.6, 1.0, 500.0, "what any number of tokens takes [us]"),
    "grace_factor": Parameter(1.0, 0.6, 0.2, 5.0, "the same on a host with C2C (Grace), times so much"),
    "row_us": Parameter(0.5, 1.0, 0.001, 30.0, "for each 1024 values of a token: how long one takes from end to end [us]"),
    "expert_us": Parameter(0.02, 1.0, 0.0001, 2.0, "for each expert of all ranks: counts, flags [us]"),
    "rank_us": Parameter(0.3, 1.0, 0.001, 30.0, "for each other rank [us]"),
    "efficiency": Parameter(0.7, 0.3, 0.02, 1.0, "of the link's bandwidth"),
    "sm_GBps": Parameter(15.0, 0.5, 1.0, 300.0, "that one SM sends, where the kernel is given few [GB/s]"),
    "local_GBps": Parameter(1000.0, 0.8, 20.0, 10000.0, "at which a rank reads its own tokens and writes those that stay [GB/s]"),
    "token_us": Parameter(0.2, 1.0, 0.001, 50.0, "for each token on one SM beside its bytes: routing, flags [us]"),
    "overlap_exponent": Parameter(1.3, 0.3, 1.0, 6.0, "p that joins start and transfer: 1 adds them up, a large p overlaps them"),
    "network_us": Parameter(30.0, 0.8, 1.0, 1000.0, "what any number of tokens takes more beyond the domain [us]"),
    "network_efficiency": Parameter(0.7, 0.4, 0.02, 1.0, "of the network's bandwidth"),
}


def all_to_all_time(use: Use, sizes: Mapping[str, Array], p: Mapping[str, float]) -> OpTime:
    """Seconds of one phase for `tokens` tokens of `hidden` values on each of `ranks` ranks, `topk` experts a token, [n rows].

    `sms` is how many SMs the kernel was given, 0 for as many as it likes. The format is that of the tokens on the wire.
    Raises PerfModelError where the GPU's file names no link, or ranks lie beyond the domain and it names no network.
    """
    tokens, topk, ranks, sms = (sizes[name] for name in ("tokens", "topk", "ranks", "sms"))
    token = sizes["hidden"] * get_format(use.format).activations.bits / 8
    domain = np.minimum(ranks, link_domain(use.gpu))
    each = "each" in use.menus
    others = domain - 1 if each else ranks * (domain - 1) / domain  # what came over the network is passed on
    near = tokens * token * destinations(topk, ranks, others, each)
    link = link_bandwidth(use.gpu)
    rate = link * p["efficiency"]
    sending = np.where(sms > 0, smooth_minimum_rate(np.maximum(sms, 1.0) * p["sm_GBps"] * GB, rate), rate)
    wire = near / sending
    far, far_floor = _network(use, tokens * token, topk, ranks, domain, each, p["network_efficiency"])
    local = tokens * token * (1.0 + topk / ranks) / (p["local_GBps"] * GB)
    each_token = tokens / np.where(sms > 0, sms, use.gpu.sm_count) * p["token_us"] * MICROSECOND
    moving = np.maximum(wire, far) + local + each_token
    start = start_time(use, sizes, ranks > domain, p)
    floor = np.maximum(near / link, far_floor)
    total = np.maximum(smooth_maximum(start, moving, p["overlap_exponent"]), floor)
    return OpTime(total, floor, np.zeros_like(total), np.minimum(np.maximum(wire, far), total))


def start_time(use: Use, sizes: Mapping[str, Array], beyond: NDArray[np.bool_], p: Mapping[str, float]) -> Array:
    """[n] seconds that no number of tokens spares; `beyond` [n] where ranks lie beyond the domain."""
    fixed = p["fixed_us"] * (p["grace_factor"] if use.gpu.c2c_bandwidth else 1.0)
    counts = p["rank_us"] * (sizes["ranks"] - 1) + p["expert_us"] * sizes["experts"]
    start: Array = (fixed + p["row_us"] * sizes["hidden"] / 1024 + counts + p["network_us"] * beyond) * MICROSECOND
    return start


def destinations(topk: Array, groups: Array, others: Array, each: bool) -> Array:
    """[n] to how many of `others` of `groups` groups of experts a token goes: one in expectation for each that holds one of its experts
    or, with `each`, one for each expert."""
    share = topk / groups if each else 1.0 - (1.0 - 1.0 / groups) ** topk
    return others * share


def smooth_minimum_rate(a: Array, b: float) -> Array:
    """[n] the lesser of two rates, rounded off where they are alike."""
    lesser: Array = (a**-6.0 + b**-6.0) ** (-1.0 / 6.0)
    return lesser


def _network(use: Use, bytes_: Array, topk: Array, ranks: Array, domain: Array, each: bool, efficiency: float) -> tuple[Array, Array]:
    """[n], [n] seconds on the network card of a rank, with its efficiency and at its full bandwidth."""
    beyond = ranks > domain
    if not beyond.any():
        return np.zeros_like(ranks), np.zeros_like(ranks)
    card = network_bandwidth(use.gpu)
    nodes = ranks / domain
    groups = nodes if each else np.minimum(nodes, float(use.menus.get("node_groups", (1024,))[0]))
    sent = np.where(beyond, bytes_ * destinations(topk, groups, groups * (nodes - 1) / nodes, each), 0.0)
    return sent / (card * efficiency), sent / card


ALL_TO_ALL = Op(
    "a2a",
    ("tokens", "hidden", "topk", "experts", "ranks", "sms"),
    "tokens",
    ("each", "node_groups"),
    PARAMETERS,
    all_to_all_time,
    scarce=True,
)
