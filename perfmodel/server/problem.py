"""What a client gets in place of an answer: the command's message, and its parts by themselves."""

from __future__ import annotations

import json
import math

from pydantic import BaseModel, ConfigDict

from perfmodel.errors import PerfModelError, shorten
from perfmodel.workload.huggingface.fields import printable

Answer = tuple[int, bytes]
"""Status and JSON body."""
Scalar = str | int | float | bool | None


class Problem(BaseModel):
    """A request that was not answered, and the mend."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    message: str
    """What the command line would print."""
    field: str | None = None
    """Field of the request, or of a specification or config in it."""
    line: int | None = None
    """Line of the text that was sent, from 1, where it is known."""
    value: Scalar = None
    """The offending value; a long one is cut."""
    mend: str | None = None
    """What to do about it."""


class RefusedError(Exception):
    """A request that is refused before it is judged, with the status to say so."""

    def __init__(self, status: int, message: str, mend: str | None = None) -> None:
        super().__init__(message)
        self.status, self.problem = status, Problem(message=f"{message}. {mend}" if mend else message, mend=mend)


def problem_of(error: PerfModelError) -> Problem:
    """The parts of an error of the library; fields that the command spells as options or arguments are those of the request."""
    field = None if error.field is None else error.field.removeprefix("--")
    field = field.lower() if field is not None and field.isupper() else field
    return Problem(message=clean(str(error)), field=clean(field), line=error.line, value=scalar(error.value), mend=clean(error.mend))


def clean(text: str | None) -> str | None:
    """`text` without control characters and lone surrogates, which a request may hold and JSON as UTF-8 may not."""
    return None if text is None else printable(text)


def scalar(value: object) -> Scalar:
    """`value` where JSON has it and it is short, else its beginning as text."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and abs(value) < 2**53:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str) and len(value) <= 200:
        return clean(value)
    return clean(shorten(value))


def refused(refusal: RefusedError) -> Answer:
    """Status and body of a refusal."""
    return refusal.status, refusal.problem.model_dump_json().encode()


def to_json(data: object) -> bytes:
    """`data` as JSON; NaN and infinity are a bug of ours and raise ValueError."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode()
