"""Measured runs in a terminal: the plan of a suite, a line a row while it is measured, the store, the score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfmodel.report.validate import SCORED_FLAGS, WORST_ROWS, family_table, percent
from perfmodel.units import MB

SIZES = {"grouped-gemm": ("experts", "n", "k", "tokens_per_expert"), "layer": ("experts", "topk", "hidden", "inter", "tokens")}
"""By the kind of a run."""


def plan_table(rows: Sequence[Mapping[str, Any]], gpu: str) -> Table:
    """The points of a suite with what is expected of them."""
    table = _table(("point",), ("predicted us", "80% interval", "DRAM MB"))
    table.title = f"{len(rows)} points, predicted for {gpu}"
    for row in rows:
        figures = ["-", "-"]
        if row["predicted_us"] is not None:
            low, high = row["interval_us"]
            figures = [f"{row['predicted_us']:,.1f}", f"{low:,.1f} - {high:,.1f}"]
        dram = "-" if row["predicted_dram_bytes"] is None else f"{row['predicted_dram_bytes'] / MB:,.1f}"
        table.add_row(Text(f"{row['point']}\n", style="").append(" ".join(row["tiles"]), style="dim"), *figures, dram)
    return table


def heard_line(name: str, verdict: str, run: Any, why: str) -> Text | None:
    """What became of a point; nothing of one that was there."""
    if verdict == "there":
        return None
    if verdict == "failed":
        return Text(f"{name}: failed: {why}", style="red")
    if run.us is None and run.dram_bytes is None:
        return Text(f"{name}: DRAM bytes were not counted for every kernel of the call")
    if run.us is None:
        return Text(f"{name}: {run.dram_bytes / MB:,.1f} MB of DRAM{_against(run.dram_bytes, run.predicted_dram_bytes)}")
    line = Text(f"{name}: {run.us:,.1f} us{_against(run.us, run.predicted_us)}")
    return line.append(f", WRONG RESULT: error {run.rel_err}, {run.nan} NaN", style="red") if run.wrong else line


def overview_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The runs of a store."""
    table = _table(("run", "suite", "device", "commit", "first", "last"), ("rows",))
    for row in rows:
        table.add_row(*(Text(str(row[name] or "-")) for name in ("run_id", "suite", "device", "commit", "first", "last")), str(row["rows"]))
    return table


def print_runs(summary: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], counted: Sequence[Mapping[str, Any]]) -> None:
    """The score of our kernels, of torch's beside them, of DRAM bytes, and the rows furthest off."""
    console = Console()
    console.print(Text(", ".join(summary["sources"]) + " on " + ", ".join(summary["devices"])), highlight=False)
    console.print(family_table(summary))
    scored = [row for row in rows if row["flag"] in SCORED_FLAGS and row["ours"] and not row["fitted"]]
    worst = sorted(scored, key=lambda row: -abs(row["predicted_us"] / row["latency_us"] - 1))[:WORST_ROWS]
    if worst:
        console.print(_worst_table(worst))
    overall, fitted, peers, dram = (summary[name] for name in ("overall", "fitted", "peers", "dram_bytes"))
    flagged = ", ".join(f"{count} {reason}" for reason, count in overall["flagged_by"].items()) or "none"
    for line in (
        f"our kernels, rows not fitted: {overall['scored']} of {overall['n']} scored, median {percent(overall['median_ape'])}, mean "
        f"{percent(overall['mape'])}; flagged: {flagged}",
        f"our kernels, fitted rows: {fitted['scored']}, median {percent(fitted['median_ape'])}; torch's: {peers['scored']}, median "
        f"{percent(peers['median_ape'])}",
        f"DRAM bytes against counters: {dram['scored']} rows, median {percent(dram['median_ape'])}, worst {percent(dram['worst_ape'])}",
    ):
        console.print(line, highlight=False)


def _worst_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(("row",), ("measured us", "predicted us", "error"))
    table.title = "Rows furthest off"
    for row in rows:
        error = row["predicted_us"] / row["latency_us"] - 1
        table.add_row(Text(describe(row)), f"{row['latency_us']:,.1f}", f"{row['predicted_us']:,.1f}", percent(error, signed=True))
    return table


def describe(row: Mapping[str, Any]) -> str:
    """Kernel and sizes of a row."""
    shape = ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in SIZES[row["kind"]])
    held = f", held {row['hold_s']:g} s" if row.get("hold_s") else ""
    return f"{row['kernel']} {row['format']}: {shape}{held}"


def _against(measured: float | None, predicted: float | None) -> str:
    if not measured or not predicted:
        return ""
    return f", predicted {percent(predicted / measured - 1, signed=True)}"


def _table(names: Sequence[str], figures: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title_justify="left", title_style="bold", padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table
