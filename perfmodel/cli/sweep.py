"""`perfmodel sweep`: a grid of layers into a Parquet file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from perfmodel.cli.output import JsonOption, note, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep", help=HELP)(sweep)


HELP = """Predict every point of a grid and write a Parquet file: a row a point with latency, 80 % interval, bound and losses in us.

GRID.yaml holds keys of `gap` (model, gpu, format, kernel, tokens, routing, ep, tp, launch, comm, clock, placement, redundant), each a
list, or for counts a range; the grid is their product. A point that cannot be keeps its row, with the reason in the column `error`.

    model: [gpt-oss-20b, deepseek-v3]

    gpu: [h200, b200]

    tokens: {from: 1, to: 16384, steps: 100, scale: log}

    ep: [1, 8]

Interrupted, the same command goes on: finished chunks wait in F.parquet.parts.

Examples:

    perfmodel sweep grid.yaml --out sweep.parquet

    perfmodel sweep grid.yaml --out sweep.parquet --scheduler tcp://host:8786
"""


def sweep(
    grid: Annotated[str, typer.Argument(metavar="GRID.yaml", help="The grid.")],
    out: Annotated[str, typer.Option(metavar="F.parquet", help="The file to write.")],
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler to compute on, or local:N for N worker processes here.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Drop what an interrupted run left, even of another grid.")] = False,
    json: JsonOption = False,
) -> None:
    """Compute with a bar on stderr, sum up."""
    from perfmodel.report.sweep import lines
    from perfmodel.sweeps.run import sweep as compute

    with _bar(out) as progress:
        summary = compute(grid, out, scheduler=scheduler, restart=restart, progress=progress, tell=note)
    if json:
        print_json(summary.model_dump(mode="json"))
        return
    for line in lines(summary):
        typer.echo(line)


@contextmanager
def _bar(out: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr where that is a terminal. Ctrl-C says what is kept."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("points")
        try:
            yield lambda done, points: bar.update(task, completed=done, total=points)
        except KeyboardInterrupt:
            note(f"stopped: finished chunks are kept in {out}.parts; the same command goes on from there")
            raise
