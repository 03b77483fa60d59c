"""`perfmodel kernels`: our own kernels, listed, compiled, run and measured."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import JsonOption, note, print_json
from perfmodel.errors import PerfModelError
from perfmodel.files import write_atomic

if TYPE_CHECKING:
    from perfmodel.kernels.compile import Checked

HELP = """List our numba.cuda kernels, compile them without a GPU, run and measure them on one.

Example: `perfmodel kernels check --arch sm_90a`
"""

NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="KERNEL", help="Only these (`perfmodel kernels list`).")]


def register(app: typer.Typer) -> None:
    """Add the command and its sub-commands to `app`."""
    group = typer.Typer(no_args_is_help=True, help=HELP)
    for command in (list_, check, run, bench, tiles):
        group.command(command.__name__.rstrip("_"))(command)
    app.add_typer(group, name="kernels")


def list_(json: JsonOption = False) -> None:
    """List the kernels: what they compute with, which formats and architectures they take, which function they must agree with.

    Example: `perfmodel kernels list`
    """
    from perfmodel.kernels.variants import variants

    fields = ("name", "kind", "formats", "archs", "reference")
    rows = [{field: getattr(variant, field) for field in fields} for variant in variants()]
    if json:
        print_json({"kernels": rows})
        return
    from rich.console import Console

    from perfmodel.report.kernels import list_table

    Console().print(list_table(rows))


def check(
    names: NamesArgument = None,
    arch: Annotated[list[str] | None, typer.Option("--arch", help="Only for this architecture, `sm_90a` say. Repeatable.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes that compile at once.")] = 2,
    sass: Annotated[bool, typer.Option("--sass/--no-sass", help="Count machine instructions too: no verdict, a third of the time.")] = True,
    json: JsonOption = False,
) -> None:
    """Compile and assemble every kernel for every architecture that it is for, without a GPU; exit code 1 where one is not right.

    A kernel is right if it compiles, fits the shared memory, spills no registers and draws no warning from the assembler.

    Example: `perfmodel kernels check --arch sm_90a --json`
    """
    from perfmodel.kernels.compile import check_all
    from perfmodel.kernels.variants import find_variants

    wanted = _architectures(arch or [])
    chosen = find_variants(list(dict.fromkeys(names or [])))
    tasks = [(variant, one) for variant in chosen for one in variant.archs if one in wanted]
    if not tasks:
        raise PerfModelError(
            f"{chosen[0].name} is not for {', '.join(wanted)}", field="--arch", mend=f"It is for {', '.join(chosen[0].archs)}."
        )
    seen = 0

    def progress(row: Checked) -> None:
        nonlocal seen
        seen += 1
        note(f"[{seen}/{len(tasks)}] {row.name} {row.arch}: {row.problem or 'ok'}, {row.seconds:.1f} s")

    rows = [asdict(row) for row in check_all(tasks, jobs=jobs, count_sass=sass, done=progress)]
    if json:
        print_json({"kernels": rows})
    else:
        from rich.console import Console

        from perfmodel.report.kernels import check_report

        Console().print(*check_report(rows), sep="\n")
    if not all(row["ok"] for row in rows):
        raise typer.Exit(1)


def run(
    shape: Annotated[str, typer.Option("--shape", help="experts=2,n=256,k=256,tokens=8: weights [N, K], tokens of each expert.")],
    format_id: Annotated[str | None, typer.Option("--format", help="Of the weights and activations, mxfp4-w4a16 by default.")] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="One of `perfmodel kernels list`; by default the one that suits.")] = None,
    json: JsonOption = False,
) -> None:
    """Run one grouped GEMM on this machine's GPU and check it against float64; exit code 1 where it is wrong, 3 without a GPU.

    Example: `perfmodel kernels run --shape experts=2,n=256,k=256,tokens=8 --format nvfp4-w4a16`
    """
    from perfmodel.kernels.benchmark import single

    row = single.run(single.make_task(shape, format_id, kernel))
    if json:
        print_json(row)
    else:
        from rich.console import Console

        from perfmodel.report.kernels import run_report

        Console().print(run_report(row))
    if not row["ok"]:
        raise typer.Exit(1)


def bench(
    suite: Annotated[str, typer.Option("--suite", help="quick (minutes, one shape) or full (every tile, three shapes).")] = "quick",
    shape: Annotated[str | None, typer.Option("--shape", help="Only this shape: experts=16,n=4096,k=7168.")] = None,
    tokens: Annotated[str | None, typer.Option("--tokens", help="Only these tokens per expert: 1,64,512.")] = None,
    format_ids: Annotated[list[str] | None, typer.Option("--format", help="Only this format of ours. Repeatable.")] = None,
    all_tiles: Annotated[bool | None, typer.Option("--all-tiles/--one-tile", help="Time every tile that suits, or the table's.")] = None,
    hold: Annotated[float | None, typer.Option("--hold", min=0.001, help="Seconds that a contender is held for its median.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the raw rows there, with where they come from: .json or .csv.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes that compile first; all cores by default.")] = None,
    json: JsonOption = False,
) -> None:
    """Measure our kernels beside the machine's ceilings and torch's kernels, in one run; exit code 3 without a GPU.

    Weights come from DRAM in every call, contenders take turns, outputs are checked against float64 as the timing left them.

    Example: `perfmodel kernels bench --suite quick --out h200.json`
    """
    from perfmodel.kernels.benchmark.suite import get_suite, narrow, run
    from perfmodel.report import kernels as report

    chosen = narrow(get_suite(suite), shape=shape, tokens=tokens, formats=format_ids or [], all_tiles=all_tiles, hold_s=hold)
    writer = report.bench_writer(out) if out else None
    result = run(chosen, jobs=jobs or os.cpu_count() or 1, note=note)
    try:
        if out and writer:
            write_atomic(out, writer(result))
    except PerfModelError:
        print_json(result)  # measured is measured
        raise
    if json:
        print_json(result)
        return
    from rich.console import Console

    Console().print(*report.bench_report(result), sep="\n")


def tiles(
    shape: Annotated[
        str | None, typer.Option("--shape", help="Of this grouped GEMM: experts=16,n=4096,k=7168,tokens=64 (per expert).")
    ] = None,
    measured: Annotated[
        Path | None, typer.Option("--measured", help="A CSV of `kernels bench --all-tiles`: what the choice loses there.")
    ] = None,
    format_id: Annotated[str | None, typer.Option("--format", help="Of the weights and activations, mxfp4-w4a16 by default.")] = None,
    gpu: Annotated[str, typer.Option("--gpu", help="`perfmodel gpus` lists them.")] = "h200",
    json: JsonOption = False,
) -> None:
    """Choose the tile of our kernels by the model, without a GPU; or hold its choices against measured times of every tile.

    Example: `perfmodel kernels tiles --shape experts=16,n=4096,k=7168,tokens=64`
    """
    from rich.console import Console

    from perfmodel.kernels.benchmark.contenders import parse_sizes
    from perfmodel.kernels.tiles import Problem
    from perfmodel.report import tiles as report
    from perfmodel.validation.tile_choice import choices, choices_json, predicted_tiles, tiles_json

    if (shape is None) == (measured is None):
        raise PerfModelError("give one of the two", field="--shape, --measured", mend="--shape for one problem, --measured for a file.")
    if measured is not None:
        if format_id is not None:
            raise PerfModelError("goes with --shape", field="--format", value=format_id, mend="The file says which format each row has.")
        result = choices_json(choices(gpu, measured))
        shown = report.choices_table(result)
    else:
        result = tiles_json(
            predicted_tiles(gpu, Problem(format_id or "mxfp4-w4a16", *parse_sizes(shape or "", ("experts", "n", "k", "tokens"))))
        )
        shown = report.tiles_table(result)
    if json:
        print_json(result)
    else:
        Console().print(*shown, sep="\n")


def _architectures(names: list[str]) -> tuple[str, ...]:
    """The architectures asked for, or all."""
    from perfmodel.errors import did_you_mean
    from perfmodel.kernels.variants import ARCHITECTURES

    for name in names:
        if name not in ARCHITECTURES:
            raise PerfModelError("no such architecture", field="--arch", value=name, mend=did_you_mean(name, ARCHITECTURES))
    return tuple(names) or ARCHITECTURES
