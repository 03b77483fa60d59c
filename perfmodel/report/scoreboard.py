"""The scoreboard as a Markdown table, and put into a document between its two markers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError

BEGIN, END = "<!-- scoreboard -->", "<!-- /scoreboard -->"
HEADER = ("measured", "rows scored", "median error", "mean error", "in 80 % interval", "fitted on")


def markdown(board: Mapping[str, Any]) -> str:
    """The table, and a line that says when and from what it was made; `board` is the JSON of `perfmodel scoreboard`."""
    rows = [HEADER, ("---", *["---:"] * (len(HEADER) - 1)), *(_cells(line) for line in board["lines"])]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    data = board["versions"].get("aiconfigurator-core", "not installed")
    return f"{table}\n\n*`perfmodel scoreboard`, {board['date']}, measurements of aiconfigurator-core {data}.*\n"


def _cells(line: Mapping[str, Any]) -> Sequence[str]:
    errors = [percent(line[name]) for name in ("median_ape", "mape")]
    inside = percent(line["coverage80"], digits=0)
    return [line["name"], f"{line['scored']:,}", *errors, inside, _fitted_on(line["fitted_on"], line["unseen"])]


def _fitted_on(share: float | None, unseen: bool) -> str:
    if share == 0:
        return "none"
    return f"{percent(share)}, none scored" if unseen else percent(share)


def percent(share: float | None, *, digits: int = 1) -> str:
    """`12.3 %`, or – where there is none."""
    return "–" if share is None else f"{share:.{digits}%}".replace("%", " %")


def replaced(text: str, inside: str, file: str | Path) -> str:
    """`text` with `inside` between the lines of the two markers. Raises PerfModelError unless each stands there once, in order."""
    lines = text.splitlines(keepends=True)
    begin, end = (_only_line(lines, marker, file) for marker in (BEGIN, END))
    if end < begin:
        raise PerfModelError(f"stands above {BEGIN}", file=file, line=end + 1, value=END, mend="Swap the two lines.")
    return "".join([*lines[: begin + 1], inside, *lines[end:]])


def _only_line(lines: Sequence[str], marker: str, file: str | Path) -> int:
    """The index of the only line that holds nothing but `marker`."""
    places = [index for index, line in enumerate(lines) if line.strip() == marker]
    if not places:
        raise PerfModelError(f"has no line {marker}", file=file, mend=f"Write the lines {BEGIN} and {END} where the table goes.")
    if len(places) > 1:
        raise PerfModelError("the marker stands there twice", file=file, line=places[1] + 1, value=marker, mend="Keep one of them.")
    return places[0]
