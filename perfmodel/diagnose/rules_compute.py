"""Causes in the compute units: the tensor pipe, instructions, the clock."""

from __future__ import annotations

from perfmodel.diagnose.facts import Facts, Finding, percent, to_reach
from perfmodel.diagnose.thresholds import threshold
from perfmodel.units import MHZ, MICROSECOND

PRODUCTS = ("grouped_gemm", "dense_gemm", "attention")
"""Kinds of kernels that multiply matrices."""


def tensor_near_peak(f: Facts) -> Finding | None:
    """The tensor pipe bounds."""
    if f.bound.unit != "tensor" or f.bound.kind != "compute":
        return None
    near = f.bound.near
    return Finding(
        "tensor pipe near its peak" if near else "tensor pipe waits at times",
        f"busy {percent(f.bound.busy)} of the cycles",
        "fewer or cheaper operations: FP8 or FP4 where the GPU has the units, no padding; the same operations cannot run much faster"
        if near
        else "deeper pipelines, larger tiles, dequantisation beside the products instead of between them",
        to_reach(f),
    )


def pipes_busy(f: Facts) -> Finding | None:
    """Instructions bound, not the tensor pipe."""
    if f.bound.unit != "compute" or f.bound.kind != "compute":
        return None
    if "tensor" not in f.bound.use and f.kind in PRODUCTS:
        which, cure = "; which one was not counted, likely the tensor pipe", "see the raw page, which has the tensor pipe"
    else:
        which = f"; the tensor pipe {percent(f.bound.use['tensor'])}" if "tensor" in f.bound.use else ""
        cure = "fewer instructions an element: vector loads, packed arithmetic, cheaper conversions, tables instead of special functions"
    evidence = f"the busiest pipe works {percent(f.bound.busy)} of the cycles{which}"
    return Finding("SM pipes busy", evidence, cure, to_reach(f))


def tensor_idle(f: Facts) -> Finding | None:
    """A matrix product without tensor cores."""
    long = f.time > threshold("short_kernel_us") * MICROSECOND
    if f.kind not in PRODUCTS or not long or f.bound.use.get("tensor", 1.0) >= threshold("tensor_idle"):
        return None
    return Finding(
        "tensor pipe idle",
        f"a matrix product with the tensor pipe busy {percent(f.bound.use['tensor'])} of the cycles",
        "a kernel that uses the tensor cores: check types, alignment of the sizes, and that TF32 is allowed for fp32",
    )


def divergence(f: Facts) -> Finding | None:
    """Threads of a warp take different branches."""
    threads = f.counters.get("threads", 32.0)
    if threads >= threshold("threads"):
        return None
    return Finding(
        "threads diverge",
        f"{threads:.0f} of 32 threads run an instruction, on the mean",
        "let whole warps take a branch; whole warps of work",
    )


def clock(f: Facts) -> Finding | None:
    """The clock is under that of the peak, in a kernel that compute bounds."""
    if f.gpu is None or f.bound.kind != "compute" or "sm_clock" not in f.counters:
        return None
    full = f.gpu.tensor_peak_clock if f.bound.unit == "tensor" or f.kind in PRODUCTS else f.gpu.boost_clock
    share = f.counters["sm_clock"] / full
    if share >= threshold("clock_low"):
        return None
    return Finding(
        "low clock",
        f"{f.counters['sm_clock'] / MHZ:,.0f} MHz where the peak assumes {full / MHZ:,.0f}",
        "power or heat limit the clock (or ncu held it: --clock-control none): fewer bytes and toggles, a higher power limit",
        f.time * (1 - share),
    )
