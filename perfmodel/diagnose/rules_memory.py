"""Causes in memory: DRAM, the caches, what is moved for nothing."""

from __future__ import annotations

from perfmodel.diagnose.bounds import LABELS
from perfmodel.diagnose.counters import dram_bytes
from perfmodel.diagnose.facts import Facts, Finding, dram_time, moved, percent, to_reach, with_less
from perfmodel.diagnose.thresholds import threshold
from perfmodel.units import MB


def dram_near_peak(f: Facts) -> Finding | None:
    """DRAM bounds, at its peak."""
    if f.bound.unit != "dram" or not f.bound.near:
        return None
    return Finding(
        "DRAM near its peak",
        f"{percent(f.bound.busy)} of the DRAM bandwidth{moved(f)}",
        "move fewer bytes: fewer bits a weight, more tokens per expert, fuse with neighbours; the same bytes cannot move much faster",
        f.time - dram_time(f),
    )


def dram_not_reached(f: Facts) -> Finding | None:
    """DRAM is the busiest unit and could give more."""
    if f.bound.unit != "dram" or f.bound.kind != "memory" or f.bound.near:
        return None
    return Finding(
        "DRAM bandwidth not reached",
        f"{percent(f.bound.busy)} of the DRAM bandwidth{moved(f)}, and no other unit is nearer its peak",
        "more bytes in flight: wider loads, more loads before their first use, asynchronous copies in more stages, a CTA for every SM",
        f.time - dram_time(f),
    )


def read_again(f: Facts) -> Finding | None:
    """More DRAM bytes than every operand once."""
    total = dram_bytes(f.counters)
    if f.expected is None or not f.expected.bytes or total is None or total < threshold("again") * f.expected.bytes:
        return None
    saves = with_less(f, f.expected.bytes / total, "dram") if f.bound.unit == "dram" and f.bound.kind == "memory" else None
    return Finding(
        "bytes moved more than once",
        f"{total / MB:,.1f} MB of DRAM where every operand once is {f.expected.bytes / MB:,.1f} MB",
        "an order of tiles that reuses operands while L2 holds them, larger tiles",
        saves,
    )


def cache_bound(f: Facts) -> Finding | None:
    """L2 or L1 bounds."""
    if f.bound.unit not in ("l2", "l1") or f.bound.kind != "memory":
        return None
    return Finding(
        f"{LABELS[f.bound.unit]} busiest",
        f"{LABELS[f.bound.unit]} at {percent(f.bound.busy)}, DRAM at {percent(f.bound.use.get('dram', 0.0))}",
        "larger tiles or multicast, so that each byte is fetched fewer times; whole sectors where accesses are uncoalesced",
        to_reach(f),
    )


def uncoalesced(f: Facts) -> Finding | None:
    """Sectors are fetched of which little is used."""
    c = f.counters
    if not c.get("sectors") or "sectors_ideal" not in c or f.bound.kind == "compute":
        return None
    needed = c["sectors_ideal"] / c["sectors"]
    if needed > threshold("coalesced"):
        return None
    return Finding(
        "uncoalesced accesses",
        f"{c['sectors']:,.0f} sectors of 32 B where {c['sectors_ideal']:,.0f} would do: {percent(needed)} of what moves is used",
        "neighbouring threads on neighbouring addresses: another layout, a transpose through shared memory, structures of arrays",
        with_less(f, needed, "dram", "l2", "l1"),
    )


def conflicts(f: Facts) -> Finding | None:
    """Bank conflicts."""
    c = f.counters
    if not c.get("wavefronts") or "wavefronts_ideal" not in c or c["wavefronts_ideal"] / c["wavefronts"] > threshold("conflicts"):
        return None
    return Finding(
        "bank conflicts in shared memory",
        f"{c['wavefronts']:,.0f} wavefronts where {c['wavefronts_ideal']:,.0f} would do",
        "pad or swizzle the rows in shared memory",
        to_reach(f) if f.bound.unit == "l1" else None,
    )


def spills(f: Facts) -> Finding | None:
    """Registers spilled to local memory."""
    count = f.counters.get("spills", 0.0)
    if not count:
        return None
    return Finding(
        "registers spilled",
        f"{count:,.0f} requests to local memory",
        "fewer live values: smaller tiles, launch bounds that allow more registers",
    )
