"""How a validation is shown: one JSON object, or tables in the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SHOWN_ROWS = 12
"""Up to so many rows are all shown; of more, the worst few."""
WORST_ROWS = 6
SCORED_FLAGS = (None, "spike", "dip")
LAYER_SHAPE = ("num_tokens", "hidden", "inter", "num_experts", "topk", "tp", "ep")
GEMM_SHAPE = ("tokens_per_expert", "experts", "n", "k")


def write_json(summary: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
    """One JSON object on stdout: `summary` with `rows`, which are written one by one, so that memory does not hold their text."""
    head = json.dumps(summary, indent=1, allow_nan=False)
    sys.stdout.write(head[: head.rindex("}")].rstrip() + ',\n "rows": [')
    for index, row in enumerate(rows):
        sys.stdout.write(("," if index else "") + "\n  " + json.dumps(row, allow_nan=False))
    sys.stdout.write("\n ]\n}\n")


def print_validation(summary: dict[str, Any], rows: Iterable[dict[str, Any]]) -> None:
    """Each table with its provenance and what was left out, the score by family, and the rows (of many, the worst)."""
    from rich.console import Console

    console = Console()
    for table in summary["tables"]:
        _print_table(console, table)
    console.print(family_table(summary))
    listed = list(_shown(rows, summary["overall"]["n"]))
    if listed:
        console.print(_row_table(listed, everything=summary["overall"]["n"] <= SHOWN_ROWS))
    overall = summary["overall"]
    flagged = ", ".join(f"{count} {reason}" for reason, count in overall["flagged_by"].items()) or "none"
    console.print(f"{overall['scored']} of {overall['n']} rows scored; flagged: {flagged}.", highlight=False)


def print_families(summary: dict[str, Any]) -> None:
    """The score by family and over all, where there are too many rows to show any."""
    from rich.console import Console

    console = Console()
    console.print(family_table(summary))
    overall, used = summary["overall"], summary["calibration"]
    flagged = ", ".join(f"{count:,} {reason}" for reason, count in overall["flagged_by"].items()) or "none"
    console.print(f"{overall['scored']:,} of {overall['n']:,} rows scored; flagged: {flagged}.", highlight=False)
    console.print(
        f"median error {overall['median_ape']:.1%}, mean {overall['mape']:.1%}, 80 % intervals hold {overall['coverage80']:.0%};", end=" "
    )
    console.print(f"fitted on {used['rows']:,} rows, {used['fraction_used']:.1%}.", highlight=False)


def _print_table(console: Console, table: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.padding import Padding

    median = "" if table.get("median_ape") is None else f", median error {table['median_ape']:.1%}"
    console.print(f"[bold]{escape(table['title'] or table['id'])}[/bold]  ({escape(table['id'])})", highlight=False)
    console.print(f"  {table['scored']} of {table['n']} rows scored{median}", highlight=False)
    lines = [f"source: {table['source']}"] if table["source"] else []
    lines += [f"note: {note}" for note in table["notes"]] + [f"not scored: {reason}" for reason in table["not_scored"]]
    for line in lines:
        console.print(Padding(f"[dim]{escape(line)}[/dim]", (0, 0, 0, 2)), highlight=False)
    console.print()


def family_table(summary: Mapping[str, Any]) -> Table:
    """One line a family, and all."""
    from rich.markup import escape

    table = _grid("Predicted against measured", ("family",), ("scored", "median", "mean", "p90", "bias", "in 80%"))
    for family in summary["families"]:
        table.add_row(escape(f"{family['gpu']} {family['kernel']} {family['format']}"), *_figures(family))
    for regime in summary.get("regimes", ()):
        table.add_row(escape(regime["name"]), *_figures(regime), style="italic")
    table.add_row("all", *_figures(summary["overall"]), style="bold")
    return table


def _figures(score: dict[str, Any]) -> list[str]:
    figures = [percent(score[name]) for name in ("median_ape", "mape", "p90_ape")]
    return [f"{score['scored']}/{score['n']}", *figures, percent(score["bias"], signed=True), percent(score["coverage80"])]


def _shown(rows: Iterable[dict[str, Any]], count: int) -> Iterable[dict[str, Any]]:
    if count <= SHOWN_ROWS:
        return rows
    return nlargest(WORST_ROWS, (row for row in rows if row["flag"] in SCORED_FLAGS), key=lambda row: abs(_error(row)))


def _error(row: dict[str, Any]) -> float:
    error: float = row["predicted_us"] / row["latency_us"] - 1.0
    return error


def _row_table(rows: Sequence[dict[str, Any]], *, everything: bool) -> Table:
    table = _grid("Rows" if everything else "Rows furthest off", ("row",), ("measured", "predicted", "80% interval", "error"))
    for row in rows:
        figures = ["-"] * 3
        if row["predicted_us"] is not None:
            low, high = row["interval_us"]
            figures = [f"{row['predicted_us']:,.1f}", f"{low:,.1f} - {high:,.1f}", percent(_error(row), signed=True)]
        table.add_row(_describe(row), f"{row['latency_us']:,.1f} us", *figures)
    return table


def _describe(row: dict[str, Any]) -> str:
    from rich.markup import escape

    family = [row["gpu"], row["kernel"], row["format"], row["source"] and f"({row['source']})", row["flag"] and f"[{row['flag']}]"]
    sizes = [(name, row[name]) for name in (*LAYER_SHAPE, *GEMM_SHAPE) if name in row]
    shape = (f"{name.removeprefix('num_').replace('_', ' ')} {size}" for name, size in sizes if size > 1 or name not in ("tp", "ep"))
    where = f"{row['table']}:{row['line']}" if "table" in row else f"line {row['line']}"
    return f"{escape(' '.join(part for part in family if part))}\n[dim]{where}: {', '.join(shape)}[/dim]"


def _grid(title: str, names: Sequence[str], figures: Sequence[str]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def percent(value: float | None, *, signed: bool = False) -> str:
    """`12.3%`, or - where there is none."""
    if value is None:
        return "-"
    return f"{value:+.1%}" if signed else f"{value:.1%}"
