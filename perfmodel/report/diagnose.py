"""A diagnosis in a terminal: where the time goes, what bounds each kernel, and what would cure it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfmodel.report.numbers import number, percent
from perfmodel.units import MB

COLOURS = {"memory": "cyan", "compute": "green", "latency": "red", "unknown": "dim"}
MOST_KINDS = 12


def render(result: dict[str, Any], console: Console, *, top: int = 8) -> None:
    """Print the kinds of kernels, the kernels that take longest with what bounds them, and below each of these what to do."""
    console.print(Text(subject(result), style="bold"))
    rows = sorted(result["kernels"], key=lambda row: -row.get("total_us", row["us"]))
    if len(result["kinds"]) > 1:
        console.print(_kinds(result["kinds"][:MOST_KINDS]))
    console.print(_kernels(rows[:top], result))
    if len(rows) > top:
        console.print(Text(f"and {len(rows) - top} more (--top {len(rows)})", style="dim"))
    if result["timeline"]:
        _timeline(result["timeline"], console)
    for place, row in enumerate(rows[:top], 1):
        _findings(f"{place} {row['short']}, {number(row['us'])} us", row["findings"], console)
    for line in result["notes"]:
        console.print(Text(f"note: {line}", style="yellow"))


def subject(result: dict[str, Any]) -> str:
    """One line: the report, the GPU, the scenario."""
    tool = {"ncu": "Nsight Compute", "nsys": "Nsight Systems"}[result["tool"]]
    text = f"{result['file']}: {tool}, {result['device'] or result['gpu'] or 'GPU not named'}, {number(result['total_us'])} us of kernels"
    scenario = result["scenario"]
    if scenario:
        text += f"; predicted: {scenario['model']}, {scenario['tokens']:,} tokens, {scenario['format']}, {scenario['kernel']}"
    return text


def _kinds(kinds: list[dict[str, Any]]) -> Table:
    table = Table(header_style="bold", pad_edge=False)
    predicted = any(one["predicted_us"] is not None for one in kinds)
    table.add_column("kind")
    for name in ("launches", "us", "share", *(["predicted us"] if predicted else [])):
        table.add_column(name, justify="right")
    for one in kinds:
        cells = [f"{one['launches']:,}", number(one["total_us"]), percent(one["share"])]
        if predicted:
            cells.append("" if one["predicted_us"] is None else number(one["predicted_us"]))
        table.add_row(one["kind"].replace("_", " "), *cells)
    return table


def _kernels(rows: list[dict[str, Any]], result: dict[str, Any]) -> Table:
    table = Table(header_style="bold", pad_edge=False)
    counted = any(row["dram_bytes"] is not None for row in rows)
    instances = any(row["instances"] > 1 for row in rows)
    names = [
        "us",
        *(["times"] if instances else []),
        *(["predicted us"] if result["scenario"] else []),
        *(["MB of DRAM"] if counted else []),
    ]
    names += ["predicted MB"] if counted and result["scenario"] else []
    table.add_column("", justify="right")
    table.add_column("kernel", overflow="fold")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("bound by")
    table.add_column("saves up to", justify="right")
    for place, row in enumerate(rows, 1):
        cells = [number(row["us"]), *([f"{row['instances']:,}"] if instances else [])]
        cells += [_or_blank(row["predicted_us"])] if result["scenario"] else []
        cells += [_or_blank(row["dram_bytes"], MB)] if counted else []
        cells += [_or_blank(row["predicted_dram_bytes"], MB)] if counted and result["scenario"] else []
        saves = max((one["saves_us"] or 0.0 for one in row["findings"]), default=0.0)
        table.add_row(str(place), row["short"], *cells, _bound(row), f"{number(saves)} us" if saves else "")
    return table


def _or_blank(value: float | None, unit: float = 1.0) -> str:
    return "" if value is None else number(value / unit)


def _bound(row: dict[str, Any]) -> Text:
    if row["bound"] == "unknown":
        return Text("not counted", style="dim")
    busy = f" ({row['unit']} {percent(row['use'][row['unit']])})"
    return Text(row["bound"] + busy, style=COLOURS[row["bound"]])


def _timeline(line: dict[str, Any], console: Console) -> None:
    text = f"timeline: {line['count']:,} pieces of work in {number(line['span_us'])} us, {number(line['busy_us'])} us of it busy"
    _findings(text, line["findings"], console)


def _findings(head: str, findings: list[dict[str, Any]], console: Console) -> None:
    if not findings:
        return
    console.print(Text(head, style="bold"))
    for one in findings:
        saves = f"; saves up to {number(one['saves_us'])} us" if one["saves_us"] else ""
        console.print(Text.assemble(("  " + one["cause"], "yellow"), f": {one['evidence']}{saves}"))
        console.print(Text(f"    cure: {one['cure']}"))


def thresholds_table(thresholds: dict[str, dict[str, Any]]) -> Table:
    """The thresholds with their sources, and what was wrong with those of the background text."""
    table = Table(header_style="bold", pad_edge=False, show_lines=True)
    table.add_column("threshold", no_wrap=True)
    table.add_column("value", justify="right")
    table.add_column("meaning and source", ratio=1)
    for name, one in thresholds.items():
        text = f"{one['meaning']} ({one['status']}: {one['source']})"
        if "background" in one:
            text += f"\nbackground text, {one['verdict']}: {one['background']}. {one.get('why', '')}"
        table.add_row(name, f"{one['value']:g}", text)
    return table
