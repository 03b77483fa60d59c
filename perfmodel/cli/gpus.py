"""`perfmodel gpus`: the catalog, and GPUs side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli.completion import complete_gpu
from perfmodel.cli.output import JsonOption, SetOption, note, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("gpus")(gpus)


def gpus(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GPU]...", help="GPU ids or paths to YAML files; all without any.", autocompletion=complete_gpu),
    ] = None,
    sources: Annotated[bool, typer.Option("--sources", help="Say where each number comes from and how far to trust it.")] = False,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """List the GPUs, or set some side by side, with the source and status of each number on request.

    Example: `perfmodel gpus b200 h200 --sources`, `perfmodel gpus b200 --set memory.bandwidth_GBps=9000`
    """
    from perfmodel.hardware import gpu_ids, load_gpu
    from perfmodel.report.gpus import CATALOG_LEGEND, FIELDS_LEGEND, catalog_table, fields_table, gpus_data

    loaded = [load_gpu(one, changes or ()) for one in dict.fromkeys(ids or gpu_ids())]
    for gpu in loaded:
        for line in gpu.notes:
            note(f"{gpu.id}: {line}")
    if json:
        print_json(gpus_data(loaded))
        return
    from rich.console import Console

    if ids or sources:
        Console().print(fields_table(loaded, sources=sources))
        note(FIELDS_LEGEND)
    else:
        Console().print(catalog_table(loaded))
        note(CATALOG_LEGEND)
