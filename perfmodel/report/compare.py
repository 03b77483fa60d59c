"""The comparison, and the checks on measurements, in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfmodel.report.validate import family_table, percent

MOST = 25
"""Families of checks."""
WORST = 8


def print_comparison(result: Mapping[str, Any]) -> None:
    """What was compared, figures by family, regime and tokens, the worst rows, and what is wrong in the measurements."""
    console = Console()
    for text in [*result["data"], *result["notes"]]:
        console.print(Text(text, style="dim"))
    console.print(family_table({name: result[name] for name in ("families", "overall")}))
    console.print(_scores("regime", [(row["regime"], row) for row in result["regimes"]]))
    console.print(_scores("tokens", [(f"{row['from']:,} to {row['to']:,}", row) for row in result["tokens"]]))
    worst = _grid(("row furthest off",), ("measured us", "predicted us", "error"))
    for row in result["worst"][:WORST]:
        words = " ".join(str(row[name]) for name in ("gpu", "kernel", "format", "source") if row.get(name))
        figures = (f"{row['latency_us']:,.1f}", f"{row['predicted_us']:,.1f}", percent(row["error"], signed=True))
        worst.add_row(Text(words).append(f"\n{row['sizes']}", style="dim"), *figures)
    console.print(worst)
    print_checks(result["checks"], console)


def print_summary(result: Mapping[str, Any]) -> None:
    """All rows in one line."""
    all_rows = result["overall"]
    median, mean, inside = (percent(all_rows[key]) for key in ("median_ape", "mape", "coverage80"))
    line = f"{all_rows['scored']:,} of {all_rows['n']:,} rows scored: median error {median}, mean {mean}, {inside} in the 80 % interval"
    Console().print(Text(line), soft_wrap=True)


def print_checks(checks: Mapping[str, Any], console: Console | None = None) -> None:
    """How many rows fail which check, over all and by family."""
    console = console or Console()
    names, overall = checks["checks"], checks["overall"]
    console.print(f"Checks on the measurements: {overall['any']:,} of {overall['n']:,} rows fail one or more.", highlight=False)
    for name, text in names.items():
        console.print(Text(f"  {name}, {overall[name]:,}: {text}"), highlight=False)
    failing = [family for family in checks["families"] if family["any"]]
    if not failing:
        return
    table = _grid(("family",), ("rows", "any", *names))
    for family in failing[:MOST]:
        words = Text(f"{family['kernel']} {family['gpu']}").append(f"\n{family['source']}", style="dim")
        table.add_row(words, *(f"{family[n]:,}" for n in ("n", "any", *names)))
    console.print(table)
    if len(failing) > MOST:
        console.print(f"and {len(failing) - MOST} families with fewer (--json, or a page, has all)", highlight=False)


def _scores(name: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    table = _grid((name,), ("scored", "median", "mean", "p90", "bias", "in 80%"))
    for text, row in rows:
        figures = [percent(row[key], signed=key == "bias") for key in ("median_ape", "mape", "p90_ape", "bias", "coverage80")]
        table.add_row(text, f"{row['scored']:,}/{row['n']:,}", *figures)
    return table


def _grid(names: Sequence[str], figures: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table
