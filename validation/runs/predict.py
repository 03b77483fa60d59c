"""What the model says of a run: time with its interval and floor, and DRAM bytes. Nothing measured goes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec, load_gpu
from perfmodel.latency import predict_grouped_gemm, predict_layers
from perfmodel.ops.dram import Grouped, traffic
from perfmodel.ops.launch import launch_modes
from perfmodel.ops.machine import Machine
from perfmodel.profiles import Profile
from perfmodel.scenario import resolve
from perfmodel.units import MICROSECOND
from perfmodel.validation.measurements import Floats
from perfmodel.validation.runs.case import Case

SUSTAINED_S = 1.0
"""Held for so long, tensor work runs at the clock that the power allows."""
QUANTISE_BYTES = 3.0
"""Of an activation that is quantised in a launch of its own: bf16 read, E4M3 written."""
LAUNCH = "graph"
NOT_COVERED = ("kernel", "tile", "FORMAT")
"""What a refusal names where a profile, or the GPU itself, does not run the case."""
SIZES = ("experts", "tokens", "n", "k", "tokens_per_expert", "topk", "hidden", "inter")
"""Of a case."""


@dataclass(frozen=True)
class Predicted:
    """Seconds: prediction, floor under it, 80 % interval."""

    latency: float
    floor: float
    low: float
    high: float


def predict(cases: Sequence[Case]) -> list[Predicted | None]:
    """The time of each case; None where no profile covers its kernel, format, tile or GPU. Cases of one kernel are asked together."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, case in enumerate(cases):
        words = (case.gpu, case.kind, case.profile, case.tile, case.format, case.routing, _is_held(case))
        alike.setdefault(words, []).append(place)
    out: list[Predicted | None] = [None] * len(cases)
    for places in alike.values():
        for place, answer in zip(places, _alike([cases[place] for place in places]), strict=True):
            out[place] = answer
    return out


def _alike(cases: Sequence[Case]) -> Sequence[Predicted | None]:
    """Predictions of cases that differ in sizes alone."""
    found = _answer(cases)
    return [None] * len(cases) if isinstance(found, str) else found


def why_not(case: Case) -> str | None:
    """Why there is no prediction of a case; None where there is one."""
    found = _answer([case])
    return found if isinstance(found, str) else None


def _answer(cases: Sequence[Case]) -> list[Predicted] | str:
    """Predictions of cases that differ in sizes alone, or why there are none."""
    first = cases[0]
    if first.gpu is None or first.profile is None:
        return "the GPU is not in the catalogue" if first.gpu is None else "the kernel has no profile"
    try:
        return (_layers if first.kind == "layer" else _gemms)(cases, _gpu(first.gpu), first.profile)
    except PerfModelError as error:
        if error.field in NOT_COVERED:
            return f"{first.profile} in {first.format}: {error.problem}"
        raise


@lru_cache(maxsize=32)
def _gpu(name: str) -> GpuSpec:
    """A GPU of the catalogue, read once."""
    return load_gpu(name)


def _is_held(case: Case) -> bool:
    return case.hold_s is not None and case.hold_s >= SUSTAINED_S


def predict_dram(case: Case) -> float | None:
    """DRAM bytes read and written by a grouped GEMM that finds nothing in L2; None where its tile is not known."""
    if case.gpu is None or case.profile is None or case.kind == "layer" or case.tile is None:
        return None
    try:
        scenario = resolve(_gpu(case.gpu), case.format, case.profile)
        machine = scenario.machine(scenario.profiles[0])
        menu = machine.tiles.only(case.tile)
    except PerfModelError as error:
        if error.field in NOT_COVERED:
            return None
        raise
    gemm = Grouped(
        case.experts, case.n, case.k, case.tokens_per_expert, case.tile, menu.n[0],
        weight_bytes=machine.weight_bytes + machine.scale_bytes, act_bytes=machine.act_bytes, order=menu.order,
    )  # fmt: skip
    quantised = case.tokens * case.k * QUANTISE_BYTES if machine.quantises else 0.0
    return traffic(gemm, machine.sm_count, scenario.gpu.l2_capacity).total + quantised


def quantise_time(tokens: Floats, k: Floats, machine: Machine) -> Floats:
    """[n] seconds of the launch that quantises activations [tokens, k] before a grouped GEMM of 8-bit ones; 0 for 16-bit ones."""
    if not machine.quantises:
        return np.zeros_like(tokens)
    moved: Floats = tokens * k * QUANTISE_BYTES / (machine.bandwidth * machine.activation_bandwidth)
    return moved + launch_modes()[LAUNCH].gap_us * MICROSECOND


def _gemms(cases: Sequence[Case], gpu: GpuSpec, profile: str) -> list[Predicted]:
    """Grouped GEMMs with the tile that ran and, where activations are 8 bits wide, the launch that quantises them."""
    first, sizes = cases[0], _columns(cases)
    answer = predict_grouped_gemm(
        gpu, profile, first.format, tile=first.tile, clock="sustained" if _is_held(first) else "burst",
        experts=sizes["experts"], n=sizes["n"], k=sizes["k"], tokens_per_expert=sizes["tokens_per_expert"],
    )  # fmt: skip
    scenario = resolve(gpu, first.format, profile)
    before = quantise_time(sizes["tokens"], sizes["k"], scenario.machine(scenario.profiles[0]))
    longer = (answer.latency + before) / answer.latency
    return _rows(answer.latency * longer, answer.floor, answer.low * longer, answer.high * longer)


def _layers(cases: Sequence[Case], gpu: GpuSpec, profile: str) -> list[Predicted]:
    """Whole layers; with the tile that ran, where both GEMMs have the same."""
    first, sizes = cases[0], _columns(cases)
    scenario = resolve(gpu, first.format, profile, routing=first.routing, launch=LAUNCH)
    if first.tile is not None:
        scenario = replace(scenario, profiles=(_with_tile(scenario.profiles[0], first.tile),))
    columns = {name: sizes[name] for name in ("tokens", "hidden", "inter", "experts", "topk")}
    answer = predict_layers(scenario, columns | {"tp": np.ones(len(cases)), "ep": np.ones(len(cases))})
    return _rows(answer.latency, answer.floor, answer.low, answer.high)


def _columns(cases: Sequence[Case]) -> dict[str, Floats]:
    return {name: np.array([getattr(case, name) for case in cases], float) for name in SIZES}


def _rows(*columns: Floats) -> list[Predicted]:
    return [Predicted(*map(float, row)) for row in zip(*columns, strict=True)]


def _with_tile(profile: Profile, rows: int) -> Profile:
    """The profile with this tile alone, in the fits that have it; unchanged where none has."""
    fits = [fit.model_copy(update={"tiles": fit.tiles.only(rows)}) for fit in profile.fits if rows in fit.tiles.m]
    return profile.model_copy(update={"fits": tuple(fits or profile.fits)})
