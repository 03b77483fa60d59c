"""`perfmodel scoreboard`: how accurate the predictions are, in one table."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import JsonOption, note, print_json, stoppable
from perfmodel.files import read_text, write_atomic

if TYPE_CHECKING:
    from perfmodel.validation.scoreboard import Scoreboard

HELP = """Compute how far predictions are from every kind of measurement (extra `silicon`, some minutes) and print one Markdown table.

--write puts it into a document, between the lines `<!-- scoreboard -->` and `<!-- /scoreboard -->`, and keeps the figures, with date and
versions, in validation/scoreboard.json; tests hold both against the profiles. --sample draws anew the small sample of measurements that
those tests use.

Example: `perfmodel scoreboard --write README.md`
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("scoreboard", help=HELP)(scoreboard)


def scoreboard(
    write: Annotated[
        Path | None, typer.Option("--write", metavar="FILE.md", help="Put the table into this document; keep the figures.")
    ] = None,
    sample: Annotated[
        Path | None, typer.Option("--sample", metavar="FILE.csv", help="Write a sample of the measured MoE layers there, and stop.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compute, print, and perhaps write."""
    from perfmodel.report.scoreboard import markdown, replaced

    if sample is not None:
        with stoppable(lambda: f"{sample} is as it was"):
            _write_sample(sample)
        return
    if write is not None:
        replaced(read_text(write), "", write)  # what is wrong with the document is said before the minutes that follow
    with stoppable(lambda: "nothing is kept, no file was changed"):
        board = _computed()
    data = board.as_json()
    if write is not None:
        _write(write, replaced(read_text(write), markdown(data), write), data)
    if json:
        print_json(data)
    else:
        typer.echo(markdown(data), nl=False)


def _write(path: Path, text: str, data: dict[str, object]) -> None:
    from perfmodel.validation.scoreboard import FILE

    write_atomic(FILE, json_module.dumps(data, indent=1, allow_nan=False) + "\n")
    write_atomic(path, text)
    note(f"wrote {path} and {FILE.name}")


def _write_sample(path: Path) -> None:
    from perfmodel.validation.silicon.sample import draw_sample, sample_text
    from perfmodel.validation.silicon.validate import validate_silicon

    outcome = validate_silicon()
    index = draw_sample(outcome)
    write_atomic(path, sample_text(outcome.rows, index))
    note(f"wrote {len(index):,} rows to {path}")


def _computed() -> Scoreboard:
    """All lines, with a bar on stderr, or a note for each step where that is no terminal; Ctrl-C leaves everything as it was."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from perfmodel.validation import scoreboard as board

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    planned, lines = board.steps(), []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(planned))
        for step in planned:
            if progress.disable:
                note(f"{step.name} ...")
            progress.update(task, description=step.name)
            lines += step.compute()
            progress.advance(task)
    return board.scoreboard(lines)
