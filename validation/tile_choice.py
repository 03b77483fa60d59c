"""Which tile of our kernels suits a grouped GEMM, by the model's cost of each, and what that choice loses against measured times."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError
from perfmodel.kernels.tiles import Tile
from perfmodel.latency import predict_tiles
from perfmodel.profiles import profiles
from perfmodel.units import MICROSECOND

OURS = "numba-"
"""Profiles of our kernels: this and the kind of `Tile`."""
NEEDED = ("kernel", "format", "experts", "n", "k", "tokens_per_expert", "us", "hold_s")
"""Columns of `perfmodel kernels bench --out FILE.csv` that matter here."""


@dataclass(frozen=True)
class Problem:
    """A grouped GEMM: `experts` weights [n, k], `tokens` of each."""

    format: str
    experts: int
    n: int
    k: int
    tokens: int


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


def predicted_tiles(gpu: str, problem: Problem) -> list[TileTime]:
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
        raise PerfModelError(f"no kernel of ours has a profile for it on {gpu}", field="format", value=problem.format)
    return sorted(found, key=lambda time: time.predicted)


def choose_tile(gpu: str, problem: Problem) -> Tile:
    """The tile that the model expects to be fastest. Raises PerfModelError as `predicted_tiles`."""
    return predicted_tiles(gpu, problem)[0].tile


def choices(gpu: str, path: Path) -> list[Choice]:
    """What the model chooses for each problem of a file that `perfmodel kernels bench --all-tiles --out FILE.csv` wrote.

    Only tiles that were measured count, each held for the shortest time of the file. Raises PerfModelError for a file that is none.
    """
    measured: dict[Problem, dict[Tile, float]] = {}
    for problem, tile, seconds in _measured(path):
        measured.setdefault(problem, {})[tile] = seconds
    found = []
    for problem, times in measured.items():
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


def _measured(path: Path) -> Iterator[tuple[Problem, Tile, float]]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PerfModelError(f"cannot be read: {error}", field="FILE", value=str(path)) from None
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    if not rows or not set(NEEDED) <= set(rows[0]):
        raise PerfModelError(
            "is no result of `perfmodel kernels bench`", field="FILE", value=str(path), mend=f"It needs the columns {', '.join(NEEDED)}."
        )
    shortest = min(row["hold_s"] for row in rows)
    for row in rows:
        tile = _tile_of(row["kernel"].split("-"))
        if tile and row["hold_s"] == shortest:
            sizes = (int(row[name]) for name in ("experts", "n", "k", "tokens_per_expert"))
            yield Problem(row["format"], *sizes), tile, float(row["us"]) * MICROSECOND


def _tile_of(name: Sequence[str]) -> Tile | None:
    """The tile in a name such as numba-wgmma-mxfp4-w4a16-n64; None for kernels of others."""
    if name[0] != OURS.rstrip("-") or name[1] not in ("mma", "decode", "wgmma"):
        return None
    return Tile(name[1], int(name[-1].removeprefix("n")))  # type: ignore[arg-type]
