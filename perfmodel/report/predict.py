"""A prediction op by op in a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfmodel.report.gap import conditions, subject
from perfmodel.report.numbers import number

NAME_WIDTH, COLUMN_WIDTH = 19, 12


def render(result: dict[str, Any], console: Console) -> None:
    """Print a column a token count, in as many tables as the width asks for: us of each op, their sum, its interval, and rates."""
    console.print(Text(subject(result), style="bold"))
    console.print(Text(conditions(result)))
    rows = result["rows"]
    fit = max(1, (console.width - NAME_WIDTH) // COLUMN_WIDTH)
    for start in range(0, len(rows), fit):
        console.print(_table(rows[start : start + fit], rows))
    for line in result["notes"]:
        console.print(Text(f"note: {line}", style="yellow"))


def _table(rows: list[dict[str, Any]], all_rows: list[dict[str, Any]]) -> Table:
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("us at tokens", no_wrap=True)
    for row in rows:
        table.add_column(f"{row['tokens']:,}", justify="right", no_wrap=True)
    for place, op in enumerate(rows[0]["ops"]):
        if any(row["ops"][place]["us"] for row in all_rows):
            name = op["name"].replace("grouped_gemm.", "GEMM ").replace("_", " ")
            table.add_row(name, *(number(row["ops"][place]["us"]) for row in rows))
    table.add_section()
    table.add_row("layer", *(number(row["latency_us"]) for row in rows), style="bold")
    for name, side in (("80 % from", 0), ("80 % to", 1)):
        table.add_row(name, *(number(row["interval_us"][side]) for row in rows))
    table.add_section()
    table.add_row("TFLOPS", *(number(row["tflops"]) for row in rows))
    table.add_row("GB/s of DRAM", *(number(sum(row["dram_bytes"].values()) / row["latency_us"] / 1e3) for row in rows))
    table.add_row("active experts", *(number(row["active_experts"]) for row in rows))
    table.add_row("bound by", *(row["bound"] for row in rows))
    return table
