"""Our kernels in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
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


def check_report(rows: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """A table with one line a kernel and architecture: what it takes and what its machine code holds. Then what is wrong, in words."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("kernel", "arch"):
        table.add_column(name, overflow="fold")
    for name in ("regs", "shared\nKiB", "spilled\nbytes", "tensor ops", "16-byte\nloads"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        shared = None if row["shared_bytes"] is None else f"{row['shared_bytes'] / 1024:.1f}"
        figures = (row["registers"], shared, row["spill_bytes"], _tensor(row["sass"]), (row["sass"] or {}).get("loads_16B"))
        verdict = Text("ok", style="green") if row["ok"] else Text("wrong", style="red")
        table.add_row(row["name"], row["arch"], *("-" if figure is None else str(figure) for figure in figures), verdict)
    yield table
    yield from (Text(f"{row['name']} {row['arch']}: {row['problem']}", style="red") for row in rows if not row["ok"])


def _tensor(sass: Mapping[str, int] | None) -> str | None:
    """`32 HGMMA`, or None where there is no disassembler."""
    if sass is None:
        return None
    return ", ".join(f"{n} {name}" for name, n in sass.items() if name.endswith("MMA") and n) or "0"
