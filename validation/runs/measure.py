"""Measuring a suite point by point: predict, measure, store at once; go on where the last run was stopped."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from perfmodel.errors import MissingRequirementError, PerfModelError
from perfmodel.hardware.devices import gpu_of
from perfmodel.kernels import tiles
from perfmodel.kernels.tiles import Tile
from perfmodel.units import MICROSECOND
from perfmodel.validation.runs.kernels import named
from perfmodel.validation.runs.points import Choose, LayerPoint, Point
from perfmodel.validation.runs.predict import Predicted, predict, predict_dram, why_not
from perfmodel.validation.runs.record import Run
from perfmodel.validation.runs.store import Store
from perfmodel.validation.runs.work import gemm_work, layer_work
from perfmodel.validation.tile_choice import chooser
from perfmodel.workload.routing import Problem, busiest_load, parse_routing

MOST_FAILURES = 3
"""One after the other; then the GPU, or the installation, is broken."""
Verdict = Literal["measured", "there", "failed"]
Heard = Callable[[Point, Verdict, Run | None, str], None]


class Runner(Protocol):
    """What measures: a GPU, or a test's stand-in."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Device, driver, cuda, python, versions: `perfmodel.kernels.benchmark.device.provenance`."""

    def measure(self, point: Point, chosen: tuple[Tile, ...]) -> Mapping[str, Any]:
        """kernel, and the fields of a Run that were measured: us, ..., or counters. Raises PerfModelError or RuntimeError."""


@dataclass(frozen=True)
class Planned:
    """A point with the tiles that will run and what the model expects, before anything is measured."""

    point: Point
    tiles: tuple[Tile, ...]
    predicted: Predicted | None
    dram_bytes: float | None


@dataclass
class Outcome:
    """What became of the points."""

    run_id: str
    measured: list[Run] = field(default_factory=list)
    there: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Point and why."""


def plan(points: Sequence[Point], gpu: str | None, arch: str = "sm_90a") -> list[Planned]:
    """Tiles and predictions of each point, all of them before the first measurement; no predictions for a GPU that is not known."""
    choose: Choose = chooser(gpu) if gpu is not None else lambda problem: tiles.tile_for(problem.tokens, arch)
    chosen = [tuple(choose(problem) for problem in point.problems) for point in points]
    cases = [point.case(gpu, tile) for point, tile in zip(points, chosen, strict=True)]
    found = zip(points, chosen, predict(cases), map(predict_dram, cases), strict=True)
    return [Planned(*one) for one in found]


def unpredicted(planned: Sequence[Planned], gpu: str | None) -> dict[str, int]:
    """Why points have no prediction -> how many of them."""
    reasons = (why_not(one.point.case(gpu, one.tiles)) for one in planned if one.predicted is None)
    return dict(Counter(reason for reason in reasons if reason is not None))


def planned_json(one: Planned) -> dict[str, Any]:
    """A point with its prediction, microseconds."""
    times = one.predicted
    return {
        "point": one.point.name,
        "tiles": [f"{tile.kind} {tile.columns}" for tile in one.tiles],
        "predicted_us": None if times is None else times.latency / MICROSECOND,
        "interval_us": None if times is None else [times.low / MICROSECOND, times.high / MICROSECOND],
        "predicted_dram_bytes": one.dram_bytes,
    }


def measure(
    planned: Sequence[Planned],
    runner: Runner,
    store: Store,
    *,
    suite: str,
    commit: str | None,
    again: bool = False,
    counters: bool = False,
    heard: Heard = lambda point, verdict, run, why: None,
) -> Outcome:
    """Measure what the store does not hold of this device, commit and suite, or with `again` everything; each row is stored at once.

    A point that fails is passed over and reported. Raises PerfModelError after MOST_FAILURES in a row; an interrupt keeps what is stored.
    """
    outcome = Outcome(run_id=f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}")
    device = str(runner.about["device"])
    done = set() if again else store.done(device, commit, suite)
    failures = 0
    for one in planned:
        name = f"counters of {one.point.name}" if counters else one.point.name
        if name in done:
            outcome.there += 1
            heard(one.point, "there", None, "")
            continue
        measured = _measured(one, runner)
        if isinstance(measured, str):
            failures += 1
            outcome.failed.append((name, measured))
            heard(one.point, "failed", None, measured)
            if failures >= MOST_FAILURES:
                raise PerfModelError(f"{failures} points failed one after the other, the last: {measured}", mend="Mend that; then go on.")
            continue
        failures = 0
        run = as_run(one, measured, runner.about, name=name, suite=suite, commit=commit, run_id=outcome.run_id)
        store.add([run])
        outcome.measured.append(run)
        heard(one.point, "measured", run, "")
    return outcome


def _measured(one: Planned, runner: Runner) -> Mapping[str, Any] | str:
    """What the runner measured, or why it could not. What is missing on the machine is raised."""
    try:
        return runner.measure(one.point, one.tiles)
    except MissingRequirementError:
        raise
    except (PerfModelError, RuntimeError) as error:
        return " ".join(str(error).split())[:300]


def as_run(
    planned: Planned,
    measured: Mapping[str, Any],
    about: Mapping[str, Any],
    *,
    name: str,
    suite: str,
    commit: str | None,
    run_id: str,
) -> Run:
    """A row of the store: what was measured, on what, and what had been predicted."""
    point, predicted = planned.point, planned.predicted
    known = named(str(measured["kernel"]))
    data = {
        "run_id": run_id, "suite": suite, "point": name, "commit": commit, "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": about["device"], "gpu": gpu_of(str(about["device"])), "versions": json.dumps(about.get("versions", {}), sort_keys=True),
        "profile": known.profile, "ours": known.ours, "predicted_dram_bytes": planned.dram_bytes,
    }  # fmt: skip
    data |= {field: about.get(field) for field in ("driver", "cuda", "python")}
    data |= _shape(point)
    if predicted is not None:
        times = {"predicted_us": predicted.latency, "predicted_low_us": predicted.low, "predicted_high_us": predicted.high}
        data |= {field: seconds / MICROSECOND for field, seconds in times.items()}
    if "us" not in measured:
        data["hold_s"] = None
    return Run(**(data | dict(measured)))


def _shape(point: Point) -> dict[str, Any]:
    """Kind, sizes, routing and work of a point."""
    if isinstance(point, LayerPoint):
        active = active_experts(point.routing, point.experts, point.topk, point.tokens)
        work = layer_work(point.format, active, point.topk, point.hidden, point.inter, point.tokens)
        sizes = {name: getattr(point, name) for name in ("experts", "topk", "hidden", "inter", "tokens", "routing", "format", "hold_s")}
        return sizes | {"kind": "layer", "flop": work.flop, "bytes": work.bytes}
    tokens = point.experts * point.tokens_per_expert
    work = gemm_work(point.format, point.experts, point.n, point.k, tokens)
    sizes = {name: getattr(point, name) for name in ("experts", "n", "k", "tokens_per_expert", "format", "hold_s")}
    return sizes | {"kind": "grouped-gemm", "tokens": tokens, "flop": work.flop, "bytes": work.bytes}


def active_experts(routing: str, experts: int, topk: int, tokens: int) -> float:
    """Experts with tokens: expected ones where they are drawn."""
    sizes = (np.array([float(size)]) for size in (tokens, experts, topk, 1))
    load, _ = busiest_load(parse_routing(routing), Problem(*sizes))
    return float(load.active[0])


def commit_of_checkout() -> str:
    """The commit that measures, +changes where files differ from it; `perfmodel X.Y` where this is no checkout."""
    here = Path(__file__).resolve().parent
    commit = _git(here, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        try:
            return f"perfmodel {version('perfmodel')}"
        except PackageNotFoundError:
            return "unknown"
    return commit + ("+changes" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        found = subprocess.check_output(["git", "-C", str(folder), *arguments], stderr=subprocess.DEVNULL, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.strip()
