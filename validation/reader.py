"""A strict reader of CSV files of measurements: what it does not understand it refuses, with line, column, value and mend.

A file is read line by line in chunks, so that memory holds the numbers only. Comment lines (`# key: value`) may stand above the header.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.units import MICROSECOND
from perfmodel.validation.columns import COLUMNS, Cell, Column, Kind
from perfmodel.validation.header import check_header, kind_of, parse_about
from perfmodel.validation.measurements import About, Integers, Labels, Measurements

CHUNK = 20_000
"""Rows parsed at a time."""
LONGEST_LINE = 2**16
"""Characters; a longer line is no row of measurements."""


def read_measurements(path: str | Path) -> Measurements:
    """The measurements in a CSV file.

    Raises PerfModelError with file, line, column, value and mend for the first thing that is wrong.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            return _read(path, stream)
    except OSError as error:
        raise PerfModelError(f"cannot read: {error.strerror}", file=path, mend="Give a CSV file.") from error


def read_about(path: str | Path) -> About:
    """The comment lines above the header alone."""
    with Path(path).open(encoding="utf-8-sig") as stream:
        return parse_about([line for line in stream if line.startswith("#")])


def count_rows(path: str | Path) -> int:
    """Rows of a bundled table of any columns, comments and header not counted."""
    with Path(path).open(encoding="utf-8-sig", newline="") as stream:
        return sum(1 for row in csv.reader(line for line in stream if not line.startswith("#")) if row) - 1


def _read(path: Path, stream: IO[str]) -> Measurements:
    lines = _lines(path, stream)
    comments, first = [], ""
    for line in lines:
        if line.strip() and not line.startswith("#"):
            first = line
            break
        comments.append(line)
    about = parse_about(comments)
    header_line = len(comments) + 1
    names = [name.strip() for name in next(csv.reader([first]), [])]
    check_header(names, first, about, path, header_line)
    kind = kind_of(names)
    table = _Table(path, kind, names)
    rows = csv.reader(lines, strict=True)
    try:
        for chunk in _chunks(rows, header_line):
            table.add(*chunk)
    except csv.Error as error:
        raise PerfModelError(
            f"broken CSV: {error}", file=path, line=header_line + rows.line_num, mend="Close the quotes, or leave them out."
        ) from error
    if not table.lines:
        raise PerfModelError("holds no rows", file=path, line=header_line, mend="Write one measurement a line below the header.")
    return table.finish(about)


def _lines(path: Path, stream: IO[str]) -> Iterator[str]:
    """Lines of text, none of them huge. Bytes that are not UTF-8 arrive as surrogates and are refused here, where the line is known."""
    number = 0
    while line := stream.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise PerfModelError(f"a line is longer than {LONGEST_LINE} characters", file=path, line=number, mend="Give a CSV file.")
        if not line.isascii() and any("\ud800" <= c <= "\udfff" for c in line):
            raise PerfModelError("is not UTF-8 text", file=path, line=number, mend="Save it as UTF-8.")
        yield line


def _chunks(rows: Iterator[list[str]], offset: int) -> Iterator[tuple[list[list[str]], list[int]]]:
    """Rows, blank lines dropped, and the line at which each ends."""
    reader = rows
    numbered = ((row, offset + reader.line_num) for row in reader if row)  # type: ignore[attr-defined]
    while chunk := list(islice(numbered, CHUNK)):
        yield [row for row, _ in chunk], [line for _, line in chunk]


class _Cells(dict[str, float]):
    """What each text of a column means, parsed once; a label means its place among the labels."""

    def __init__(self, column: Column) -> None:
        super().__init__()
        self.column = column
        self.labels: dict[str, int] = {}

    def __missing__(self, text: str) -> float:
        stripped = text.strip()
        if stripped:
            value: Cell | None = self.column.parse(stripped)
        else:
            value = self.column.default
        if value is None:
            raise PerfModelError("is empty", mend="Fill the cell.")
        number = self.labels.setdefault(value, len(self.labels)) if isinstance(value, str) else value
        if self.column.role != "time":  # latencies hardly repeat
            self[text] = number
        return number


class _Table:
    """Columns that grow chunk by chunk."""

    def __init__(self, path: Path, kind: Kind, names: list[str]) -> None:
        self.path, self.kind, self.width = path, kind, len(names)
        self.places = {name: place for place, name in enumerate(names)}
        self.cells = {column.name: _Cells(column) for column in COLUMNS[kind]}
        self.values: dict[str, array[Any]] = {c.name: array("d" if c.role == "time" else "q") for c in COLUMNS[kind]}
        self.lines: array[int] = array("q")

    def add(self, rows: list[list[str]], lines: list[int]) -> None:
        """Parse and append rows; the first bad cell in the order of the file is the one that is named."""
        try:
            columns = list(zip(*rows, strict=True))
            if len(columns) != self.width:
                raise ValueError("width")
            for name, cells in self.cells.items():
                texts = columns[self.places[name]] if name in self.places else [""] * len(rows)
                self.values[name].extend([cells[text] for text in texts])
        except (PerfModelError, ValueError):
            self._name_the_first_mistake(rows, lines)
        self.lines.extend(lines)

    def _name_the_first_mistake(self, rows: list[list[str]], lines: list[int]) -> NoReturn:
        for row, line in zip(rows, lines, strict=True):
            if len(row) != self.width:
                raise PerfModelError(
                    f"has {len(row)} cells where the header has {self.width}", file=self.path, line=line, mend="Give one cell a column."
                )
            for name, cells in self.cells.items():
                text = row[self.places[name]] if name in self.places else ""
                try:
                    cells[text]
                except PerfModelError as error:
                    problem = error.problem if error.file is None else f"{error.file}: {error.problem}"
                    raise PerfModelError(
                        problem, file=self.path, line=line, field=name, value=text.strip() or None, mend=error.mend
                    ) from error
        raise AssertionError("a chunk failed, but none of its cells did")

    def finish(self, about: About) -> Measurements:
        """All rows, checked against each other."""
        columns = {name: np.array(values) for name, values in self.values.items()}
        spec = {role: [c.name for c in COLUMNS[self.kind] if c.role == role] for role in ("label", "size", "time")}
        labels = {name: Labels(columns[name].astype(np.int32), tuple(self.cells[name].labels)) for name in spec["label"]}
        sizes: dict[str, Integers] = {name: columns[name] for name in spec["size"]}
        latency = columns[spec["time"][0]] * MICROSECOND
        rows = Measurements(self.kind, str(self.path), np.array(self.lines), labels, sizes, latency, about)
        if self.kind == "layer":
            check_layers(rows)
        return rows


def check_layers(rows: Measurements) -> None:
    """Raises PerfModelError at the first layer whose sizes contradict each other."""
    s = rows.sizes
    for wrong, name, problem, mend in (
        (s["topk"] > s["num_experts"], "topk", "is over the number of experts", "Swap the two, or mend one."),
        (s["num_experts"] % s["ep"] != 0, "ep", "does not divide the experts", "Give the size of the expert-parallel group."),
    ):
        if wrong.any():
            row = int(np.argmax(wrong))
            raise PerfModelError(problem, file=rows.file, line=int(rows.lines[row]), field=name, value=int(s[name][row]), mend=mend)
