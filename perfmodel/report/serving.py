"""Tables of `validate serving`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

FAMILIES = 40
"""Shown, those with most rows."""


def print_serving(summary: Mapping[str, Any]) -> None:
    """Errors over all rows, by precision, mode and backend, the largest families, and why rows are not scored."""
    console = Console()
    table = _table("measured services")
    _add(table, "all", summary["overall"])
    _add(table, "not fitted", summary["not_fitted"])
    for group in ("by_format", "by_mode", "by_backend"):
        for name, score in summary[group].items():
            _add(table, name, score)
    console.print(table)
    families = sorted(summary["families"], key=lambda family: -family["scored"])
    table = _table(f"the {FAMILIES} families with most rows")
    for family in families[:FAMILIES]:
        _add(table, " ".join(family[word] for word in ("model", "gpu", "backend", "precision", "mode")), family)
    console.print(table)
    for flag, count in summary["overall"]["flagged_by"].items():
        console.print(f"{count:5d} {flag}: {summary['flags'][flag]}", highlight=False)
    used = summary["calibration"]
    console.print(f"fitted on {used['rows']} rows, {used['fraction_used']:.1%} of the configurations", highlight=False)


def print_anchored(summary: Mapping[str, Any]) -> None:
    """Errors with some rows of each configuration as anchors, and of the same rows without."""
    table = _table(f"{summary['anchors']} of the rows of each of {summary['configurations']} configurations as anchors; the others scored")
    scores = {"all": summary["overall"], "not fitted": summary["not_fitted"], **summary["by_mode"], **summary["by_backend"]}
    for name, score in scores.items():
        _add(table, name, score)
        _add(table, "  without anchors", score | {figure: score[figure]["plain"] for figure in ("ttft", "tpot")})
    Console().print(table)


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for name in ("rows", "scored", "TPOT median", "mean", "TTFT median", "mean"):
        table.add_column(name, justify="right")
    return table


def _add(table: Table, name: str, score: Mapping[str, Any]) -> None:
    errors = [score[figure][kind] for figure in ("tpot", "ttft") for kind in ("median_ape", "mape")]
    table.add_row(name, str(score["n"]), str(score["scored"]), *("-" if error is None else f"{error:.1%}" for error in errors))
