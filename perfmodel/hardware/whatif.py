"""What-ifs: what follows from a changed clock, SM count, rate or peak, so that the facts still agree with each other."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.hardware.checks import implied_tflops
from perfmodel.hardware.fields import Change, field_value
from perfmodel.hardware.parts import MATH_TYPES, PerMathType, VectorTflops
from perfmodel.hardware.quantity import Quantity
from perfmodel.hardware.spec import GpuSpec

PEAK, RATE, SPARSE = "compute.dense_tflops.", "compute.flop_per_clock_per_sm.", "compute.sparse_tflops."
SMS, BOOST, TENSOR = "compute.sm_count", "clock.boost_MHz", "clock.tensor_peak_MHz"
DRIVERS = (PEAK, RATE, SMS, BOOST, TENSOR)
"""Beginnings of the paths whose change has consequences."""


def consequences(gpu: GpuSpec, changes: Sequence[Change]) -> tuple[list[Change], list[str]]:
    """What else changes on `gpu` when `changes` are made, with status `derived`, and a sentence on each for the reader.

    - Boost moves the clock of the tensor peaks in proportion; clocks that would be above boost come down to it.
    - SMs, that clock and FLOP/clock/SM scale the dense and sparse peaks; SMs and boost the vector peaks.
    - A peak set alone scales FLOP/clock/SM. Set together with SMs, clock or rate it stands as given, and the 3 % check judges it.
    """
    # Values that validation will refuse have no consequences, so that it names them and not what follows from them.
    given = {c.path: float(c.value) for c in changes if isinstance(c.value, int | float) and c.value > 0}
    derived = _clocks(gpu, given)
    now = given | {c.path: float(c.value) for c in derived if isinstance(c.value, int | float)}
    sms = _ratio(now, SMS, gpu.compute.sm_count)
    scale = sms * _ratio(now, TENSOR, gpu.clock.tensor_peak_MHz)
    for math_type in MATH_TYPES:
        derived += _peaks(gpu, math_type, now, scale)
    derived += _vector_peaks(gpu, given, sms * _ratio(now, BOOST, gpu.clock.boost_MHz))
    return derived, _sentences(gpu, derived)


def _clocks(gpu: GpuSpec, given: dict[str, float]) -> list[Change]:
    if BOOST not in given:
        return []
    boost, changes = given[BOOST], []
    if TENSOR not in given:
        changes.append(
            _derived(TENSOR, gpu.clock.tensor_peak_MHz.value * boost / gpu.clock.boost_MHz.value, "in proportion to clock.boost_MHz")
        )
    for name in ("base_MHz", "sustained_MHz"):
        clock: Quantity | None = getattr(gpu.clock, name)
        if clock is not None and clock.value > boost and f"clock.{name}" not in given:
            changes.append(_derived(f"clock.{name}", boost, "held to clock.boost_MHz"))
    return changes


def _peaks(gpu: GpuSpec, math_type: str, now: dict[str, float], scale: float) -> list[Change]:
    peak, rate = _value(gpu.compute.dense_tflops, math_type), _value(gpu.compute.flop_per_clock_per_sm, math_type)
    peak_path, rate_path = PEAK + math_type, RATE + math_type
    factor = scale * (now[rate_path] / rate if rate and rate_path in now else 1.0)
    if peak_path in now:
        if factor != 1.0 or rate_path in now:  # not alone: the check judges it
            return []
        return _after_peak(gpu, math_type, peak, rate, now[peak_path])
    if peak is None:
        return _new_type(gpu, math_type, now)
    if factor == 1.0:
        return []
    return [_derived(peak_path, peak * factor, "in proportion to SMs, clock and rate"), *_sparse(gpu, math_type, factor, now)]


def _after_peak(gpu: GpuSpec, math_type: str, peak: float | None, rate: float | None, new: float) -> list[Change]:
    """A peak set alone: the rate follows, and so does the sparse peak."""
    if peak is None or rate is None:
        per_rate = implied_tflops(1.0, gpu.sm_count, gpu.clock.tensor_peak_MHz.value)
        return [_derived(RATE + math_type, new / per_rate, f"from {PEAK}{math_type}")]
    if new == peak:
        return []
    return [_derived(RATE + math_type, rate * new / peak, "in proportion to the dense peak"), *_sparse(gpu, math_type, new / peak, {})]


def _new_type(gpu: GpuSpec, math_type: str, now: dict[str, float]) -> list[Change]:
    """A rate for an arithmetic type that the GPU did not have brings its peak."""
    if RATE + math_type not in now:
        return []
    sms, clock = now.get(SMS, gpu.sm_count), now.get(TENSOR, gpu.clock.tensor_peak_MHz.value)
    return [_derived(PEAK + math_type, implied_tflops(now[RATE + math_type], int(sms), clock), f"from {RATE}{math_type}")]


def _sparse(gpu: GpuSpec, math_type: str, factor: float, now: dict[str, float]) -> list[Change]:
    sparse = _value(gpu.compute.sparse_tflops, math_type)
    if sparse is None or SPARSE + math_type in now:
        return []
    return [_derived(SPARSE + math_type, sparse * factor, "in proportion to the dense peak")]


def _vector_peaks(gpu: GpuSpec, given: dict[str, float], factor: float) -> list[Change]:
    if factor == 1.0 or gpu.compute.vector_tflops is None:
        return []
    known = {f"compute.vector_tflops.{t}": _value(gpu.compute.vector_tflops, t) for t in VectorTflops.model_fields}
    return [_derived(p, v * factor, "in proportion to SMs and boost clock") for p, v in known.items() if v is not None and p not in given]


def _ratio(now: dict[str, float], path: str, old: Quantity) -> float:
    return now.get(path, old.value) / old.value


def _value(section: PerMathType[Quantity] | VectorTflops | None, name: str) -> float | None:
    quantity: Quantity | None = getattr(section, name, None)
    return None if quantity is None else quantity.value


def _derived(path: str, value: float, why: str) -> Change:
    return Change(path, float(f"{value:.6g}"), why, "derived")


def _sentences(gpu: GpuSpec, changes: Sequence[Change]) -> list[str]:
    """One sentence for the fields of a section that changed for the same reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        section, _, name = change.path.rpartition(".")
        groups.setdefault((section, change.source), []).append(f"{name} {_old(gpu, change)} -> {change.value:g}")
    return [f"{section}: {', '.join(moves)} ({why})" for (section, why), moves in groups.items()]


def _old(gpu: GpuSpec, change: Change) -> str:
    old = field_value(gpu, change.path)
    return f"{old.value:g}" if isinstance(old, Quantity) else "absent"
