"""A diff against the text or the fields of a bundled file."""

from __future__ import annotations

import re
from typing import Any

from perfmodel.errors import PerfModelError

HUNK = re.compile(r"@@ -(\d{1,6})(?:,(\d{1,6}))? \+\d{1,6}(?:,\d{1,6})? @@")


def patched(text: str, diff: str) -> str:
    """`text` with a unified diff applied; every context line must be there. Raises PerfModelError with the line of the diff."""
    old, new = text.splitlines(), list[str]()
    at, inside = 0, False
    for number, line in enumerate(diff.splitlines(), start=1):
        if hunk := HUNK.match(line):
            start = int(hunk[1]) - (hunk[2] != "0")
            if not at <= start <= len(old):
                raise _fault(number, line, "is a hunk outside the file, or before the one above it")
            new += old[at:start]
            at, inside = start, True
        elif not inside:
            continue  # the names of the files
        elif line[:1] == "+":
            new.append(line[1:])
        elif line[:1] in ("-", " ", ""):
            if at >= len(old) or old[at] != line[1:]:
                raise _fault(number, line, "is not what the bundled file has there")
            new += [old[at]] if line[:1] != "-" else []
            at += 1
        elif line[:1] != "\\":
            raise _fault(number, line, "is no line of a diff")
    if not inside:
        raise PerfModelError("holds no hunk", field="diff", mend="Send a unified diff (`diff -u`, `git diff`), or an object of fields.")
    return "".join(line + "\n" for line in [*new, *old[at:]])


def _fault(number: int, line: str, problem: str) -> PerfModelError:
    return PerfModelError(problem, line=number, field="diff", value=line, mend="Make the diff from the bundled file as it is now.")


def merged(data: dict[str, Any], diff: dict[str, Any]) -> dict[str, Any]:
    """`data` with the fields of `diff` in their places; a number, or an object with a `value`, replaces what was there whole."""
    result = dict(data)
    for name, value in diff.items():
        below = result.get(name)
        section = isinstance(value, dict) and isinstance(below, dict) and "value" not in value and "value" not in below
        result[name] = merged(below, value) if section and isinstance(below, dict) else value
    return result
