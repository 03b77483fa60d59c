"""`perfmodel calibrate`: kernel profiles fitted to measured layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import JsonOption, note, print_json
from perfmodel.files import read_text, write_atomic

if TYPE_CHECKING:
    from perfmodel.validation.calibrate import Family, Fitted

HELP = """Fit the kernel profiles to the public measurements (extra `silicon`), at most 5 % of the rows, chosen by a hash of their shape.

Prints what was found for each kernel, architecture and format; --write puts it into the profiles' files.

Example: `perfmodel calibrate --kernel deepgemm`
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("calibrate", help=HELP)(calibrate)


def calibrate(
    kernel: Annotated[list[str] | None, typer.Option("--kernel", help="Only this profile. Repeatable.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the fits into the profiles' YAML files.")] = False,
    json: JsonOption = False,
) -> None:
    """Fit, print and perhaps write."""
    from perfmodel.profiles import load_profile
    from perfmodel.profiles.profile import FOLDER
    from perfmodel.validation.calibrate import calibrate, refitted
    from perfmodel.validation.profile_text import profile_text
    from perfmodel.validation.silicon.usable import usable_rows

    for name in kernel or []:
        load_profile(name)

    def heard(family: Family, fitted: Fitted | None) -> None:
        what = "too few rows, or no profile" if fitted is None else fitted.fit.provenance.source.rpartition("; ")[2]
        note(f"{family.kernel} {family.architecture} {family.format}: {what}")

    rows, usable = usable_rows(kernel or [])
    fits = calibrate(rows, usable, heard)
    if write:
        for name in sorted({fitted.family.kernel for fitted in fits}):
            path = Path(FOLDER) / f"{name}.yaml"
            write_atomic(path, profile_text(refitted(load_profile(name), fits), read_text(path)))
            note(f"wrote {path}")
    if json:
        print_json({"schema": "perfmodel.calibrate/1", "fits": [_as_json(fitted) for fitted in fits]})


def _as_json(fitted: Fitted) -> dict[str, object]:
    errors = {name: value if value != float("inf") else None for name, value in fitted.errors.items()}
    return {
        "kernel": fitted.family.kernel,
        "architecture": fitted.family.architecture,
        "format": fitted.family.format,
        "rows": fitted.rows,
        "parameters": fitted.fit.parameters.model_dump(),
        "standard_errors_of_logarithms": errors,
        "interval": fitted.fit.interval.model_dump(),
    }
