"""One family of errors: each names the file, the line, the field, the offending value and the mend."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from pathlib import Path


class PerfModelError(Exception):
    """A mistake in what the user gave. The command prints it in one line and exits with `exit_code`.

    `problem` says what is wrong; `mend` says what to do about it. The rest says where, as far as it is known.
    """

    exit_code = 2

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        line: int | None = None,
        field: str | None = None,
        value: object = None,
        mend: str | None = None,
    ) -> None:
        self.problem, self.file, self.line, self.field, self.value, self.mend = problem, file, line, _cut(field), value, mend
        super().__init__(str(self))

    def __str__(self) -> str:
        where = str(self.file) if self.file is not None else ""
        if self.line is not None:
            where += f":{self.line}" if where else f"line {self.line}"
        parts = [where, self.field or "", self.problem + (f" (got {shorten(self.value)})" if self.value is not None else "")]
        text = ": ".join(p for p in parts if p)
        return f"{text}. {self.mend}" if self.mend else text


class MissingRequirementError(PerfModelError):
    """The call is right, but needs hardware or an optional extra that is not there; the message names it."""

    exit_code = 3


def _cut(name: str | None, limit: int = 200) -> str | None:
    return name if name is None or len(name) <= limit else name[: limit - 3] + "..."


def shorten(value: object, limit: int = 80) -> str:
    """`repr(value)` cut to `limit` characters, so that a huge value does not flood the message."""
    try:  # reprlib looks no deeper than two levels: aliases in YAML make a few lines expand to billions of items
        text = repr(value) if isinstance(value, str | float) else _BRIEF.repr(value)
    except (RecursionError, ValueError):  # nested too deep; an integer of more digits than Python prints
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."


_BRIEF = reprlib.Repr()
_BRIEF.maxlevel, _BRIEF.maxother, _BRIEF.maxlong = 2, 200, 200


def did_you_mean(word: str, choices: Iterable[str], *, show: int = 12) -> str:
    """A sentence that names the nearest of `choices`, or lists them where none is near."""
    choices = sorted(set(choices))
    near = difflib.get_close_matches(word, choices, n=3, cutoff=0.6)
    near = near or [one for one in choices if one.lower() == word.lower()]
    if near:
        return "Did you mean " + " or ".join(near) + "?"
    listed = ", ".join(choices[:show])
    return f"Choose from: {listed}" + (f" and {len(choices) - show} more." if len(choices) > show else ".")
