"""A prediction op by op in a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfmodel.report.gap import number


def render(result: dict[str, Any], console: Console) -> None:
    """Print a column a token count: us of each op, their sum, its interval, and the rates that follow."""
    rows = result["rows"]
    table = Table(
        header_style="bold", pad_edge=False, title=f"{result['model']} on {result['gpu']}, {result['format']}", title_justify="left"
    )
    table.add_column("us at tokens", no_wrap=True)
    for row in rows:
        table.add_column(f"{row['tokens']:,}", justify="right", no_wrap=True)
    for place, op in enumerate(rows[0]["ops"]):
        times = [row["ops"][place]["us"] for row in rows]
        if any(times):
            table.add_row(op["name"].replace("grouped_gemm.", "GEMM ").replace("_", " "), *map(number, times))
    table.add_section()
    table.add_row("layer", *(number(row["latency_us"]) for row in rows), style="bold")
    for name, side in (("80 % from", 0), ("80 % to", 1)):
        table.add_row(name, *(number(row["interval_us"][side]) for row in rows))
    table.add_section()
    table.add_row("TFLOPS", *(number(row["tflops"]) for row in rows))
    table.add_row("GB/s of DRAM", *(number(sum(row["dram_bytes"].values()) / row["latency_us"] / 1e3) for row in rows))
    table.add_row("active experts", *(number(row["active_experts"]) for row in rows))
    table.add_row("bound by", *(row["bound"] for row in rows))
    kernels = [row["kernel"] for row in rows]
    if len(set(kernels)) > 1:
        table.add_row("kernel", *kernels)
    console.print(table)
    if len(set(kernels)) == 1:
        console.print(Text(f"kernel {kernels[0]}, {result['routing']} routing"))
    for line in result["notes"]:
        console.print(Text(f"note: {line}", style="yellow"))
