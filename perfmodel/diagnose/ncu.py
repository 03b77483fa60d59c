"""Nsight Compute's CSV: the raw page (a row a kernel, a row of units), the details page, and what `--metrics` prints (a row a value)."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.errors import PerfModelError

EXPORT = "ncu -i REPORT.ncu-rep --csv --page raw > report.csv"
NUMBER = re.compile(r"-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([eE][+-]?\d{1,2})?", re.ASCII)
LONGEST = 60
"""Of a number, in characters."""
COMMA = re.compile(r"-?(\d+,\d+|\d{1,3}(\.\d{3}){2,}|\d{1,3}(\.\d{3})+,\d+)", re.ASCII)
"""A number as a locale with decimal commas writes it."""
PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
TIMES = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
PLAIN = "% SM block branches cluster cycle inst pass request sample warp sector sectors thread register %/byte %/Kbyte %/register"
UNITS = (
    {prefix + word: scale for word in ("byte", "hz") for prefix, scale in PREFIXES.items()}
    | {word + rest: scale for word, scale in TIMES.items() for rest in ("", "econd")}
    | dict.fromkeys(["", *PLAIN.split()], 1.0)
)
"""Unit of a metric -> its base unit (bytes, Hz, nanoseconds, percent)."""
PER_SECOND = {unit: 1e9 / UNITS[unit] for word in TIMES for unit in (word, word + "econd")}
IDENTITY = ("ID", "Kernel Name")
VALUES = ("Metric Name", "Metric Value")
DEVICE = "device__attribute_display_name"
WORDS = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
    DEVICE,
)
"""Columns that are no metric."""


@dataclass
class Launch:
    """One profiled launch of a kernel, line `line` of the file.

    `metrics`: by ncu's name, or "Section/Label" where the details page has labels, in base units: bytes, Hz, nanoseconds, percent.
    `words`: what is no number, such as "Grid Size".
    """

    name: str
    line: int
    metrics: dict[str, float] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)


def parse_ncu(text: str, *, file: str | Path | None = None, only: Collection[str] | None = None) -> list[Launch]:
    """The launches in what `ncu --csv` printed, in their order; lines of others are passed over. `only`: the metrics to keep.

    Raises PerfModelError, with the line, where there is no table or no kernel, for a page without kernels, a cut line, a missing row of
    units, a unit that is not known, and for decimal commas.
    """
    rows = _rows(text, file)
    number, header = next(rows)
    if not set(IDENTITY) <= set(header):
        raise PerfModelError(
            "printed other columns", file=file, line=number, field="ncu", value=header[:6], mend=f"Export the raw page: {EXPORT}."
        )
    launches = _long(header, rows, file, only) if set(VALUES) <= set(header) else _wide(header, rows, file, only)
    if not launches:
        raise PerfModelError("holds no kernel", file=file, field="ncu", mend="Look at ncu's messages: no kernel ran, or a filter took all.")
    return launches


def _rows(text: str, file: str | Path | None) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of the header and of each row after it."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(('"ID"', "ID,"))), None)
    if start is None:
        raise _no_table(text, file)
    if lines[start].startswith('"ID";'):
        raise PerfModelError("has semicolons between cells", file=file, line=start + 1, mend="Export it again: spreadsheets change CSV.")
    quoted, least, width, header = lines[start].startswith('"'), 0, 0, list[str]()
    for number, line in enumerate(lines[start:], start + 1):
        if not line or line.startswith("==") or (quoted and not line.startswith('"')):
            continue
        try:
            cells = next(csv.reader([line], strict=True))
        except csv.Error:
            cells = []
        if width and cells == header:
            raise PerfModelError("a second report begins here", file=file, line=number, mend="Diagnose one report at a time.")
        if not width:  # rows of the details page end after the value, short of the header
            width, header = len(cells), cells
            least = cells.index("Metric Value") + 1 if "Metric Value" in cells else width
        if not cells or not least <= len(cells) <= width:
            what = "cut" if len(cells) < least else "broken"
            raise PerfModelError(
                f"the line is {what}: {len(cells)} cells of {least}", file=file, line=number, mend=f"Export it again, to the end: {EXPORT}."
            )
        yield number, cells + [""] * (width - len(cells))


def _no_table(text: str, file: str | Path | None) -> PerfModelError:
    """What is wrong with text that holds no table of kernels."""
    for sign, problem, mend in (
        ("ERR_NVGPUCTRPERM", "this user may not read the GPU's counters", "Run ncu as root, or ask for access to the counters."),
        ("No kernels were profiled", "no kernel was profiled", "Check ncu's filters, and that the program launches kernels."),
        ("Section: ", "is the details page as text", f"Add --csv: {EXPORT}."),
        ("Launch Settings", "is the session page", f"Export the raw page: {EXPORT}."),
        ('"#","Address"', "is the source page", f"Export the raw page: {EXPORT}."),
        ('"#","Source"', "is the source page", f"Export the raw page: {EXPORT}."),
    ):
        if sign in text:
            return PerfModelError(problem, file=file, field="ncu", mend=mend)
    return PerfModelError("printed no table", file=file, field="ncu", value=text.strip()[-200:], mend=f"Run the command by hand; {EXPORT}.")


def _long(header: list[str], rows: Iterator[tuple[int, list[str]]], file: str | Path | None, only: Collection[str] | None) -> list[Launch]:
    found: dict[str, Launch] = {}
    for line, cells in rows:
        row = dict(zip(header, cells, strict=True))
        launch = found.setdefault(row["ID"], Launch(row["Kernel Name"], line, words=_words(row)))
        name, section = row["Metric Name"], row.get("Section Name", "")
        if not name:
            continue  # a rule's advice
        key = name if "__" in name or section in ("", "Command line profiler metrics") else f"{section}/{name}"
        if only is None or key in only:
            _keep(launch, key, row["Metric Value"], row.get("Metric Unit", ""), file, line)
    return list(found.values())


def _wide(header: list[str], rows: Iterator[tuple[int, list[str]]], file: str | Path | None, only: Collection[str] | None) -> list[Launch]:
    launches: list[Launch] = []
    line, units = next(rows, (0, []))
    if units and units[header.index("ID")]:
        raise PerfModelError("the row of units is missing", file=file, line=line, mend=f"Leave the row under the names in place: {EXPORT}.")
    columns = [(place, name) for place, name in enumerate(header) if (name not in WORDS if only is None else name in only)]
    twice = next((name for place, name in columns if name in header[:place]), None)
    if twice is not None:
        raise PerfModelError("the column is there twice", file=file, field=twice, mend=f"Export it again: {EXPORT}.")
    for line, cells in rows:
        row = dict(zip(header, cells, strict=True))
        launch = Launch(row["Kernel Name"], line, words=_words(row))
        for place, name in columns:
            _keep(launch, name, cells[place], units[place], file, line)
        launches.append(launch)
    return launches


def _words(row: dict[str, str]) -> dict[str, str]:
    return {name: row[name] for name in WORDS if row.get(name)}


def _keep(launch: Launch, name: str, value: str, unit: str, file: str | Path | None, line: int) -> None:
    """Put a metric into its launch in its base unit; one that the GPU does not have ("n/a"), or a word, is left out."""
    if len(value) <= LONGEST and NUMBER.fullmatch(value):
        launch.metrics[name] = float(value.replace(",", "")) * _scale(unit, name, file, line)
    elif COMMA.fullmatch(value):
        raise PerfModelError(
            "has decimal commas", file=file, line=line, field=name, value=value, mend="Export it with LC_ALL=C before the command."
        )


def _scale(unit: str, name: str, file: str | Path | None, line: int) -> float:
    """Factor to the base unit; of a ratio over a time, that over a second."""
    top, _, under = unit.partition("/")
    if unit in UNITS:
        return UNITS[unit]
    if top not in UNITS:
        raise PerfModelError(
            "printed a unit that is not known", file=file, line=line, field=name, value=unit, mend="Run it with --print-units base."
        )
    return UNITS[top] * PER_SECOND.get(under, 1.0)
