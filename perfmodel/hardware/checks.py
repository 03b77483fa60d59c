"""Do the facts of a file agree with each other?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from perfmodel.hardware.parts import Clock, Compute, Sm
from perfmodel.hardware.quantity import Quantity

TOLERANCE = 0.03
"""Datasheets round their peaks to three figures and their clocks to 5 MHz."""


class Contradiction(NamedTuple):
    """A field that does not agree with the others."""

    field: str
    problem: str
    mend: str


def contradictions(compute: Compute, clock: Clock, sm: Sm) -> Iterator[Contradiction]:
    """Every contradiction between the sections of a specification."""
    yield from _peaks(compute, clock)
    yield from _clocks(clock)
    yield from _sm(sm)


def implied_tflops(flop_per_clock_per_sm: float, sm_count: int, clock_MHz: float) -> float:
    """Dense peak in TFLOP/s that rate, SMs and clock (MHz) imply."""
    return flop_per_clock_per_sm * sm_count * clock_MHz * 1e-6


def _peaks(compute: Compute, clock: Clock) -> Iterator[Contradiction]:
    peaks: dict[str, Quantity] = {t: peak for t, peak in compute.dense_tflops if peak is not None}
    reasons: dict[str, str] = {t: reason for t, reason in compute.peak_exceptions if reason is not None}
    if not peaks:
        yield Contradiction("compute.dense_tflops", "holds no peak", "Give the dense peak of at least one arithmetic type.")
    for math_type, reason in reasons.items():
        if math_type not in peaks or len(reason.split()) < 3:
            mend = "Name a type that compute.dense_tflops has, and say why its peak differs in a few words."
            yield Contradiction(f"compute.peak_exceptions.{math_type}", "excuses nothing", mend)
    for math_type, peak in peaks.items():
        if math_type not in reasons:
            yield from _peak(compute, clock, math_type, peak.value)


def _peak(compute: Compute, clock: Clock, math_type: str, peak: float) -> Iterator[Contradiction]:
    """The 3 % check: peak = FLOP/clock/SM x SMs x the clock that the datasheet assumes."""
    field, reason = f"compute.dense_tflops.{math_type}", f"compute.peak_exceptions.{math_type}"
    rate_field = f"compute.flop_per_clock_per_sm.{math_type}"
    rate: Quantity | None = getattr(compute.flop_per_clock_per_sm, math_type)
    if rate is None:
        yield Contradiction(field, "cannot be checked", f"Add {rate_field}, or a reason as {reason}.")
        return
    sms, clock_MHz = compute.sm_count.value, clock.tensor_peak_MHz.value
    implied = implied_tflops(rate.value, sms, clock_MHz)
    if abs(peak / implied - 1) > TOLERANCE:
        problem = f"{peak:g} contradicts {rate.value:g} FLOP/clock/SM x {sms} SMs x {clock_MHz:g} MHz = {implied:.5g}"
        mend = (
            f"Set {implied:.5g}, or change {rate_field}, compute.sm_count or clock.tensor_peak_MHz with it, or give a reason as {reason}."
        )
        yield Contradiction(field, problem, mend)


def _clocks(clock: Clock) -> Iterator[Contradiction]:
    boost = clock.boost_MHz.value
    for name in ("base_MHz", "tensor_peak_MHz", "sustained_MHz"):
        quantity: Quantity | None = getattr(clock, name)
        if quantity is not None and quantity.value > boost:
            yield Contradiction(
                f"clock.{name}", f"{quantity.value:g} is above clock.boost_MHz = {boost:g}", "Lower it, or raise clock.boost_MHz."
            )


def _sm(sm: Sm) -> Iterator[Contradiction]:
    block, whole = sm.shared_memory_per_block_KiB.value, sm.shared_memory_KiB.value
    if block > whole:
        yield Contradiction("sm.shared_memory_per_block_KiB", f"{block:g} is above sm.shared_memory_KiB = {whole:g}", "Lower it.")
    threads, warps = sm.max_threads.value, sm.max_warps.value
    if threads != 32 * warps:
        yield Contradiction("sm.max_threads", f"{threads} is not 32 x sm.max_warps = {32 * warps}", "A warp has 32 threads: set both.")
