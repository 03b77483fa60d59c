"""`perfmodel predict`: the time of a MoE layer, op by op."""

from __future__ import annotations

import typer

from perfmodel.cli import layer_options as o
from perfmodel.cli.output import GpuOption, JsonOption, SetOption, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict", help=HELP)(predict)


HELP = """Predict a MoE layer op by op.

Examples:

    perfmodel predict gpt-oss-120b --gpu h200 --tokens 64,4096

    perfmodel predict kimi-k2 --gpu b300 --format nvfp4 --ep 32 --comm include
"""


def predict(
    model: o.ModelArgument,
    gpu: GpuOption,
    tokens: o.TokensOption = None,
    format: o.FormatOption = None,
    kernel: o.KernelOption = "auto",
    routing: o.RoutingOption = None,
    ep: o.EpOption = 1,
    tp: o.TpOption = 1,
    launch: o.LaunchOption = "graph",
    comm: o.CommOption = "exclude",
    clock: o.ClockOption = "burst",
    placement: o.PlacementOption = "contiguous",
    redundant: o.RedundantOption = 0,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Predict and print."""
    result = o.call_gap(
        model, gpu, tokens, format=format, kernel=kernel, routing=routing, ep=ep, tp=tp, launch=launch, comm=comm,
        clock=clock, placement=placement, redundant=redundant, changes=set_ or [],
    )  # fmt: skip
    if json:
        print_json({**result, "schema": "perfmodel.predict/1"})
        return
    from rich.console import Console

    from perfmodel.report.predict import render

    render(result, Console(markup=False))
