"""The time of one token count, cause by cause, as a table with a waterfall in it."""

from __future__ import annotations

from typing import Any

from perfmodel.page.figures import CAUSE_COLOURS, shown_causes
from perfmodel.page.parts import block, text
from perfmodel.report.gap import SMALLEST, label, parts
from perfmodel.report.numbers import number, percent


def breakdown(row: dict[str, Any]) -> None:
    """Draw the table into the current element: each cause with its bar from where the last one ended, why it is there, what cures it."""
    tokens = "1 token" if row["tokens"] == 1 else f"{row['tokens']:,} tokens"
    text("h3", f"{tokens}, cause by cause")
    text("p", "From the ideal time, all FLOPs at the dense peak, to the prediction. “Saves” is the time without this cause alone; "
              "causes overlap, so savings do not add up.", "muted")  # fmt: skip
    with block("div", "scroll").props('tabindex=0 role=region aria-label="Breakdown by cause"'), block("table", "causes"):
        with block("thead"), block("tr"):
            for name, unit, classes in (
                ("Cause", "", ""),
                ("Time", "µs", "num"),
                ("Share", "", "num"),
                ("", "", "wide"),
                ("Saves", "µs", "num"),
            ):
                with text("th", name, classes).props("scope=col" if name else "aria-hidden=true"):
                    if unit:
                        text("span", unit, "unit")
        with block("tbody"):
            _lines(row)
    text("p", f"Predicted {number(row['latency_us'])} µs with {row['kernel']}; bound by {row['bound']}.", "muted")


def _lines(row: dict[str, Any]) -> None:
    done, whole = 0.0, row["latency_us"]
    losses = {loss["cause"]: loss for loss in row["losses"]}
    for cause, us in parts(row):
        if us >= SMALLEST * whole or cause == "reached":
            _line(cause, us, done, whole, losses.get(cause))
        done += us


def _line(cause: str, us: float, done: float, whole: float, loss: dict[str, Any] | None) -> None:
    with block("tr", "main"):
        with block("th").props("scope=row"):
            swatch(cause)
            text("span", label(cause))
        text("td", number(us), "num")
        text("td", percent(us / whole), "num")
        with block("td", "wide").props("aria-hidden=true"), block("div", "track"):
            block("div", "bar").style(f"left:{100 * done / whole:.2f}%;width:{100 * us / whole:.2f}%;background:{CAUSE_COLOURS[cause]}")
        text("td", number(loss["saves_us"]) if loss else "", "num")
    with block("tr", "why"), block("td").props("colspan=5"):
        text("p", loss["why"] if loss else "The FLOPs of the layer, all of them at the dense peak.")
        if loss:
            with block("p", "cure"):
                text("b", "Cure: ")
                text("span", loss["cure"])


def swatch(cause: str) -> None:
    """A square in the colour of a cause."""
    block("span", "swatch").style(f"background:{CAUSE_COLOURS[cause]}").props("aria-hidden=true")


def legend(result: dict[str, Any]) -> None:
    """List items into the current element: the causes that are seen in the plot."""
    for cause in shown_causes(result):
        with block("li"):
            swatch(cause)
            text("span", label(cause))
