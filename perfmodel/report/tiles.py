"""Tiles of our kernels and how the model chooses among them, in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table


def tiles_table(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    """One line a tile."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("kernel")
    for name in ("tokens", "weight rows", "predicted us"):
        table.add_column(name, justify="right")
    for row in result["tiles"]:
        table.add_row(row["kind"], str(row["tokens"]), str(row["weight_rows"]), f"{row['predicted_us']:.1f}")
    yield table


def choices_table(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    """One line a problem, then the mean and largest regret."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for name in ("format", "E x N x K"):
        table.add_column(name)
    for name in ("tokens", "chosen", "us", "best", "us", "regret"):
        table.add_column(name, justify="right")
    for row in result["choices"]:
        place = f"{row['experts']} x {row['n']} x {row['k']}"
        times = (row["chosen"], f"{row['chosen_us']:.1f}", row["best"], f"{row['best_us']:.1f}")
        table.add_row(row["format"], place, str(row["tokens"]), *times, f"{row['regret']:.1%}")
    yield table
    yield f"{len(result['choices'])} problems: mean regret {result['mean_regret']:.2%}, largest {result['largest_regret']:.1%}"
