"""Which tile of our kernels suits a grouped GEMM, by the model's cost of each, and what that choice loses against measured times."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError
from perfmodel.files import read_text
from perfmodel.hardware import GpuSpec, load_gpu
from perfmodel.kernels import tiles
from perfmodel.kernels.tiles import Problem, Tile
from perfmodel.latency import predict_tiles
from perfmodel.profiles import Profile, profiles
from perfmodel.units import MICROSECOND

OURS = "numba-"
"""Profiles of our kernels: this and the kind of `Tile`."""
OLDEST = 8
"""Compute capability from which on mma.sync multiplies bf16 and cp.async fetches it."""
NEEDED = ("kernel", "format", "experts", "n", "k", "tokens_per_expert", "us", "hold_s")
"""Columns of `perfmodel kernels bench --out FILE.csv` that matter here."""


@dataclass(frozen=True)
class TileTime:
    """A tile with its predicted and, where it is known, its measured time, seconds."""

    tile: Tile
    rows: int
    """Weight rows of the tile."""
    predicted: float
    measured: float | None = None


@dataclass(frozen=True)
class Choice:
    """What the model chose for a problem out of the tiles that were measured."""

    problem: Problem
    chosen: TileTime
    best: TileTime

    @property
    def regret(self) -> float:
        """How much longer the chosen tile takes than the best one, as a fraction."""
        assert self.chosen.measured is not None
        assert self.best.measured is not None
        return self.chosen.measured / self.best.measured - 1


def predicted_tiles(gpu: str | GpuSpec, problem: Problem) -> list[TileTime]:
    """Every tile of our kernels that takes the format, the fastest first. Raises PerfModelError where none does."""
    found = []
    for profile in profiles():
        if not profile.id.startswith(OURS):
            continue
        try:
            times = predict_tiles(
                gpu, profile.id, problem.format, experts=problem.experts, n=problem.n, k=problem.k, tokens_per_expert=problem.tokens
            )
        except PerfModelError as error:
            if error.field != "kernel":
                raise
            continue
        kind = profile.id.removeprefix(OURS)
        found += [TileTime(Tile(kind, m), n, float(time[0])) for (m, n), time in times.items()]  # type: ignore[arg-type]
    if not found:
        raise PerfModelError(f"no kernel of ours has a profile for it on {getattr(gpu, 'id', gpu)}", field="format", value=problem.format)
    return sorted(found, key=lambda time: time.predicted)


def choose_tile(gpu: str | GpuSpec, problem: Problem) -> Tile:
    """The tile that the model expects to be fastest. Raises PerfModelError as `predicted_tiles`."""
    return predicted_tiles(gpu, problem)[0].tile


def chooser(gpu: str) -> Callable[[Problem], Tile]:
    """For `MoELayer(tile=chooser("h200"))`: the model's choice, and the table of `tiles` where no profile of ours covers a format."""
    spec = load_gpu(gpu)
    arch = "sm_90a" if spec.architecture == "hopper" else "sm_80"

    def choose(problem: Problem) -> Tile:
        try:
            return choose_tile(spec, problem)
        except PerfModelError as error:
            if error.field != "format":
                raise
            return tiles.tile_for(problem.tokens, arch)

    return choose


def arch_of(gpu: str) -> str:
    """The architecture of our kernels that runs on a GPU of the catalogue. Raises PerfModelError for one older than all of them."""
    spec = load_gpu(gpu)
    if int(spec.compute_capability.partition(".")[0]) < OLDEST:
        problem = f"no kernel of ours runs on compute capability {spec.compute_capability}"
        raise PerfModelError(problem, field="--gpu", value=gpu, mend=f"They need {OLDEST}.0, Ampere, or newer.")
    return "sm_90a" if spec.architecture == "hopper" else "sm_80"


def choices(gpu: str, path: str | Path) -> list[Choice]:
    """What the model chooses for each problem of a file that `perfmodel kernels bench --all-tiles --out FILE.csv` wrote.

    Only tiles that were measured count, each held for the shortest time of the file. Raises PerfModelError for a file that is none.
    """
    measured: dict[Problem, dict[Tile, float]] = {}
    for problem, tile, seconds in _measured(path):
        measured.setdefault(problem, {})[tile] = seconds
    found = []
    for problem, times in measured.items():
        if not any(_covers(gpu, profile, problem.format) for profile in profiles()):
            continue  # mma.sync kernels have no profile: the table chooses their tiles
        both = [TileTime(t.tile, t.rows, t.predicted, times[t.tile]) for t in predicted_tiles(gpu, problem) if t.tile in times]
        if len(both) > 1:
            found.append(Choice(problem, both[0], min(both, key=lambda time: time.measured or 0)))
    if not found:
        raise PerfModelError("no problem with more than one tile of ours", field="FILE", value=str(path), mend="Measure with --all-tiles.")
    return found


def tiles_json(times: Sequence[TileTime]) -> Mapping[str, Any]:
    """`tiles`, the fastest first."""
    rows = [
        {"kind": t.tile.kind, "tokens": t.tile.columns, "weight_rows": t.rows, "predicted_us": t.predicted / MICROSECOND} for t in times
    ]
    return {"schema": "perfmodel.kernel-tiles/1", "tiles": rows}


def choices_json(choices: Sequence[Choice]) -> Mapping[str, Any]:
    """`choices` by problem, and the mean and largest regret."""
    rows = [
        {
            "format": c.problem.format, "experts": c.problem.experts, "n": c.problem.n, "k": c.problem.k, "tokens": c.problem.tokens,
            "chosen": _name(c.chosen), "chosen_us": _us(c.chosen), "best": _name(c.best), "best_us": _us(c.best), "regret": c.regret,
        }
        for c in choices
    ]  # fmt: skip
    regrets = [c.regret for c in choices]
    return {
        "schema": "perfmodel.kernel-choices/1",
        "choices": rows,
        "mean_regret": sum(regrets) / len(regrets),
        "largest_regret": max(regrets),
    }


def _name(time: TileTime) -> str:
    return f"{time.tile.kind} {time.tile.columns}"


def _us(time: TileTime) -> float:
    assert time.measured is not None
    return time.measured / MICROSECOND


def _covers(gpu: str, profile: Profile, format_id: str) -> bool:
    return profile.id.startswith(OURS) and profile.supports(load_gpu(gpu).architecture, format_id)


def _measured(path: str | Path) -> Iterator[tuple[Problem, Tile, float]]:
    lines = read_text(path).splitlines()
    numbers = [number for number, line in enumerate(lines, 1) if not line.startswith("#")][1:]
    try:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    except csv.Error as error:
        raise PerfModelError(f"is no CSV: {error}", field="FILE", value=str(path)) from None
    if not rows or not set(NEEDED) <= set(rows[0]):
        raise PerfModelError(
            "is no result of `perfmodel kernels bench`", field="FILE", value=str(path), mend=f"It needs the columns {', '.join(NEEDED)}."
        )
    parsed = [_parsed(row, path, number) for row, number in zip(rows, numbers, strict=False)]
    shortest = min(hold for *_, hold in parsed)
    yield from ((problem, tile, seconds) for problem, tile, seconds, hold in parsed if tile and hold == shortest)


def _parsed(row: Mapping[str, str | None], path: str | Path, line: int) -> tuple[Problem, Tile | None, float, float]:
    """Problem, tile (None for kernels of others), seconds and seconds held. Raises PerfModelError with file, line and column."""

    def positive(name: str) -> float:
        try:
            value = float(row[name] or "")
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise PerfModelError("must be a positive number", file=str(path), line=line, field=name, value=row[name], mend="Measure again.")
        return value

    experts, n, k = (int(positive(name)) for name in ("experts", "n", "k"))
    problem = Problem(str(row["format"]), experts, n, k, positive("tokens_per_expert"))
    return problem, _tile_of(row["kernel"] or "", problem.format), positive("us") * MICROSECOND, positive("hold_s")


def _tile_of(name: str, format_id: str) -> Tile | None:
    """The tile of a plain grouped GEMM of ours on Hopper; None for all else."""
    found = (choice for choice in tiles.menu(format_id, "plain", "sm_90a") if choice.variant.name == name)
    return next((choice.tile for choice in found), None)
