"""`perfmodel runs`: what the store of measured runs holds, in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.measure import StoreOption
from perfmodel.cli.output import JsonOption, note, print_json

HELP = """The store of measured runs, a DuckDB file: list it, import runs into it, export it.

Example: `perfmodel runs import validation/results/*.csv` and `perfmodel runs export runs.parquet`
"""
DEFAULT = Path("perfmodel-runs.duckdb")


def register(app: typer.Typer) -> None:
    """Add the command and its sub-commands to `app`."""
    group = typer.Typer(no_args_is_help=True, help=HELP)
    for command in (list_, import_, export):
        group.command(command.__name__.rstrip("_"))(command)
    app.add_typer(group, name="runs")


def list_(store: StoreOption = DEFAULT, json: JsonOption = False) -> None:
    """List the runs of a store: suite, device, commit, rows.

    Example: `perfmodel runs list --store h200.duckdb`
    """
    from perfmodel.validation.runs.store import Store

    rows = Store(store, note=note).overview()
    if json:
        print_json({"schema": "perfmodel.runs/1", "store": str(store), "runs": rows})
        return
    from rich.console import Console

    from perfmodel.report.runs import overview_table

    Console().print(overview_table(rows))


def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV or Parquet: exports, or what `kernels bench --out` wrote.")],
    store: StoreOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Import runs; a row that is there is not doubled. All of a file or nothing of it.

    Example: `perfmodel runs import bench.csv counters.csv`
    """
    from perfmodel.validation.runs.files import read_runs
    from perfmodel.validation.runs.store import Store

    target, done = Store(store, note=note), []
    for path in files:
        found = read_runs(path)
        done.append({"file": str(path), "rows": len(found), "new": target.add(found)})
        note(f"{path}: {len(found)} rows, {done[-1]['new']} of them new")
    if json:
        print_json({"schema": "perfmodel.runs-import/1", "store": str(store), "files": done})


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Ends in .csv or .parquet.")],
    store: StoreOption = DEFAULT,
    run_id: Annotated[str | None, typer.Option("--run", help="Only this run (`perfmodel runs list`).")] = None,
    json: JsonOption = False,
) -> None:
    """Export runs, each with its whole provenance.

    Example: `perfmodel runs export h200.csv`
    """
    from perfmodel.errors import PerfModelError, did_you_mean
    from perfmodel.validation.runs.exchange import check_ending, write_runs
    from perfmodel.validation.runs.store import Store

    check_ending(file)
    runs = Store(store, note=note).runs()
    chosen = [run for run in runs if run_id in (None, run.run_id)]
    if run_id is not None and not chosen:
        raise PerfModelError("no such run", field="--run", value=run_id, mend=did_you_mean(run_id, {run.run_id for run in runs}))
    write_runs(file, chosen)
    note(f"wrote {len(chosen)} rows to {file}")
    if json:
        print_json({"schema": "perfmodel.runs-export/1", "file": str(file), "rows": len(chosen)})
