"""`perfmodel bench`: how fast the tool itself is."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli.output import JsonOption, print_json

WHAT = ("predictor", "simulator")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("bench", help=HELP)(bench)


HELP = """Measure how many MoE layers a second the model predicts, on a grid of the bundled models' shapes, or how long a simulation of a
million requests takes.

Examples:

    perfmodel bench predictor --json

    perfmodel bench simulator
"""


def bench(what: Annotated[str, typer.Argument(help="predictor or simulator")], json: JsonOption = False) -> None:
    """Measure and print."""
    from perfmodel.errors import PerfModelError, did_you_mean

    if what not in WHAT:
        raise PerfModelError("no such benchmark", field="bench", value=what, mend=did_you_mean(what, WHAT))
    if what == "simulator":
        _simulator(json)
        return
    from perfmodel.bench import predictor

    result = predictor()
    if json:
        print_json(result)
        return
    for gpu, rate in result["by_gpu"].items():
        typer.echo(f"{gpu}: {rate:,.0f} MoE-layer predictions a second ({result['rows']:,} rows, {result['cores']} cores)")


def _simulator(json: bool) -> None:
    from perfmodel.simulation.benchmark import simulator

    result = simulator()
    if json:
        print_json(result)
    else:
        typer.echo(f"{result['requests']:,} requests simulated in {result['seconds']:.1f} s (first run: {result['first_run_s']:.1f} s)")
