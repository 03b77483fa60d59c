"""`perfmodel formats`: compare number formats."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli.completion import complete_format
from perfmodel.cli.output import JsonOption, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("formats")(formats)


def formats(
    format_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[FORMAT]...", help="Formats to compare; all without any.", autocompletion=complete_format)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compare number formats: bits per weight with scales, range, error, and the arithmetic each architecture runs them on.

    Example: `perfmodel formats nvfp4 mxfp4 mxfp4-w4a16`
    """
    from perfmodel import formats as catalogue
    from perfmodel.hardware import gpu_ids, load_gpu
    from perfmodel.report.formats import formats_data, print_formats

    chosen = [catalogue.get_format(one) for one in dict.fromkeys(format_ids or catalogue.format_ids())]
    data = formats_data(chosen, [load_gpu(gpu) for gpu in gpu_ids()])
    if json:
        print_json(data)
        return
    from rich.console import Console

    print_formats(data, Console())
