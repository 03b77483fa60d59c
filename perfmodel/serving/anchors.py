"""A user's own measurements of services: rows of a CSV or YAML file, or of Python, that pull predictions to what was measured."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.files import line_finder, load_yaml, read_text
from perfmodel.serving.parallel import Parallel
from perfmodel.validated import Strict, explain, validate

MOST_ANCHORS = 500
"""Measurements of one call; their covariances are held in a square matrix."""
Count = Field(default=1, ge=1, le=2**20)
PREFILL = ("prefill_tp", "prefill_pp", "prefill_dp", "prefill_ep", "prefill_instances")


class Anchor(Strict):
    """One measured service under one load: a closed loop of `concurrency` requests at a time, means over requests."""

    model: str
    """Bundled id, or path to a config.json."""
    gpu: str
    """Id of the catalogue, or path to a YAML file."""
    backend: Literal["trtllm", "sglang", "vllm"] | None = None
    """Engine that served; absent: whichever the prediction is of."""
    format: str | None = None
    """FORMAT of the weights; absent: the default of this model on this GPU."""
    tp: int = Count
    pp: int = Count
    ep: int = Count
    dp: int = Count
    """How the GPUs of an instance (that decodes) share the model."""
    mode: Literal["aggregated", "disaggregated"] = "aggregated"
    isl: int = Field(ge=1, le=2**24)
    """Mean tokens of a prompt."""
    osl: int = Field(ge=1, le=2**24)
    """Mean tokens of an answer."""
    concurrency: int = Field(ge=1, le=10**7)
    """Requests at a time of all instances."""
    instances: int = Count
    """Alike ones that share the load; of a disaggregated service those that decode."""
    prefill_instances: int = Count
    prefill_tp: int | None = Field(default=None, ge=1, le=2**20)
    """Of the instances that run prompts, disaggregated."""
    prefill_pp: int = Count
    prefill_ep: int = Count
    prefill_dp: int = Count
    ttft_ms: float | None = Field(default=None, ge=1e-3, le=1e9)
    """Measured mean time to the first token."""
    tpot_ms: float | None = Field(default=None, ge=1e-3, le=1e9)
    """Measured mean time for each further token."""
    file: str | None = Field(default=None, exclude=True)
    """Where the row stands, for messages."""
    line: int | None = Field(default=None, exclude=True)

    @model_validator(mode="after")
    def _whole(self) -> Anchor:
        if self.ttft_ms is None and self.tpot_ms is None:
            facts = {"field": "tpot_ms", "mend": "Give tpot_ms, ttft_ms or both.", "value": None}
            raise PydanticCustomError("no_figure", "nothing was measured", facts)
        given = [name for name in PREFILL if name in self.model_fields_set]
        if self.mode == "aggregated" and given:
            facts = {"field": given[0], "value": getattr(self, given[0]), "mend": "Leave it out, or write mode disaggregated."}
            raise PydanticCustomError("not_apart", "is for disaggregated services", facts)
        if self.mode == "disaggregated" and self.prefill_tp is None:
            facts = {"field": "prefill_tp", "value": None, "mend": "Give the ranks of an instance that runs prompts."}
            raise PydanticCustomError("no_prefill", "is needed of a disaggregated service", facts)
        return self

    @property
    def decode(self) -> Parallel:
        """Ranks of an instance (that decodes)."""
        return Parallel(self.tp, self.pp, self.dp, self.ep)

    @property
    def prefill(self) -> Parallel | None:
        """Of one that runs prompts, where those are others."""
        return None if self.prefill_tp is None else Parallel(self.prefill_tp, self.prefill_pp, self.prefill_dp, self.prefill_ep)

    @property
    def clients(self) -> float:
        """Requests at a time of one aggregated instance, or of a disaggregated service."""
        return self.concurrency / (self.instances if self.mode == "aggregated" else 1)

    @property
    def place(self) -> str:
        """`anchors.csv:3`, or the load where the row is of no file."""
        return f"{self.file}:{self.line}" if self.file else f"the anchor at isl {self.isl}, osl {self.osl}, concurrency {self.concurrency}"


COLUMNS = tuple(name for name in Anchor.model_fields if name not in ("file", "line"))
HEADER = "model,gpu,backend,format,tp,pp,ep,dp,mode,isl,osl,concurrency,ttft_ms,tpot_ms"


class AnchorFile(Strict):
    """A YAML file of anchors."""

    anchors: tuple[Anchor, ...] = Field(strict=False)


def as_anchors(given: Any) -> tuple[Anchor, ...]:
    """Anchors as Python gives them: Anchor objects or mappings of their fields, or the path of a file. Raises PerfModelError."""
    if isinstance(given, str | Path):
        return read_anchors(given)
    if not isinstance(given, Sequence) or not all(isinstance(row, Anchor | Mapping) for row in given):
        raise PerfModelError("is no list of anchors", field="anchors", value=given, mend="Give a list of Anchor objects or mappings.")
    return _few([row if isinstance(row, Anchor) else validate(Anchor, dict(row)) for row in given], None)


def read_anchors(path: str | Path) -> tuple[Anchor, ...]:
    """The rows of a CSV, or of a YAML file with a list `anchors`. Raises PerfModelError with file, line, field, value and mend."""
    text = read_text(path)
    rows = _of_yaml(path, text) if Path(path).suffix.lower() in (".yaml", ".yml") else [_anchor(path, *row) for row in _rows(path, text)]
    if not rows:
        raise PerfModelError("holds no measurement", file=path, mend=f"Write a line under the header {HEADER}.")
    return _few(rows, path)


def _few(rows: Sequence[Anchor], path: str | Path | None) -> tuple[Anchor, ...]:
    if len(rows) > MOST_ANCHORS:
        raise PerfModelError(f"at most {MOST_ANCHORS} anchors", file=path, field="anchors", value=len(rows), mend="Give fewer rows.")
    return tuple(rows)


def _of_yaml(path: str | Path, text: str) -> list[Anchor]:
    found = validate(AnchorFile, load_yaml(path, text), file=path, text=text).anchors
    line_of = line_finder(text)
    return [one.model_copy(update={"file": str(path), "line": line_of(("anchors", at))}) for at, one in enumerate(found)]


def _rows(path: str | Path, text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, words by column) without empty ones; lines that are empty or begin with # are left out."""
    reader = csv.reader(text.splitlines(), skipinitialspace=True)
    header: list[str] = []
    try:
        for cells in reader:
            words = [cell.strip() for cell in cells]
            if not any(words) or words[0].startswith("#"):
                continue
            if not header:
                header = _header(path, reader.line_num, words)
                continue
            if len(words) != len(header):
                mend = f"Give {len(header)} values, as in the header; empty ones are left out."
                raise PerfModelError("has another number of values", file=path, line=reader.line_num, value=len(words), mend=mend)
            yield reader.line_num, {name: word for name, word in zip(header, words, strict=True) if word}
    except csv.Error as error:
        raise PerfModelError(f"broken CSV: {error}", file=path, line=reader.line_num, mend="Mend the line.") from error


def _header(path: str | Path, line: int, words: list[str]) -> list[str]:
    if ";" in words[0]:
        raise PerfModelError("has semicolons between cells", file=path, line=line, mend="Put commas there, and points into numbers.")
    for at, name in enumerate(words):
        if name not in COLUMNS:
            raise PerfModelError("no such column", file=path, line=line, field=name, mend=did_you_mean(name, COLUMNS, show=20))
        if name in words[:at]:
            raise PerfModelError("the column is there twice", file=path, line=line, field=name, mend="Keep one of them.")
    lacking = [name for name, field in Anchor.model_fields.items() if field.is_required() and name not in words]
    if lacking:
        raise PerfModelError("the column is missing", file=path, line=line, field=lacking[0], mend=f"A header is {HEADER}, say.")
    return words


def _anchor(path: str | Path, line: int, words: dict[str, str]) -> Anchor:
    """Words of a CSV as an anchor: numbers are read from text."""
    try:
        found = Anchor.model_validate(words, strict=False)
    except ValidationError as error:
        wrong = explain(error, Anchor)
        raise PerfModelError(wrong.problem, file=path, line=line, field=wrong.field, value=wrong.value, mend=wrong.mend) from error
    return found.model_copy(update={"file": str(path), "line": line})
