"""Causes of waiting: launches, idle SMs, tails, too few warps or loads in flight, atomics."""

from __future__ import annotations

import math

from perfmodel.diagnose.bounds import active
from perfmodel.diagnose.counters import stalls
from perfmodel.diagnose.facts import Facts, Finding, percent, to_reach
from perfmodel.diagnose.thresholds import threshold
from perfmodel.ops.launch import launch_modes
from perfmodel.units import MICROSECOND


def short(f: Facts) -> Finding | None:
    """The kernel is shorter than a launch."""
    if f.time >= threshold("short_kernel_us") * MICROSECOND:
        return None
    return Finding(
        "shorter than its launch",
        f"{f.time / MICROSECOND:.1f} us, where a launch takes about {launch_modes()['eager'].gap_us:.0f} us without a graph",
        "a CUDA graph, programmatic dependent launch, or fusing it into a neighbour",
    )


def idle_sms(f: Facts) -> Finding | None:
    """SMs without a warp for part of the time: too few CTAs, a tail, uneven CTAs, filling and draining."""
    c = f.counters
    share = active(c, 1.0)
    if share >= threshold("sm_active"):
        return None
    lost, busy = f.time * (1 - share), f"the mean SM is active {percent(share)} of the time"
    grid, sms, waves = c.get("grid"), c.get("sms"), c.get("waves", 0.0)
    if grid is not None and sms and grid < sms:
        return Finding(
            "too few CTAs",
            f"{grid:.0f} CTAs for {sms:.0f} SMs; {busy}",
            "smaller tiles, a split along K, more tokens a call, or running beside another kernel",
            lost,
        )
    if waves > 1 and waves / math.ceil(waves) < threshold("tail"):
        return _tail_wave(waves, f"; {busy}", lost)
    return Finding(
        "SMs idle at the start or the end",
        busy,
        "CTAs of equal work, the longest first; a prologue that overlaps the kernel before (programmatic dependent launch); longer kernels",
        lost,
    )


def tail(f: Facts) -> Finding | None:
    """A last wave that is not full, where how long SMs are active was not counted."""
    waves = f.counters.get("waves", 0.0)
    if "sm_active" in f.counters or waves <= 1 or waves / math.ceil(waves) >= threshold("tail"):
        return None
    return _tail_wave(waves, "", f.time * (1 - waves / math.ceil(waves)))


def _tail_wave(waves: float, also: str, lost: float) -> Finding:
    return Finding(
        "tail wave",
        f"{waves:.2f} waves take the time of {math.ceil(waves)}{also}",
        "a persistent kernel, stream-K, tiles that fill whole waves",
        lost,
    )


def low_occupancy(f: Facts) -> Finding | None:
    """Too few warps to hide latency, in a kernel that latency bounds."""
    limit = f.counters.get("occupancy_limit")
    if f.bound.kind != "latency" or limit is None or limit > threshold("occupancy_low"):
        return None
    limits = {what: f.counters[f"limit_{what}"] for what in ("registers", "shared", "warps") if f"limit_{what}" in f.counters}
    least = [what for what, value in limits.items() if value == min(limits.values())]
    words = {"registers": "registers", "shared": "shared memory", "warps": "the size of the CTA"}
    by = f", limited by {' and '.join(words[what] for what in least)}" if least else ""
    return Finding(
        "low occupancy",
        f"at most {percent(limit)} of the warps fit{by}, and no unit is busier than {percent(f.bound.busy)}",
        "fewer registers or less shared memory a CTA, smaller CTAs; or more independent work a warp (asynchronous copies, unrolling)",
        to_reach(f),
    )


def waiting(f: Facts) -> Finding | None:
    """Warps of a latency-bound kernel wait for one thing above all."""
    shares = stalls(f.counters)
    if f.bound.kind != "latency" or not shares:
        return None
    reason = max(shares, key=lambda name: shares[name])
    if shares[reason] < threshold("stall") or reason not in WAITS:
        return None
    what, cure = WAITS[reason]
    return Finding(f"warps wait for {what}", f"{percent(shares[reason])} of the cycles between instructions", cure, to_reach(f))


WAITS = {
    "long_scoreboard": ("memory", "more loads in flight: unroll, load ahead into shared memory, wider loads; fewer dependent loads"),
    "short_scoreboard": ("shared memory or special functions", "fewer of them, or more independent work between request and use"),
    "barrier": ("other warps at a barrier", "smaller CTAs, fewer barriers, named barriers between the warps that exchange data"),
    "gmma": ("tensor cores", "more wgmma in flight before a wait"),
    "no_instruction": ("instructions", "less code: less unrolling, shorter kernels are dominated by the first fetch"),
    "wait": ("fixed latencies", "more independent instructions a warp, more warps"),
}  # fmt: skip
"""Stall reason -> what warps wait for, and the cure."""


def atomics(f: Facts) -> Finding | None:
    """Reductions to few addresses stand in line at L2."""
    c = f.counters
    count = c.get("reductions", 0.0) + c.get("atomics", 0.0)
    waits = stalls(c).get("long_scoreboard", 0.0) >= threshold("stall")
    if f.bound.kind != "latency" or not waits or not c.get("sectors") or count < threshold("atomic_share") * c["sectors"]:
        return None
    return Finding(
        "atomics stand in line",
        f"{count:,.0f} sectors of atomics among {c['sectors']:,.0f} sectors, with every unit under {percent(threshold('latency_below'))}",
        "add up in registers and shared memory first, one atomic a CTA; spread the addresses",
        to_reach(f),
    )


def slower_than_model(f: Facts) -> Finding | None:
    """The model, fitted on kernels of its kind, expects less."""
    if f.expected is None or f.time < threshold("slower") * f.expected.seconds:
        return None
    return Finding(
        "slower than the model expects",
        f"{f.time / MICROSECOND:,.1f} us where {f.expected.op} is predicted to take {f.expected.seconds / MICROSECOND:,.1f}",
        "see the other causes; check that the scenario is what ran (format, tokens, ranks); try another kernel",
        f.time - f.expected.seconds,
    )
