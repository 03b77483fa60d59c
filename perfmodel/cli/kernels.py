"""`perfmodel kernels`: our own kernels, listed and compiled."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import JsonOption, note, print_json

if TYPE_CHECKING:
    from perfmodel.kernels.compile import Checked

HELP = """List our numba.cuda kernels, and compile them without a GPU.

Example: `perfmodel kernels check --arch sm_90a`
"""

NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="KERNEL", help="Only these (`perfmodel kernels list`).")]


def register(app: typer.Typer) -> None:
    """Add the command and its sub-commands to `app`."""
    group = typer.Typer(no_args_is_help=True, help=HELP)
    for command in (list_, check):
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
    json: JsonOption = False,
) -> None:
    """Compile and assemble every kernel for every architecture that it is for, without a GPU; exit code 1 where one is not right.

    A kernel is right if it compiles, fits the shared memory, spills no registers and draws no warning from the assembler.

    Example: `perfmodel kernels check --arch sm_90a --json`
    """
    from perfmodel.kernels.compile import check_all
    from perfmodel.kernels.variants import find_variants

    wanted = _architectures(arch or [])
    tasks = [(variant, one) for variant in find_variants(names or []) for one in variant.archs if one in wanted]
    seen = 0

    def progress(row: Checked) -> None:
        nonlocal seen
        seen += 1
        note(f"[{seen}/{len(tasks)}] {row.name} {row.arch}: {row.problem or 'ok'}, {row.seconds:.1f} s")

    rows = [asdict(row) for row in check_all(tasks, jobs=jobs, done=progress)]
    if json:
        print_json({"kernels": rows})
    else:
        from rich.console import Console

        from perfmodel.report.kernels import check_report

        Console().print(*check_report(rows), sep="\n")
    if not all(row["ok"] for row in rows):
        raise typer.Exit(1)


def _architectures(names: list[str]) -> tuple[str, ...]:
    """The architectures asked for, or all."""
    from perfmodel.errors import PerfModelError, did_you_mean
    from perfmodel.kernels.variants import ARCHITECTURES

    for name in names:
        if name not in ARCHITECTURES:
            raise PerfModelError("no such architecture", field="--arch", value=name, mend=did_you_mean(name, ARCHITECTURES))
    return tuple(names) or ARCHITECTURES
