"""`perfmodel validate`: predictions held against measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import JsonOption, stoppable
from perfmodel.errors import PerfModelError

if TYPE_CHECKING:
    from perfmodel.validation.silicon.validate import SiliconValidation
    from perfmodel.validation.targets import Validation

SILICON, RUNS, SERVING = "silicon", "runs", "serving"
HELP = """Hold predictions against measurements: the published and measured `tables` that come along; `silicon`, the public ones of the
package aiconfigurator-core (extra `silicon`), 3.6 million MoE layers or, with --op, another op; `serving`, its measured services;
`runs` of our own kernels; or a CSV of your own.

A layer has the columns gpu, kernel, format, num_tokens, hidden, inter, topk, num_experts, tp, ep, routing, latency_us
(and may have gated, source, launch, caches),
a grouped GEMM gpu, kernel, format, experts, n, k, tokens_per_expert, latency_us (and may have source).

Rows under the physical floor, listed traps and kernels without a profile are flagged and not scored; spikes and dips are flagged.

Example: `perfmodel validate tables` or `perfmodel validate mine.csv --kernel marlin --json`
"""

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="tables|silicon|runs|serving|FILE.csv", help="Bundled tables, public measurements, runs of our kernels, services, or a CSV."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate", help=HELP)(validate)


def validate(
    target: TargetArgument,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Only rows of this GPU.")] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="Only rows of this kernel.")] = None,
    op: Annotated[str, typer.Option("--op", help="Of `silicon`: moe, gemm, attention, quantise, collectives, a2a.")] = "moe",
    leave_out_gpu: Annotated[
        str | None, typer.Option("--leave-out-gpu", help="Of `silicon`: fit without these GPUs (b200,gb200) and score them alone.")
    ] = None,
    leave_out_arch: Annotated[
        str | None, typer.Option("--leave-out-arch", help="Of `silicon`: score an architecture by fits of older ones.")
    ] = None,
    rows: Annotated[Path | None, typer.Option("--rows", help="Of `silicon`: write every row there, as Parquet.")] = None,
    store: Annotated[
        Path | None, typer.Option("--store", help="Of `runs`: beside those that come along, those of this store of `measure`.")
    ] = None,
    checks: Annotated[
        bool, typer.Option("--checks", help="Of `silicon`: what is wrong in the measurements themselves, by kernel, GPU and source.")
    ] = False,
    unseen_pairs: Annotated[
        bool, typer.Option("--unseen-pairs", help="Of `serving`: predict each pair of model and GPU by fits without it. Minutes.")
    ] = False,
    anchors: Annotated[
        int | None, typer.Option("--anchors", min=1, max=3, help="Of `serving`: let so many rows of a configuration pull its others.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Score the rows of `target` and print families, or everything as JSON."""
    from perfmodel.report.validate import print_validation, write_json

    if store is not None and target != RUNS:
        raise PerfModelError("goes with `runs`", field="--store", value=target, mend="Write perfmodel validate runs.")
    if target == SERVING:
        ignored = {"gpu": gpu, "kernel": kernel, "op": op != "moe", "leave-out-gpu": leave_out_gpu, "leave-out-arch": leave_out_arch}
        for name, given in {**ignored, "rows": rows, "checks": checks}.items():
            if given:
                raise PerfModelError("does not go with `serving`", field=f"--{name}", mend="Leave it out.")
        _serving(unseen_pairs, anchors, as_json)
        return
    for name, wanted in (("--unseen-pairs", unseen_pairs), ("--anchors", anchors)):
        if wanted:
            raise PerfModelError("goes with `serving`", field=name, value=target, mend="Write perfmodel validate serving.")
    if target == SILICON:
        _silicon(op, gpu, kernel, leave_out_gpu, leave_out_arch, rows, as_json, checks)
        return
    if checks:
        raise PerfModelError("goes with `silicon`", field="--checks", value=target, mend="perfmodel compare shows the checks of others.")
    for name, given in (("--op", op != "moe"), ("--leave-out-gpu", leave_out_gpu), ("--leave-out-arch", leave_out_arch), ("--rows", rows)):
        if given:
            raise PerfModelError("goes with `silicon`", field=name, value=target, mend="Write perfmodel validate silicon.")
    if target == RUNS:
        _runs(gpu, kernel, store, as_json)
        return
    outcome = validation_of(target, gpu, kernel)
    if as_json:
        write_json(outcome.summary(), outcome.rows())
    else:
        print_validation(outcome.summary(), outcome.rows())


def _silicon(
    op: str,
    gpu: str | None,
    kernel: str | None,
    leave_out_gpu: str | None,
    leave_out_arch: str | None,
    path: Path | None,
    as_json: bool,
    checks: bool,
) -> None:
    from perfmodel.cli.output import print_json
    from perfmodel.report.validate import print_families
    from perfmodel.validation.silicon.validate import validate_silicon

    if path is not None:
        _check_rows_path(path)
    left = [name.strip() for name in leave_out_gpu.split(",")] if leave_out_gpu is not None else []
    with stoppable(lambda: "nothing is kept" if path is None else f"nothing is kept, {path} is as it was"):
        outcome = validate_silicon(op, gpu=gpu, kernel=kernel, leave_out_gpu=left, leave_out_arch=leave_out_arch)
        if path is not None:
            outcome.write(path)
    if checks:
        _checks(outcome, as_json)
    elif as_json:
        print_json(outcome.summary())
    else:
        print_families(outcome.summary())


def _serving(unseen_pairs: bool, anchors: int | None, as_json: bool) -> None:
    from perfmodel.cli.output import note, print_json
    from perfmodel.report.serving import print_anchored, print_serving
    from perfmodel.validation.serving.validate import validate_serving

    outcome = validate_serving(unseen_pairs=unseen_pairs, heard=note)
    if anchors is not None:
        from perfmodel.validation.serving.anchored import validate_anchored

        summary = validate_anchored(outcome, anchors).summary()
    else:
        summary = outcome.summary()
    if as_json:
        print_json(summary)
    elif anchors is not None:
        print_anchored(summary)
    else:
        print_serving(summary)


def _check_rows_path(path: Path) -> None:
    """Raises PerfModelError where no file can stand: told before minutes of work, not after."""
    if path.is_dir():
        raise PerfModelError("is a folder", field="--rows", value=str(path), mend="Name a file in it, rows.parquet say.")
    if not path.parent.is_dir():
        raise PerfModelError("the folder is not there", field="--rows", value=str(path.parent), mend="Make it first.")


def _checks(outcome: SiliconValidation, as_json: bool) -> None:
    from perfmodel.cli.output import print_json
    from perfmodel.report.compare import print_checks
    from perfmodel.validation.checks import check_rows

    found = check_rows(outcome.rows, outcome.held.floor).summary()
    if as_json:
        print_json({"schema": "perfmodel.checks/1", "target": SILICON} | found)
    else:
        print_checks(found)


def _runs(gpu: str | None, kernel: str | None, store: Path | None, as_json: bool) -> None:
    from perfmodel.report.runs import print_runs
    from perfmodel.report.validate import write_json
    from perfmodel.validation.runs.validate import validate_runs

    outcome = validate_runs(gpu, kernel, store=store)
    if as_json:
        write_json(outcome.summary() | {"counter_rows": outcome.counter_rows()}, outcome.rows())
    else:
        print_runs(outcome.summary(), outcome.rows(), outcome.counter_rows())


def validation_of(target: str, gpu: str | None, kernel: str | None) -> Validation:
    """The bundled tables, or a CSV of the user's. Raises PerfModelError."""
    from perfmodel.errors import did_you_mean
    from perfmodel.validation.targets import TABLES, validate_file, validate_tables

    if target == TABLES:
        return validate_tables(gpu, kernel)
    if not Path(target).exists():
        beside = [str(path) for path in Path().glob("*.csv")]
        known = [TABLES, SILICON, RUNS, *beside]
        raise PerfModelError("is neither a file nor `tables`", field="TARGET", value=target, mend=did_you_mean(target, known))
    return validate_file(target, gpu, kernel)
