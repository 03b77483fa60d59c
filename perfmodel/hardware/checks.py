"""Do the facts of a file agree with each other? Each check returns the first contradiction as a sentence, or None."""

from __future__ import annotations

from perfmodel.hardware.parts import Clock, Compute, Memory, Sm

TOLERANCE = 0.03
"""Datasheets round their peaks to three figures and their clocks to 5 MHz."""


def contradiction(compute: Compute, clock: Clock, memory: Memory, sm: Sm) -> str | None:
    """The first contradiction between the sections of a specification, with its mend; None where they agree."""
    return _peaks(compute, clock) or _clocks(clock) or _memory(memory) or _sm(sm)


def expected_tflops(flop_per_clock_per_sm: float, sm_count: int, clock_MHz: float) -> float:
    """Dense peak in TFLOP/s that rate, SMs and clock (MHz) imply."""
    return flop_per_clock_per_sm * sm_count * clock_MHz * 1e-6


def _peaks(compute: Compute, clock: Clock) -> str | None:
    peaks = {math_type: peak.value for math_type, peak in compute.dense_tflops if peak is not None}
    if not peaks:
        return "compute.dense_tflops is empty: give the dense peak of at least one arithmetic type"
    for math_type, reason in compute.peak_exceptions.items():
        if math_type not in peaks or len(reason.strip()) < 10:
            return f"compute.peak_exceptions.{math_type}: name a type of compute.dense_tflops and give the reason in words"
    checked = (_peak(compute, clock, math_type, peak) for math_type, peak in peaks.items() if math_type not in compute.peak_exceptions)
    return next((problem for problem in checked if problem), None)


def _peak(compute: Compute, clock: Clock, math_type: str, peak: float) -> str | None:
    field, reason = f"compute.dense_tflops.{math_type}", f"compute.peak_exceptions.{math_type}"
    rate_field = f"compute.flop_per_clock_per_sm.{math_type}"
    rate, sms, clock_MHz = getattr(compute.flop_per_clock_per_sm, math_type), compute.sm_count.value, clock.tensor_peak_MHz.value
    if rate is None:
        return f"{field} cannot be checked: add {rate_field}, or a reason as {reason}"
    implied = expected_tflops(rate.value, sms, clock_MHz)
    if abs(peak / implied - 1) <= TOLERANCE:
        return None
    return (
        f"{field} = {peak:g} contradicts {rate.value:g} FLOP/clock/SM x {sms} SMs x {clock_MHz:g} MHz = {implied:.5g}: set it to {implied:.5g}, "
        f"or change {rate_field}, compute.sm_count or clock.tensor_peak_MHz with it, or give a reason as {reason}"
    )


def _clocks(clock: Clock) -> str | None:
    boost = clock.boost_MHz.value
    for name in ("base_MHz", "tensor_peak_MHz", "sustained_MHz"):
        quantity = getattr(clock, name)
        if quantity is not None and quantity.value > boost:
            return f"clock.{name} = {quantity.value:g} is above clock.boost_MHz = {boost:g}: lower it, or raise clock.boost_MHz"
    return None


def _memory(memory: Memory) -> str | None:
    read = memory.measured_read_GBps
    if read is not None and read.value > memory.bandwidth_GBps.value:
        return (
            f"memory.measured_read_GBps = {read.value:g} is above memory.bandwidth_GBps = {memory.bandwidth_GBps.value:g}: "
            "a measured read cannot exceed the peak"
        )
    return None


def _sm(sm: Sm) -> str | None:
    if sm.shared_memory_per_block_KiB.value > sm.shared_memory_KiB.value:
        return "sm.shared_memory_per_block_KiB is above sm.shared_memory_KiB: one block cannot have more than the SM"
    if sm.max_threads.value != 32 * sm.max_warps.value:
        return f"sm.max_threads = {sm.max_threads.value} is not 32 x sm.max_warps = {sm.max_warps.value}: a warp has 32 threads"
    return None
