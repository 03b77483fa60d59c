"""`perfmodel bench`: how fast the tool itself is."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli.output import JsonOption, print_json

WHAT = ("predictor",)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", help=HELP)(bench)


HELP = """Measure how many MoE layers a second the model predicts, on a grid of the bundled models' shapes.

Example:

    perfmodel bench predictor --json
"""


def bench(what: Annotated[str, typer.Argument(help="predictor")], json: JsonOption = False) -> None:
    """Measure and print."""
    from perfmodel.errors import PerfModelError, did_you_mean

    if what not in WHAT:
        raise PerfModelError("no such benchmark", field="bench", value=what, mend=did_you_mean(what, WHAT))
    from perfmodel.bench import predictor

    result = predictor()
    if json:
        print_json(result)
        return
    for gpu, rate in result["by_gpu"].items():
        typer.echo(f"{gpu}: {rate:,.0f} MoE-layer predictions a second ({result['rows']:,} rows, {result['cores']} cores)")
