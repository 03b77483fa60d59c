"""What stands above the first row of a CSV: comment lines and the header."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.validation.columns import COLUMNS, GEMM_COLUMNS, LAYER_COLUMNS, Kind
from perfmodel.validation.measurements import About


def parse_about(comments: Sequence[str]) -> About:
    """`# title:`, `# source:`, `# note:` (repeatable), `# not scored:` and `# also: a, b`; other comments are for people only."""
    found: dict[str, list[str]] = {}
    for line in comments:
        key, colon, text = line.lstrip("#").partition(":")
        if colon:
            found.setdefault(key.strip(), []).append(text.strip())
    also = tuple(name.strip() for text in found.get("also", []) for name in text.split(",") if name.strip())
    return About(
        title=" ".join(found.get("title", [])),
        source=" ".join(found.get("source", [])),
        notes=tuple(found.get("note", [])),
        not_scored=" ".join(found["not scored"]) if "not scored" in found else None,
        also=also,
    )


def kind_of(names: Sequence[str]) -> Kind:
    """A table with `tokens_per_expert` holds grouped GEMMs, any other whole layers."""
    return "grouped-gemm" if "tokens_per_expert" in names else "layer"


def check_header(names: Sequence[str], text: str, about: About, path: Path, line: int) -> None:
    """Raises PerfModelError for a header with columns missing, unknown or given twice."""

    def fail(problem: str, mend: str, **where: str) -> None:
        raise PerfModelError(problem, file=path, line=line, mend=mend, **where)

    wanted = ",".join(column.name for column in LAYER_COLUMNS if column.default is None)
    if not any(names):
        fail("holds no header", f"Begin with the line {wanted}")
    if len(names) == 1 and (";" in text or "\t" in text):
        fail("the columns are not separated by commas", "Save it as a comma-separated file.")
    columns = COLUMNS[kind_of(names)]
    known = {column.name for column in columns}
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        fail("the column stands there twice", "Keep one of the two.", field=twice[0])
    unknown = [name for name in names if name not in known and name not in about.also]
    if unknown:
        mend = did_you_mean(unknown[0], known, show=20)
        name = unknown[0] if len(unknown[0]) <= 60 else unknown[0][:57] + "..."
        fail(f"no such column: {name!r}", f"{mend} A line `# also: {name}` above the header has it left alone.")
    missing = [column.name for column in columns if column.default is None and column.name not in names]
    if missing:
        fail(f"columns are missing: {', '.join(missing)}", f"A layer needs {wanted}; a grouped GEMM {_needed_by_gemm()}.")


def _needed_by_gemm() -> str:
    return ",".join(column.name for column in GEMM_COLUMNS if column.default is None)
