"""Our kernels in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text


def list_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line a kernel: kind, formats, architectures, reference."""
    table = Table(header_style="bold", pad_edge=False)
    for name in ("kernel", "kind", "formats", "architectures", "agrees with"):
        table.add_column(name)
    for row in rows:
        table.add_row(row["name"], row["kind"], " ".join(row["formats"]), " ".join(row["archs"]), row["reference"])
    return table


def check_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line a kernel and architecture: what it takes, what its machine code holds, and what is wrong with it."""
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("kernel")
    table.add_column("arch")
    for name in ("registers", "shared KiB", "spilled B", "tensor instructions", "16-byte loads"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for row in rows:
        verdict = Text("ok", style="green") if row["ok"] else Text(row["problem"], style="red")
        shared = None if row["shared_bytes"] is None else f"{row['shared_bytes'] / 1024:.1f}"
        figures = (row["registers"], shared, row["spill_bytes"], _tensor(row["sass"]), (row["sass"] or {}).get("loads_16B"))
        table.add_row(row["name"], row["arch"], *("-" if figure is None else str(figure) for figure in figures), verdict)
    return table


def _tensor(sass: Mapping[str, int] | None) -> str | None:
    """`32 HGMMA`, or None where there is no disassembler."""
    if sass is None:
        return None
    return ", ".join(f"{n} {name}" for name, n in sass.items() if name.endswith("MMA") and n) or "0"
