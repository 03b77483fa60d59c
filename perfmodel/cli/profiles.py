"""`perfmodel profiles`: the kernel libraries that the model knows."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli.completion import complete_kernel
from perfmodel.cli.output import JsonOption, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("profiles", help=HELP)(profiles)


HELP = """List the kernel profiles, or show one with its parameters, formats and where its numbers come from.

Examples:

    perfmodel profiles

    perfmodel profiles trtllm-gen --json
"""


def profiles(
    kernel: Annotated[str | None, typer.Argument(help="A profile id or a YAML file.", autocompletion=complete_kernel)] = None,
    json: JsonOption = False,
) -> None:
    """List or show."""
    from perfmodel.profiles import load_profile
    from perfmodel.profiles import profiles as bundled

    shown = bundled() if kernel is None else [load_profile(kernel)]
    if json:
        print_json({"profiles": [profile.model_dump(mode="json") for profile in shown]})
        return
    from rich.console import Console

    from perfmodel.report.profiles import render_list, render_one

    if kernel is not None:
        render_one(shown[0], Console(markup=False))
    else:
        render_list(shown, Console(markup=False))
