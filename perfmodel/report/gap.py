"""The gap in a terminal: a table of token counts, a bar of the causes for each, one waterfall, and what would help."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from perfmodel.report.palette import COLOURS

BAR = 36
"""Characters of a bar."""


def render(result: dict[str, Any], console: Console, waterfall: int | None = None) -> None:
    """Print the object of `perfmodel.gap`. `waterfall` picks the token count that is shown cause by cause (default: the middle row)."""
    rows = result["rows"]
    at = next((i for i, r in enumerate(rows) if r["tokens"] == waterfall), len(rows) // 2)
    console.print(Group(_title(result), _table(result), _legend(rows), Text(), _waterfall(rows[at]), Text(), _advice(rows[at])))
    for line in result["notes"]:
        console.print(Text(f"note: {line}", style="yellow"))


def _title(result: dict[str, Any]) -> Text:
    text = Text(f"{result['model']} on {result['gpu']}, {result['format']}", style="bold")
    details = f"   kernel {result['kernel']}, {result['routing']} routing, dense peak {result['peak_tflops']:,.0f} TFLOPS"
    text.append(details, style="not bold")
    return text


def _table(result: dict[str, Any]) -> Table:
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("tokens", justify="right")
    table.add_column("time us", justify="right")
    table.add_column("80 % interval", justify="right")
    table.add_column("TFLOPS", justify="right")
    table.add_column("of peak", justify="right")
    table.add_column("bound by")
    if result["kernel"] == "auto":
        table.add_column("kernel")
    table.add_column("where the time goes", min_width=BAR)
    for row in result["rows"]:
        low, high = row["interval_us"]
        kernel = [row["kernel"]] if result["kernel"] == "auto" else []
        table.add_row(
            f"{row['tokens']:,}",
            number(row["latency_us"]),
            f"{number(low)} - {number(high)}",
            number(row["tflops"]),
            percent(row["tflops"] / result["peak_tflops"]),
            row["bound"],
            *kernel,
            _bar(row),
        )
    return table


def _parts(row: dict[str, Any]) -> list[tuple[str, float]]:
    return [("reached", row["ideal_us"]), *((x["cause"], x["us"]) for x in row["losses"])]


def _bar(row: dict[str, Any]) -> Text:
    """The causes as coloured stretches of one line, rounded so that they fill it."""
    text, done, total = Text(), 0, 0.0
    for cause, us in _parts(row):
        total += us
        end = round(BAR * total / row["latency_us"])
        text.append("█" * (end - done), style=COLOURS[cause])
        done = end
    return text


def _legend(rows: list[dict[str, Any]]) -> Text:
    """The causes that take 2 % or more of some row."""
    text = Text()
    for place, (cause, _) in enumerate(_parts(rows[0])):
        if any(_parts(row)[place][1] >= 0.02 * row["latency_us"] for row in rows):
            text.append("█ ", style=COLOURS[cause])
            text.append(("at the peak" if cause == "reached" else cause) + "   ")
    return text


def _waterfall(row: dict[str, Any]) -> Table:
    """From the ideal time to the prediction, each bar beginning where the last ended."""
    table = Table(title=f"{row['tokens']:,} tokens: from the peak to {number(row['latency_us'])} us", title_justify="left", box=None)
    for column, justify in (("cause", "left"), ("us", "right"), ("", "left"), ("off saves us", "right"), ("why", "left")):
        table.add_column(column, justify=justify, no_wrap=column != "why")  # type: ignore[arg-type]
    done = 0.0
    scale = BAR / row["latency_us"]
    table.add_row("FLOPs at the peak", number(row["ideal_us"]), _step(0, row["ideal_us"], scale, "reached"), "", "")
    done = row["ideal_us"]
    for loss in row["losses"]:
        if loss["us"] < 0.0005 * row["latency_us"]:
            continue
        step = _step(done, loss["us"], scale, loss["cause"])
        table.add_row(loss["cause"], number(loss["us"]), step, number(loss["saves_us"]), Text(loss["why"], style="dim"))
        done += loss["us"]
    return table


def _step(start: float, length: float, scale: float, cause: str) -> Text:
    begin, end = round(start * scale), round((start + length) * scale)
    return Text(" " * min(begin, BAR - 1) + ("█" * (end - begin) or "▏"), style=COLOURS[cause])


def _advice(row: dict[str, Any]) -> RenderableType:
    """The causes whose absence would save most, and what would cure them."""
    text = Text("What would help most", style="bold")
    for loss in sorted(row["losses"], key=lambda x: -x["saves_us"])[:3]:
        if loss["saves_us"] > 0.01 * row["latency_us"]:
            text.append(f"\n  up to {number(loss['saves_us'])} us  ", style="not bold")
            text.append(loss["cause"], style=f"not bold {COLOURS[loss['cause']]}")
            text.append(f": {loss['cure']}", style="not bold")
    return text


def number(value: float) -> str:
    """Three significant digits, thousands separated."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.1g}"


def percent(share: float) -> str:
    """A share in percent, two significant digits under 10 %."""
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g} %"
