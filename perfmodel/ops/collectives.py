"""A collective over GPUs of one fabric: NCCL's protocols, and the all-reduce kernels of serving frameworks that go before NCCL.

NCCL: a fast protocol (LL, LL128) of few microseconds a hop, and a simple one that costs more to start and fills the link; the tuner
takes the faster, but from a size on, which grows with the ranks, the simple one in any case. A ring sends (p - 1) / p of the buffer
once (all-gather, reduce-scatter) or twice (all-reduce), an all-to-all the same share straight to its peers; each rank moves its own
share on the spot. An all-reduce may also happen in the switch (NVLS), which takes the buffer up and down once.
Own kernels: one-shot, (p - 1) buffers read at once, or two-shot, a reduce-scatter and an all-gather; larger buffers go to NCCL.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops.fabric import link_bandwidth, link_domain, network_bandwidth
from perfmodel.ops.grouped_gemm import smooth_maximum
from perfmodel.ops.op import Op, OpTime, Parameter, Use
from perfmodel.units import GB, KIB, MIB, MICROSECOND
from perfmodel.workload.expectation import Array

SHARPNESS = 6.0
"""How sharply a protocol gives way to the next: weight 1 / (1 + (limit / bytes)^SHARPNESS), half of it within 20 % of the limit."""

PARAMETERS = {
    "fast_us": Parameter(5.0, 0.6, 0.3, 100.0, "what any buffer takes in the fast protocol, beside hops [us]"),
    "fast_hop_us": Parameter(1.0, 0.8, 0.005, 20.0, "a step of the fast protocol [us]"),
    "fast_efficiency": Parameter(0.4, 0.8, 0.0002, 1.0, "of the link's bandwidth, fast protocol"),
    "simple_us": Parameter(15.0, 0.6, 0.5, 300.0, "what any buffer takes in the simple protocol, beside hops [us]"),
    "simple_hop_us": Parameter(3.0, 0.8, 0.01, 50.0, "a step of the simple protocol [us]"),
    "efficiency": Parameter(0.8, 0.2, 0.01, 1.0, "of the link's bandwidth, simple protocol"),
    "local_GBps": Parameter(1000.0, 0.7, 5.0, 10000.0, "at which a rank moves its own share [GB/s]"),
    "overlap_exponent": Parameter(1.6, 0.3, 1.0, 6.0, "p that joins start and transfer: 1 adds them up, a large p overlaps them"),
    "switch_MiB": Parameter(2.0, 0.6, 0.01, 200.0, "buffer from which 2 ranks take the simple protocol [MiB]"),
    "switch_growth": Parameter(0.7, 0.5, 0.05, 2.0, "power of ranks / 2 with which that grows"),
    "crowding": Parameter(0.5, 1.0, 0.02, 3.0, "power of ranks / 2 by which PCIe slows up to 4 ranks, which share host bridges"),
    "far_crowding": Parameter(0.5, 1.0, 0.02, 3.0, "power of ranks / 4 by which it slows beyond 4, on the other socket"),
    "in_switch_us": Parameter(60.0, 0.5, 5.0, 400.0, "what any buffer takes that the switch reduces [us]"),
    "in_switch_efficiency": Parameter(0.5, 0.3, 0.05, 1.0, "of the link's bandwidth, reduced in the switch"),
    "own_us": Parameter(4.0, 0.5, 0.5, 60.0, "what any buffer takes in a kernel of the framework's own, beside hops [us]"),
    "own_hop_us": Parameter(0.1, 1.0, 0.005, 10.0, "of such a kernel, for each peer [us]"),
    "own_efficiency": Parameter(0.6, 0.4, 0.005, 1.0, "of the link's bandwidth, one-shot"),
    "peer_efficiency": Parameter(0.5, 0.5, 0.005, 1.0, "of the link's bandwidth that the reads from one peer reach, one-shot"),
    "two_shot_efficiency": Parameter(0.6, 0.4, 0.005, 1.0, "of the link's bandwidth, two-shot"),
    "two_shot_us": Parameter(1.5, 0.8, 0.05, 60.0, "the second barrier of the two-shot kernel [us]"),
    "two_shot_hop_us": Parameter(0.5, 1.0, 0.01, 20.0, "the same, for each peer [us]"),
    "symmetric_us": Parameter(12.0, 0.5, 1.0, 100.0, "what any buffer takes in a kernel on symmetric memory [us]"),
    "symmetric_efficiency": Parameter(0.4, 0.4, 0.02, 1.0, "of the link's bandwidth, symmetric memory"),
    "host_us": Parameter(25.0, 0.6, 3.0, 500.0, "launched without a graph: the host's time, which hides the device's up to there [us]"),
    "nccl_host": Parameter(1.3, 0.4, 0.3, 5.0, "the same where NCCL is called, times so much"),
    "slow_host": Parameter(1.8, 0.5, 0.5, 6.0, "the same on a host with C2C (Grace), times so much"),
    "copy_efficiency": Parameter(0.85, 0.2, 0.2, 1.0, "of the DRAM bandwidth: the copy of the buffer that is made without a graph"),
}


def collective_time(use: Use, sizes: Mapping[str, Array], p: Mapping[str, float]) -> OpTime:
    """Seconds of collectives on buffers of `bytes` over `ranks` GPUs, launched by the host where `eager` is 1, [n rows].

    `bytes` is the whole buffer: the result of an all-gather, the input of the others. One rank costs nothing.
    Raises PerfModelError where the GPU's file names no link, or ranks lie beyond the domain and it names no network.
    """
    bytes_, ranks = sizes["bytes"], sizes["ranks"]
    near = np.full(bytes_.shape, link_bandwidth(use.gpu))
    bandwidth = np.minimum(near, network_share(use, ranks))
    crowded = bandwidth if use.gpu.nvlink_bandwidth else bandwidth / crowd(ranks, p)
    total, wire = nccl_time(use, bytes_, ranks, crowded, p)
    near_by = ranks <= (use.gpu.gpus_per_node if use.gpu.nvlink_bandwidth else 2)
    own = near_by & (bytes_ < by_ranks(use, "own_KiB", ranks) * KIB)
    symmetric = near_by & ~own & (bytes_ < by_ranks(use, "symmetric_KiB", ranks) * KIB)
    total = np.where(own, own_time(use, bytes_, ranks, crowded, p), total)
    total = np.where(symmetric, p["symmetric_us"] * MICROSECOND + bytes_ / (crowded * p["symmetric_efficiency"]), total)
    total = np.where(sizes["eager"] > 0, eager_time(use, bytes_, total, ~(own | symmetric), p), total)
    floor = least_traffic(use, bytes_, ranks) / bandwidth
    alone = ranks <= 1
    total = np.where(alone, 0.0, np.maximum(total, floor))
    return OpTime(total, np.where(alone, 0.0, floor), np.zeros_like(total), np.where(alone, 0.0, np.minimum(wire, total)))


def crowd(ranks: Array, p: Mapping[str, float]) -> Array:
    """[n] by how much PCIe slows with the ranks."""
    slowed: Array = (np.clip(ranks, 2, 4) / 2) ** p["crowding"] * (np.maximum(ranks, 4) / 4) ** p["far_crowding"]
    return slowed


def by_ranks(use: Use, menu: str, ranks: Array) -> Array:
    """[n] a menu's entry for up to 2, up to 4 and more ranks (or its one entry for all); 0 where there is none."""
    entries = use.menus.get(menu, (0,))
    few, some, many = entries * 3 if len(entries) == 1 else entries
    return np.where(ranks <= 2, few, np.where(ranks <= 4, some, many)).astype(float)


def eager_time(use: Use, bytes_: Array, total: Array, nccl: NDArray[np.bool_], p: Mapping[str, float]) -> Array:
    """[n] seconds of a call without a graph: the host hides what the device takes, and the buffer is copied first."""
    host = p["host_us"] * MICROSECOND * (p["slow_host"] if use.gpu.c2c_bandwidth else 1.0) * np.where(nccl, p["nccl_host"], 1.0)
    copy = 2.0 * bytes_ / (use.gpu.dram_bandwidth * p["copy_efficiency"])
    return smooth_maximum(host, total + copy, 6.0)


def network_share(use: Use, ranks: Array) -> Array:
    """[n] B/s a rank has beyond its domain, infinite within: the rings of a node leave it over all of its network cards."""
    domain = link_domain(use.gpu)
    beyond = ranks > domain
    if not beyond.any():
        return np.full(ranks.shape, np.inf)
    cards = 1.0 if "direct" in use.menus else float(domain)
    return np.where(beyond, network_bandwidth(use.gpu) * cards, np.inf)


def traffic(use: Use, bytes_: Array, ranks: Array) -> Array:
    """[n] bytes that each rank sends: (p - 1) / p of the buffer, once or, for an all-reduce, twice."""
    return use.menus["passes"][0] * (ranks - 1) / ranks * bytes_


def least_traffic(use: Use, bytes_: Array, ranks: Array) -> Array:
    """[n] bytes that each rank must send: an all-reduce at least the buffer once, where the NVLink switch adds up."""
    sent = traffic(use, bytes_, ranks)
    return np.minimum(sent, bytes_) if use.gpu.nvlink_bandwidth else sent


def nccl_time(use: Use, bytes_: Array, ranks: Array, bandwidth: Array, p: Mapping[str, float]) -> tuple[Array, Array]:
    """[n] seconds in NCCL, and those of them on the link."""
    sent = traffic(use, bytes_, ranks)
    hops = (ranks - 1) * use.menus["passes"][0]
    direct = "direct" in use.menus
    joined = p["overlap_exponent"]
    thin = bytes_ / ranks if direct else sent  # to each peer over a connection of its own
    fast = smooth_maximum((p["fast_us"] + p["fast_hop_us"] * hops) * MICROSECOND, thin / (bandwidth * p["fast_efficiency"]), joined)
    wire = sent / (bandwidth * p["efficiency"])
    moved = wire + bytes_ / ranks / (p["local_GBps"] * GB)
    simple = smooth_maximum((p["simple_us"] + p["simple_hop_us"] * hops) * MICROSECOND, moved, joined)
    if "in_switch" in use.menus and use.gpu.nvlink_bandwidth:
        switched = p["in_switch_us"] * MICROSECOND + bytes_ / (bandwidth * p["in_switch_efficiency"])
        simple = np.where(ranks >= use.menus["in_switch"][0], np.minimum(simple, switched), simple)
    fast = smooth_minimum(fast, simple)
    if direct:
        return fast, wire
    limit = p["switch_MiB"] * MIB * (ranks / 2) ** p["switch_growth"]
    later = 1.0 / (1.0 + (limit / bytes_) ** SHARPNESS)
    return np.exp((1.0 - later) * np.log(fast) + later * np.log(simple)), wire


def own_time(use: Use, bytes_: Array, ranks: Array, bandwidth: Array, p: Mapping[str, float]) -> Array:
    """[n] seconds in a kernel of the framework's own: one-shot below the menu `one_shot_KiB` and two-shot above, or the faster."""
    peers = np.maximum(ranks - 1, 1.0)
    start = (p["own_us"] + p["own_hop_us"] * peers) * MICROSECOND
    one = start + peers * bytes_ / (bandwidth * np.minimum(p["own_efficiency"], p["peer_efficiency"] * peers))
    second = (p["two_shot_us"] + p["two_shot_hop_us"] * peers) * MICROSECOND
    two = start + second + 2.0 * peers / ranks * bytes_ / (bandwidth * p["two_shot_efficiency"])
    if "one_shot_KiB" not in use.menus:
        return smooth_minimum(one, two)
    return np.where(bytes_ < by_ranks(use, "one_shot_KiB", ranks) * KIB, one, two)


def smooth_minimum(a: Array, b: Array) -> Array:
    """[n] the lesser of two times, rounded off where they are alike."""
    return (a**-8.0 + b**-8.0) ** (-1.0 / 8.0)


COLLECTIVES = Op(
    "collectives",
    ("bytes", "ranks", "eager"),
    "bytes",
    ("passes", "direct", "in_switch", "own_KiB", "one_shot_KiB", "symmetric_KiB"),
    PARAMETERS,
    collective_time,
    needs=(("passes",),),
    by_ranks=("own_KiB", "one_shot_KiB", "symmetric_KiB"),
    scarce=True,
)
