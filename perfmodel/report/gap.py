"""The gap in a terminal: a table of token counts, a bar of the causes for each, one waterfall, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from perfmodel.report.numbers import number, percent
from perfmodel.report.palette import COLOURS, LETTERS

WIDEST, NARROWEST = 40, 10
"""Characters of a bar."""
TABLE_WIDTH = 70
"""Characters that the other columns of the table take."""
SMALLEST = 0.0005
"""Share of the time from which a cause is worth a line."""


@dataclass(frozen=True)
class Brush:
    """Draws stretches of bars: coloured blocks, or letters where the terminal has too few colours."""

    colour: bool
    bar: int

    def stretch(self, cause: str, length: int) -> Text:
        """`length` characters in the colour, or the letter, of a cause."""
        return Text(("█" if self.colour else LETTERS[cause]) * length, style=COLOURS[cause])


def render(result: dict[str, Any], console: Console, waterfall: int | None = None) -> None:
    """Print the object of `perfmodel.gap`. `waterfall` picks the token count that is shown cause by cause (default: the middle row)."""
    rows, row = result["rows"], row_at(result, waterfall)
    brush = Brush(console.color_system in ("256", "truecolor"), max(NARROWEST, min(WIDEST, console.width - TABLE_WIDTH)))
    blank = Text()
    drawn: list[RenderableType] = [_title(result), _table(result, brush), _legend(rows, brush), blank]
    drawn += [_waterfall(row, brush), blank, _reasons(row), blank, _advice(row)]
    console.print(Group(*drawn))
    for line in result["notes"]:
        console.print(Text(f"note: {line}", style="yellow"))


def row_at(result: dict[str, Any], tokens: int | str | None) -> dict[str, Any]:
    """The row that is explained: the one with so many tokens, else the middle one."""
    rows: list[dict[str, Any]] = result["rows"]
    return next((row for row in rows if str(row["tokens"]) == str(tokens)), rows[len(rows) // 2])


def subject(result: dict[str, Any]) -> str:
    """What was asked, in one line: GPU with its what-ifs, format, ranks."""
    ranks = "".join(f", {name.upper()} {result[name]}" for name in ("ep", "tp") if result[name] > 1)
    return f"{result['model']} on {result['gpu']}{changed(result['changes'])}, {result['format']}{ranks}"


def changed(changes: Sequence[str]) -> str:
    """The what-ifs on a GPU, to stand after its name."""
    return f" with {', '.join(changes)}" if changes else ""


def conditions(result: dict[str, Any]) -> str:
    """Under which conditions: kernels, routing, launch, communication, peak."""
    comm = {"exclude": "no communication", "include": "with communication"}[result["comm"]]
    shared = f", {comm}" if result["ep"] * result["tp"] > 1 else ""
    return f"{_kernels(result['rows'])}; {result['routing']} routing, {result['launch']} launch{shared}, {result['clock']} clock"


def _kernels(rows: list[dict[str, Any]]) -> str:
    """Which kernel predicts which token counts, and which of them nobody measured."""
    by_kernel: dict[str, list[str]] = {}
    for row in rows:
        estimated = " (estimated)" if row["kernel_status"] == "estimated" else ""
        by_kernel.setdefault(row["kernel"] + estimated, []).append(f"{row['tokens']:,}")
    if len(by_kernel) == 1:
        return f"kernel {next(iter(by_kernel))}"
    return "kernels " + " and ".join(f"{kernel} at {', '.join(tokens)} tokens" for kernel, tokens in by_kernel.items())


def _title(result: dict[str, Any]) -> Text:
    text = Text(subject(result), style="bold")
    text.append(f"\n{conditions(result)}, dense peak {result['peak_tflops']:,.0f} TFLOPS", style="not bold")
    imbalance = max(row["rank_imbalance"] for row in result["rows"])
    if imbalance > 1.05:
        text.append(
            f"\nThe busiest rank computes up to {imbalance:.3g} times the pairs of the mean one: figures are the busiest's.",
            style="not bold",
        )
    return text


def _table(result: dict[str, Any], brush: Brush) -> Table:
    table = Table(header_style="bold", pad_edge=False)
    for name in ("tokens", "time us", "80 % interval", "TFLOPS", "of peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("bound by", no_wrap=True)
    table.add_column("losses", min_width=brush.bar, no_wrap=True)
    for row in result["rows"]:
        low, high = row["interval_us"]
        table.add_row(
            f"{row['tokens']:,}",
            number(row["latency_us"]),
            f"{number(low)} - {number(high)}",
            number(row["tflops"]),
            percent(row["tflops"] / result["peak_tflops"]),
            row["bound"],
            _bar(row, brush),
        )
    return table


def parts(row: dict[str, Any]) -> list[tuple[str, float]]:
    """(cause, microseconds) of a row from the ideal time up, in the order of attribution."""
    return [("reached", row["ideal_us"]), *((x["cause"], x["us"]) for x in row["losses"])]


def label(cause: str) -> str:
    """The name of a part of the time."""
    return "FLOPs at the peak" if cause == "reached" else cause


def _bar(row: dict[str, Any], brush: Brush) -> Text:
    """The causes as stretches of one line, rounded so that they fill it."""
    text, done, total = Text(), 0, 0.0
    for cause, us in parts(row):
        total += us
        end = round(brush.bar * total / row["latency_us"])
        text.append_text(brush.stretch(cause, end - done))
        done = end
    return text


def _legend(rows: list[dict[str, Any]], brush: Brush) -> Text:
    """The causes that take 2 % or more of some row."""
    entries = []
    for place, (cause, _) in enumerate(parts(rows[0])):
        if any(parts(row)[place][1] >= 0.02 * row["latency_us"] for row in rows):
            name = "at the peak" if cause == "reached" else cause
            entries.append(brush.stretch(cause, 1).append(" " + name.replace(" ", "\u00a0"), style=""))
    return Text("   ").join(entries)


def _shown(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The losses worth a line."""
    return [loss for loss in row["losses"] if loss["us"] >= SMALLEST * row["latency_us"]]


def _waterfall(row: dict[str, Any], brush: Brush) -> Table:
    """From the ideal time to the prediction, each bar beginning where the last ended."""
    title = f"{row['tokens']:,} tokens: from the peak to {number(row['latency_us'])} us"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="bold")
    table.add_column("cause", no_wrap=True)
    table.add_column("us", justify="right", no_wrap=True)
    table.add_column("", min_width=brush.bar, no_wrap=True)
    table.add_column("without it, less", justify="right", no_wrap=True)
    scale = brush.bar / row["latency_us"]
    table.add_row(label("reached"), number(row["ideal_us"]), _step(0.0, row["ideal_us"], scale, "reached", brush), "")
    done = row["ideal_us"]
    for loss in row["losses"]:
        if loss in _shown(row):
            step = _step(done, loss["us"], scale, loss["cause"], brush)
            table.add_row(loss["cause"], number(loss["us"]), step, number(loss["saves_us"]))
        done += loss["us"]
    return table


def _step(start: float, length: float, scale: float, cause: str, brush: Brush) -> Text:
    begin, end = round(start * scale), round((start + length) * scale)
    if end == begin:
        return Text(" " * min(begin, brush.bar - 1) + "▏")
    return Text(" " * begin).append_text(brush.stretch(cause, end - begin))


def _grid(title: str, lines: list[tuple[str, ...]]) -> Table:
    """Aligned columns without lines, the last one wrapping."""
    table = Table(
        title=title or None, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for place in range(len(lines[0]) if lines else 1):
        table.add_column(style="dim" if lines and place == len(lines[0]) - 1 else "", no_wrap=bool(lines) and place < len(lines[0]) - 1)
    for line in lines:
        table.add_row(*line)
    return table


def _reasons(row: dict[str, Any]) -> Table:
    """Why each of the shown losses costs what it costs."""
    return _grid("Why", [(loss["cause"], loss["why"]) for loss in _shown(row)])


def _advice(row: dict[str, Any]) -> Table:
    """The causes whose absence would save most, and what would cure them."""
    worst = sorted(row["losses"], key=lambda loss: -loss["saves_us"])[:3]
    worth = [loss for loss in worst if loss["saves_us"] > 0.01 * row["latency_us"]]
    title = "What would help most (causes overlap: without one alone the layer may gain more, or less, than its share above)"
    return _grid(title, [(loss["cause"], f"up to {number(loss['saves_us'])} us", loss["cure"]) for loss in worth])
