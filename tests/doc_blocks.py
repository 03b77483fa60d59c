"""The code blocks of the documentation, run one after the other as a reader would. `make docs-output` renews what they print.

What a block is follows from its first line. ```sh: commands. ```console: `$ commands` with what they print; a line `...` stands for any
lines. ```python: code; a block ```text title="output" after it is what it prints. ```sql: a query for DuckDB. Any block with
title="NAME" is a file of that name, which later blocks of the page may use. `<!-- not run: reason -->` above a block leaves it out.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)(?: +(?P<options>.+))?$")
TITLE = re.compile(r'title="([^"]+)"')
NOT_RUN = re.compile(r"^\s*<!-- not run: (.+) -->$")
WIDTH = "100"
"""Columns of the terminal that the commands print to."""
OUTPUT, SKIPPED = "output", "..."
OPEN = contextlib.ExitStack()
"""What is to be closed when no more blocks are run."""


@dataclass(frozen=True)
class Block:
    """One fenced block: where it stands (`line` of the fence, from 1), what it says, and why it is not run, if so."""

    line: int
    language: str
    title: str | None
    text: str
    not_run: str | None


def pages() -> list[Path]:
    """The README and every page of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, in order. Raises ValueError for a fence that is never closed."""
    found: list[Block] = []
    lines = text.splitlines()
    at, reason = 0, None
    while at < len(lines):
        opened, marked = FENCE.match(lines[at]), NOT_RUN.match(lines[at])
        if opened:
            fence = opened["indent"] + "```"
            if fence not in lines[at + 1 :]:
                raise ValueError(f"line {at + 1}: the block is never closed")
            end = lines.index(fence, at + 1)
            inside = "\n".join(line.removeprefix(opened["indent"]) for line in lines[at + 1 : end])
            title = TITLE.search(opened["options"] or "")
            found.append(Block(at + 1, opened["language"], title and title[1], inside, reason))
            at = end
        reason = marked[1] if marked else reason if not lines[at].strip() else None
        at += 1
    return found


def table_commands(text: str) -> list[str]:
    """The commands of perfmodel in the tables of a page, whole lines between backticks. `serve` does not end by itself: it is left out."""
    cells = (cell for line in text.splitlines() if line.startswith("|") for cell in re.findall(r"`(perfmodel [^`]+)`", line))
    return [cell for cell in cells if cell.split()[1] != "serve"]


class Reader:
    """Runs the blocks of one page in the folder where it stands; variables of Python and files stay from block to block."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {"__name__": "page"}
        self.printed = ""

    def run(self, block: Block) -> str | None:
        """Run one block. Gives its text as it should be, None where it has no output to compare. Raises AssertionError where it fails."""
        if block.not_run is None and block.title == OUTPUT:
            return matched(block.text, self.printed)
        if block.not_run is None and block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text + "\n")
        elif block.not_run is None and (action := getattr(self, f"run_{block.language}", None)):
            return action(block.text)
        return None

    def run_sh(self, text: str) -> None:
        """Commands, a line each."""
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                command(words)

    def run_console(self, text: str) -> str:
        """`$ commands` and what they print."""
        parts = re.split(r"^\$ (.+)$", text, flags=re.MULTILINE)
        assert not parts[0].strip(), "output before the first command"
        pairs = zip(parts[1::2], parts[2::2], strict=True)
        return "\n".join(f"$ {line}\n{matched(shown.strip(chr(10)), command(shlex.split(line)))}".rstrip() for line, shown in pairs)

    def run_python(self, text: str) -> None:
        """Code, in the page's name space."""
        with captured() as out:
            exec(compile(text, "page", "exec"), self.names)
        self.printed = out.getvalue()

    def run_sql(self, text: str) -> None:
        """A query."""
        import duckdb

        duckdb.sql(text).fetchall()

    def run_yaml(self, text: str) -> None:
        """A part of a file: it must at least be YAML."""
        from ruamel.yaml import YAML

        YAML(typ="safe").load(text)


@contextlib.contextmanager
def captured() -> Iterator[io.StringIO]:
    """What is printed meanwhile, as to a terminal of WIDTH columns."""
    before, out = os.environ.get("COLUMNS"), io.StringIO()
    os.environ["COLUMNS"] = WIDTH
    try:
        with contextlib.redirect_stdout(out):
            yield out
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)


def command(words: list[str]) -> str:
    """What `perfmodel ...` or `curl ...` prints, run in this process. Raises AssertionError for another command or exit code."""
    from perfmodel.cli import main

    if words[0] == "curl":
        return curl(words[1:])
    assert words[0] == "perfmodel", f"{words[0]}: only perfmodel and curl are run; mark the block <!-- not run: reason -->"
    errors = io.StringIO()
    with captured() as out, contextlib.redirect_stderr(errors):
        try:
            main(words[1:])
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
    assert code == 0, f"{shlex.join(words)}: exit code {code}\n{errors.getvalue()}"
    return out.getvalue()


def curl(words: list[str]) -> str:
    """The answer to `URL [-d BODY]`. Raises AssertionError for one that is not 2xx."""
    url, *rest = words
    path = "/" + url.partition("/")[2]
    answer = server().post(path, content=rest[1]) if rest[:1] == ["-d"] else server().get(path)
    assert answer.is_success, f"curl {shlex.join(words)}: {answer.status_code} {answer.text}"
    return answer.text


@functools.cache
def server() -> Any:
    """A client of the server, until OPEN is closed."""
    from starlette.testclient import TestClient

    from perfmodel.server.app import create_app

    return OPEN.enter_context(TestClient(create_app()))


def matched(shown: str, printed: str) -> str:
    """`printed`, with what `shown` leaves out by lines `...` left out: equal to `shown` where the page is true."""
    lines = [line.rstrip() for line in printed.rstrip().splitlines()]
    parts = [part.splitlines() for part in re.split(r"^\.\.\.$\n?", shown, flags=re.MULTILINE)]
    kept, at = [], 0
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        at = max(len(lines) - len(part), at) if last and number else at if number == 0 else _find(part, lines, at)
        kept.append(lines[at:] if last else lines[at : at + len(part)])
        at += len(part)
    return "\n".join(
        "\n".join([*part, SKIPPED]) if number < len(parts) - 1 else "\n".join(part) for number, part in enumerate(kept)
    ).rstrip()


def _find(part: list[str], lines: list[str], start: int) -> int:
    """Where `part` goes on in `lines`: at its first line, else (the figures have changed) at the first that begins alike."""
    if not part:
        return start
    for same in (lambda line: line == part[0], lambda line: line.split()[:2] == part[0].split()[:2]):
        for at in range(start, len(lines)):
            if same(lines[at]):
                return at
    raise AssertionError(f"is not printed: {part[0]}")


def renewed(text: str) -> str:
    """A page with the output of its blocks as it is now; to be called in an empty folder."""
    reader, lines = Reader(), text.splitlines()
    changes = [(block, new) for block in blocks_of(text) if (new := reader.run(block)) is not None]
    for block, new in reversed(changes):
        lines[block.line : block.line + len(block.text.splitlines())] = new.splitlines()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import tempfile

    assert sys.argv[1:] == ["--write"], __doc__
    with OPEN:
        for path in pages():
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                path.write_text(renewed(path.read_text()))
