"""Traces of requests: CSV files with the columns of public ones, told by their header."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.files import read_text
from perfmodel.workload.expectation import Array

MOST_BYTES = 512 * 2**20
MOST_TOKENS = 2**24


@dataclass(frozen=True)
class Form:
    """Columns of a kind of trace, in lower case, and seconds of a unit of its numeric times."""

    name: str
    time: str
    prompt: str
    output: str
    unit: float


FORMS = (
    Form("Azure LLM inference", "timestamp", "contexttokens", "generatedtokens", 1.0),
    Form("Mooncake", "timestamp", "input_length", "output_length", 1e-3),
    Form("BurstGPT", "timestamp", "request tokens", "response tokens", 1.0),
)
HEADERS = "TIMESTAMP,ContextTokens,GeneratedTokens (Azure), timestamp,input_length,output_length (Mooncake, milliseconds) or " \
    "Timestamp,Request tokens,Response tokens (BurstGPT)"  # fmt: skip


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their arrival."""

    form: str
    arrival: Array
    """Seconds after the first."""
    prompt: Array
    output: Array
    skipped: int
    """Requests without a prompt or without an answer, failures that is, which are left out."""


def read_trace(path: str, most: int) -> Trace:
    """The first `most` requests of a trace. Raises PerfModelError with file, line, field and value for what is none."""
    text = read_text(path, most=MOST_BYTES)
    rows = _lines_of_json(path, text) if Path(path).suffix.lower() == ".jsonl" else _rows_of_csv(path, text)
    first = next(rows, None)
    if first is None:
        raise PerfModelError("holds no requests", file=path, field="trace", mend=f"Give a CSV with the columns {HEADERS}.")
    form = _form(path, first[1])
    failed: list[int] = []
    found = np.array(list(islice(_requests(path, form, chain([first], rows), failed), most)), dtype=float).reshape(-1, 3)
    if not len(found):
        raise PerfModelError("holds no request with a prompt and an answer", file=path, field="trace", mend="Is it the right file?")
    found = found[np.argsort(found[:, 0], kind="stable")]
    return Trace(form.name, found[:, 0] - found[0, 0], found[:, 1], found[:, 2], len(failed))


Row = tuple[int, dict[str, Any]]


def _rows_of_csv(path: str, text: str) -> Iterator[Row]:
    """(line, values by lower-case column); rows of other lengths than the header raise PerfModelError."""
    reader = csv.reader(text.splitlines())
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        for fields in reader:
            if not fields:
                continue
            if len(fields) != len(header):
                mend = f"Give {len(header)} values, as in the header."
                raise PerfModelError("has another number of values", file=path, line=reader.line_num, value=len(fields), mend=mend)
            yield reader.line_num, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise PerfModelError(f"broken CSV: {error}", file=path, line=reader.line_num, mend="Mend the line.") from error


def _lines_of_json(path: str, text: str) -> Iterator[Row]:
    """The same of JSON lines, as Mooncake's traces are published."""
    for line, words in enumerate(text.splitlines(), start=1):
        if not words.strip():
            continue
        try:
            values = json.loads(words)
        except (ValueError, RecursionError) as error:
            raise PerfModelError("broken JSON", file=path, line=line, value=words, mend="Give one JSON object a line.") from error
        if not isinstance(values, dict):
            raise PerfModelError("is no JSON object", file=path, line=line, value=values, mend="Give one JSON object a line.")
        yield line, {str(name).lower(): value for name, value in values.items()}


def _form(path: str, row: dict[str, Any]) -> Form:
    for form in FORMS:
        if {form.time, form.prompt, form.output} <= row.keys():
            return form
    raise PerfModelError(
        "is no trace known here", file=path, line=1, field="header", value=", ".join(row), mend=f"Its columns are {HEADERS}."
    )


def _requests(path: str, form: Form, rows: Iterable[Row], failed: list[int]) -> Iterator[tuple[float, float, float]]:
    """(seconds, prompt, output) of each request; lines of those that have no tokens go into `failed`."""
    for line, row in rows:
        prompt, output = (_tokens(path, line, name, row.get(name)) for name in (form.prompt, form.output))
        seconds = _seconds(path, line, form, row.get(form.time))
        if prompt > 0 and output > 0:
            yield seconds, prompt, output
        else:
            failed.append(line)


def _tokens(path: str, line: int, field: str, word: Any) -> float:
    try:
        value = float(word)
    except (TypeError, ValueError, OverflowError):
        value = float("nan")
    if not (0 <= value <= MOST_TOKENS and value == int(value)):
        mend = f"Give a whole number of tokens up to {MOST_TOKENS:,}."
        raise PerfModelError("is no number of tokens", file=path, line=line, field=field, value=word, mend=mend)
    return value


def _seconds(path: str, line: int, form: Form, word: Any) -> float:
    """A time as seconds: a number of the form's unit, or a date and time (UTC where it names no zone)."""
    try:
        value = float(word) * form.unit
    except (TypeError, ValueError, OverflowError):
        try:
            moment = datetime.fromisoformat(str(word).strip())
            value = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            value = float("nan")
    if not abs(value) <= 1e12:
        mend = "Give a number, or a time such as 2023-11-16 18:17:03.98."
        raise PerfModelError("is no time", file=path, line=line, field=form.time, value=word, mend=mend)
    return value
