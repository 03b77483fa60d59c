"""A prediction op by op in a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfmodel.report.gap import number


def render(result: dict[str, Any], console: Console) -> None:
    """Print one line a token count: ops, their sum and its interval [us], bytes and FLOPs."""
    rows = result["rows"]
    ops = [op["name"] for i, op in enumerate(rows[0]["ops"]) if any(row["ops"][i]["us"] > 0 for row in rows)]
    table = Table(header_style="bold", pad_edge=False, title=f"{result['model']} on {result['gpu']}, {result['format']}: us of each op")
    names = [name.replace("grouped_gemm.", "GEMM ").replace("_", " ") for name in ops]
    for name in ("tokens", *names, "layer", "80 % interval", "TFLOPS", "GB/s", "bound by", "kernel"):
        table.add_column(name, justify="left" if name in ("bound by", "kernel") else "right")
    for row in rows:
        times = {op["name"]: op["us"] for op in row["ops"]}
        low, high = row["interval_us"]
        table.add_row(
            f"{row['tokens']:,}",
            *(number(times[o]) for o in ops),
            number(row["latency_us"]),
            f"{number(low)} - {number(high)}",
            number(row["tflops"]),
            number(sum(row["dram_bytes"].values()) / row["latency_us"] / 1e3),
            row["bound"],
            row["kernel"],
        )
    console.print(table)
    for line in result["notes"]:
        console.print(Text(f"note: {line}", style="yellow"))
