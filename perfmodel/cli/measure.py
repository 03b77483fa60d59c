"""`perfmodel measure`: runs of kernels on this machine's GPU, beside what the model expects of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import JsonOption, note, print_json, stoppable
from perfmodel.errors import PerfModelError

if TYPE_CHECKING:
    from perfmodel.validation.runs.measure import Outcome, Planned
    from perfmodel.validation.runs.points import Point

HELP = """Measure our kernels, and torch's, on this machine's GPU: grouped GEMMs and whole layers, each predicted first. Needs a GPU
(exit code 3 without one, or without torch).

Each finished row is in the store at once. Stopped, by Ctrl-C or otherwise, the same command goes on where it was: it passes over what is
there of the same device, commit and suite (--again measures anew). `--ncu` reads DRAM and L2 bytes and the tensor pipe's activity instead.

Example: `perfmodel measure --suite quick`, and without a GPU `perfmodel measure --suite quick --dry-run --gpu h200`
"""
StoreOption = Annotated[Path, typer.Option("--store", help="A DuckDB file; made where it is not there.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("measure", help=HELP)(measure)


def measure(
    suite: Annotated[str, typer.Option("--suite", help="quick (111 points, minutes) or full (every power of two of tokens).")] = "quick",
    store: StoreOption = Path("perfmodel-runs.duckdb"),
    only: Annotated[str | None, typer.Option("--only", help="Only points whose name holds this text, `layer ours mxfp4` say.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure what is there, too.")] = False,
    ncu: Annotated[bool, typer.Option("--ncu", help="Read counters of the grouped GEMMs by Nsight Compute.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the points with their predictions; needs no GPU.")] = False,
    gpu: Annotated[str | None, typer.Option("--gpu", help="With --dry-run: predict for this GPU.")] = None,
    commit: Annotated[str | None, typer.Option("--commit", help="Record this as the commit that measures.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes that compile first; all cores by default.")] = None,
    under_ncu: Annotated[str | None, typer.Option("--under-ncu", hidden=True)] = None,
    json: JsonOption = False,
) -> None:
    """Measure the points of a suite."""
    from perfmodel.validation.runs.points import suite_points

    if gpu is not None and not dry_run:
        raise PerfModelError("goes with --dry-run", field="--gpu", value=gpu, mend="What is measured is this machine's GPU.")
    if under_ncu is not None:
        _once(suite, under_ncu)
        return
    points = [point for point in suite_points(suite) if only is None or only in point.name]
    if not points:
        raise PerfModelError("no point holds it", field="--only", value=only, mend="--dry-run lists the points.")
    if dry_run:
        _list(points, "h200" if gpu is None else gpu, json)
        return
    outcome = _run(points, suite, store, again=again, counters=ncu, commit=commit, jobs=jobs or os.cpu_count() or 1)
    _finish(outcome, suite, store, json)


def _list(points: list[Point], gpu: str, json: bool) -> None:
    from perfmodel.report import runs as report
    from perfmodel.validation.runs.measure import plan, planned_json, unpredicted
    from perfmodel.validation.runs.points import runnable
    from perfmodel.validation.tile_choice import arch_of

    planned = plan(runnable(points, arch_of(gpu)), gpu)
    rows, without = [planned_json(one) for one in planned], unpredicted(planned, gpu)
    _note_unpredicted(without)
    if json:
        print_json({"schema": "perfmodel.measure-plan/1", "gpu": gpu, "points": rows, "without_prediction": without})
        return
    from rich.console import Console

    Console().print(report.plan_table(rows, gpu))


def _note_unpredicted(without: dict[str, int]) -> None:
    for why, count in without.items():
        note(f"{count} points have no prediction: {why}")


def _run(points: list[Point], suite: str, path: Path, *, again: bool, counters: bool, commit: str | None, jobs: int) -> Outcome:
    from perfmodel.hardware.devices import gpu_of
    from perfmodel.kernels.benchmark.device import require_gpu
    from perfmodel.validation.runs import measure as measuring
    from perfmodel.validation.runs.points import runnable
    from perfmodel.validation.runs.store import Store

    require_gpu()
    from perfmodel.validation.runs.ncu import CounterRunner, countable, find_ncu
    from perfmodel.validation.runs.runner import GpuRunner

    tool = find_ncu() if counters else ""
    runner = GpuRunner()
    gpu = gpu_of(str(runner.about["device"]))
    there = runnable(points, runner.arch)
    planned = measuring.plan(countable(there) if counters else there, gpu, runner.arch)
    _note_unpredicted(measuring.unpredicted(planned, gpu))
    runner.compile([(one.point, one.tiles) for one in planned], jobs=jobs, note=note)
    chosen = CounterRunner(runner.about, tool, suite) if counters else runner
    store = Store(path, note=note)
    store.check()
    return _with_progress(
        planned, chosen, store, suite=suite, commit=commit or measuring.commit_of_checkout(), again=again, counters=counters
    )


def _with_progress(planned: list[Planned], runner: object, store: object, **options: object) -> Outcome:
    """A bar and a line for each row on stderr; Ctrl-C says what is kept."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from perfmodel.report.runs import heard_line
    from perfmodel.validation.runs.measure import measure as measure_all

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    kept = 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("measuring", total=len(planned))

        def heard(point: Point, verdict: str, run: object, why: str) -> None:
            nonlocal kept
            kept += verdict == "measured"
            progress.advance(task)
            line = heard_line(point.name, verdict, run, why)
            if line is not None:
                console.print(line, highlight=False, soft_wrap=True)

        with stoppable(lambda: f"the {kept} rows measured so far are kept; the same command goes on from there"):
            return measure_all(planned, runner, store, heard=heard, **options)  # type: ignore[arg-type]


def _finish(outcome: Outcome, suite: str, store: Path, json: bool) -> None:
    failed = [{"point": name, "why": why} for name, why in outcome.failed]
    if json:
        rows = [run.model_dump() for run in outcome.measured]
        head = {"schema": "perfmodel.measure/1", "suite": suite, "store": str(store), "run_id": outcome.run_id}
        print_json(head | {"measured": len(rows), "there": outcome.there, "failed": failed, "rows": rows})
    else:
        note(f"{len(outcome.measured)} rows measured, {outcome.there} were there, {len(failed)} failed: {store}")
    if failed:
        raise typer.Exit(1)


def _once(suite: str, name: str) -> None:
    """One call of one point between start and stop of the profiler: what `--ncu` starts under Nsight Compute."""
    from perfmodel.kernels.benchmark.device import require_gpu

    require_gpu()
    from perfmodel.hardware.devices import gpu_of
    from perfmodel.kernels.benchmark.device import provenance
    from perfmodel.validation.runs.measure import plan
    from perfmodel.validation.runs.ncu import run_once
    from perfmodel.validation.runs.points import GemmPoint, find_point

    point = find_point(suite, name)
    if not isinstance(point, GemmPoint):
        raise PerfModelError("is no grouped GEMM", field="--under-ncu", value=name)
    (planned,) = plan([point], gpu_of(str(provenance()["device"])))
    sys.stderr.write(f"kernel: {run_once(point, planned.tiles)}\n")
