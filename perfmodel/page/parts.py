"""Small pieces that the views are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from perfmodel.page.figures import Figure, for_file


def text(tag: str, words: str = "", classes: str = "") -> TextElement:
    """An HTML element that holds plain text."""
    return TextElement(tag=tag, text=words).classes(classes)


def block(tag: str, classes: str = "") -> ui.element:
    """An HTML element to be filled."""
    return ui.element(tag).classes(classes)


def choice(label: str, options: Iterable[str] | dict[str, str], value: str, change: Callable[[Any], None], *, hint: str = "") -> ui.select:
    """A choice of one; a value that is not offered, from an address say, stands as it is, so that its error can be shown."""
    offered = dict(options) if isinstance(options, dict) else {option: option for option in options}
    offered.setdefault(value, value)
    box = ui.select(offered, label=label, value=value, on_change=lambda event: change(event.value))
    return _field(box, hint)  # type: ignore[return-value]


def entry(label: str, value: str, change: Callable[[Any], None], *, hint: str = "", unit: str = "", numeric: bool = True) -> ui.input:
    """A line of text, or a number with its unit."""
    box = ui.input(label, value=value, on_change=lambda event: change(event.value or "")).props("debounce=350")
    if numeric:
        box.props("inputmode=numeric")
    if unit:
        box.props(f'suffix="{unit}"')
    return _field(box, hint)  # type: ignore[return-value]


def _field(box: ui.element, hint: str) -> ui.element:
    box.props("outlined dense")
    if hint:
        with box:
            ui.tooltip(hint).props("max-width=280px delay=400")
    return box


def button(label: str, press: Callable[[], Any], *, icon: str | None = None, hint: str = "") -> ui.button:
    """A quiet button."""
    made = ui.button(label, on_click=press, icon=icon, color=None).props("flat dense no-caps").classes("quiet")
    if hint:
        made.tooltip(hint)
    return made


def table(heads: list[tuple[str, str]], rows: list[list[str]], *, label: str, words: int) -> None:
    """A table of plain cells; the first `words` columns are words and the others figures. It scrolls by itself where it is too wide."""
    with block("div", "scroll").props(f'tabindex=0 role=region aria-label="{label}"'), block("table", "figures"):
        with block("thead"), block("tr"):
            for place, (name, unit) in enumerate(heads):
                with text("th", name, "" if place < words else "num").props("scope=col"):
                    if unit:
                        text("span", unit, "unit")
        with block("tbody"):
            for row in rows:
                with block("tr"):
                    for place, cell in enumerate(row):
                        text("td", cell, "" if place < words else "num")


def save_png(drawn: Figure, title: str, name: str) -> None:
    """Have the browser draw the figure, with title and legend, into a PNG and save it."""
    figure = json.dumps(for_file(drawn, title)).replace("<", "\\u003c")
    options = json.dumps({"format": "png", "scale": 2, "width": 1100, "height": 700, "filename": name})
    ui.run_javascript(f"import('nicegui-plotly').then(m => m.Plotly.downloadImage({figure}, {options}))")


class Notice:
    """A message that stands where the answer would: what is wrong, and the mend."""

    def __init__(self) -> None:
        self.box = block("div", "notice").props("role=alert")
        with self.box:
            self.words = text("p")
        self.clear()

    def show(self, message: str) -> None:
        """Show a message."""
        self.words.text = message
        self.box.set_visibility(True)

    def clear(self) -> None:
        """Take the message away."""
        self.box.set_visibility(False)
