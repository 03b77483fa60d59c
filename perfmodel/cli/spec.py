"""`perfmodel spec`: show, make, change, check and compare GPU specifications."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.completion import complete_gpu
from perfmodel.cli.output import JsonOption, SetOption, note, print_json

if TYPE_CHECKING:
    from perfmodel.hardware.editing import Edit

HELP = """Show, make, change, check and compare GPU specifications.

Example: `perfmodel spec new --from b200 mine.yaml`, then `perfmodel spec set mine.yaml memory.bandwidth_GBps=9000`
"""

GpuArgument = Annotated[
    str, typer.Argument(metavar="GPU", help="GPU id (`perfmodel gpus`) or a path to a YAML file.", autocompletion=complete_gpu)
]
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="Your own YAML file.")]


def register(app: typer.Typer) -> None:
    """Add the command and its sub-commands to `app`."""
    group = typer.Typer(no_args_is_help=True, help=HELP)
    for command in (show, new, set_, validate, diff, schema):
        group.command(command.__name__.rstrip("_"))(command)
    app.add_typer(group, name="spec")


def show(
    gpu: GpuArgument,
    fields: Annotated[list[str] | None, typer.Argument(metavar="[FIELD]...", help="Only these fields, with their sources.")] = None,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Show a GPU's file as it stands, some of its fields with their sources, or what a what-if makes of it.

    Example: `perfmodel spec show b200`, `perfmodel spec show b200 memory.bandwidth_GBps`
    """
    from perfmodel.files import read_text
    from perfmodel.hardware import find_gpu, load_gpu
    from perfmodel.hardware.fields import expand_fields
    from perfmodel.report.gpus import fields_table, gpu_data

    loaded, only = load_gpu(gpu, changes or ()), expand_fields(fields or ())
    for line in loaded.notes:
        note(line)
    if json:
        print_json(gpu_data(loaded))
    elif fields or changes:
        from rich.console import Console

        Console().print(fields_table([loaded], sources=True, only=only))
    else:
        sys.stdout.write(read_text(find_gpu(gpu)))


def new(
    file: FileArgument,
    source: Annotated[str, typer.Option("--from", metavar="GPU", help="GPU id or path to start from.", autocompletion=complete_gpu)],
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
) -> None:
    """Copy a GPU to a file of your own, comments and all, to change it there.

    Example: `perfmodel spec new --from b200 my.yaml`
    """
    from perfmodel.hardware.editing import new_spec

    gpu = new_spec(source, file, force=force)
    note(
        f"Wrote {file}: {gpu.id}, a copy of {source}. "
        f"Change it with `perfmodel spec set {file} memory.bandwidth_GBps=9000`, use it as `--gpu {file}`."
    )


def set_(
    file: FileArgument,
    changes: Annotated[list[str], typer.Argument(metavar="FIELD=VALUE...", help="Fields to change, validated together.")],
    rescale: Annotated[bool, typer.Option("--rescale", help="Change too what depends on clock, SMs and rate.")] = False,
    json: JsonOption = False,
) -> None:
    """Change fields in a file of your own: comments and order stay, nothing is written unless all of it is valid.

    Example: `perfmodel spec set my.yaml memory.bandwidth_GBps=5000`
    """
    from perfmodel.hardware.editing import set_fields

    edit = set_fields(file, changes, rescale=rescale)
    for line in edit.notes:
        note(line)
    if json:
        print_json(_edit_data(edit))
    else:
        sys.stdout.write(edit.diff + "\n" if edit.diff else "Nothing changed.\n")


def _edit_data(edit: Edit) -> dict[str, Any]:
    return {
        "schema": "perfmodel.spec-set/1",
        "file": str(edit.path),
        "changed": edit.old != edit.new,
        "diff": edit.diff,
        "notes": edit.notes,
    }


def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="GPU ids or paths to YAML files.")],
    json: JsonOption = False,
) -> None:
    """Check files: fields, units, ranges, and that the facts agree with each other. Exit code 2 where one is wrong.

    Example: `perfmodel spec validate my.yaml`
    """
    from perfmodel.errors import PerfModelError
    from perfmodel.hardware import load_gpu

    errors: dict[str, str | None] = {}
    for file in files:
        try:
            load_gpu(file)
            errors[file] = None
        except PerfModelError as error:
            errors[file] = str(error)
    if json:
        print_json({"schema": "perfmodel.spec-validate/1", "files": [{"file": f, "ok": e is None, "error": e} for f, e in errors.items()]})
    else:
        for file, problem in errors.items():
            sys.stderr.write(f"perfmodel: {problem}\n") if problem else sys.stdout.write(f"{file}: valid\n")
    if any(errors.values()):
        raise typer.Exit(PerfModelError.exit_code)


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="GPU id or path.")],
    second: Annotated[str, typer.Argument(metavar="B", help="GPU id or path.")],
    json: JsonOption = False,
) -> None:
    """Compare two GPUs field by field.

    Example: `perfmodel spec diff b200 my.yaml`
    """
    from perfmodel.hardware import load_gpu
    from perfmodel.hardware.editing import differences
    from perfmodel.report.gpus import difference_data, difference_table

    one, other = load_gpu(first), load_gpu(second)
    pairs = differences(one, other)
    if json:
        print_json(difference_data(one, other, pairs))
        return
    from rich.console import Console

    Console().print(difference_table(one, other, pairs) if pairs else "No field differs.")


def schema(
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write it to a file instead of stdout.")] = None,
) -> None:
    """Print the JSON schema of a specification, generated from the models, for editors.

    Example: `perfmodel spec schema --out .schema.json`
    """
    from perfmodel.files import write_atomic
    from perfmodel.hardware.schema import schema_text

    if out is None:
        sys.stdout.write(schema_text())
    else:
        write_atomic(out, schema_text())
