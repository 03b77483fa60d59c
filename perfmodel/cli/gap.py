"""`perfmodel gap`: the gap between the peak and a MoE layer, explained."""

from __future__ import annotations

from typing import Annotated

import typer

from perfmodel.cli import layer_options as o
from perfmodel.cli.output import GpuOption, JsonOption, SetOption, note, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gap", help=HELP)(gap)


HELP = """Predict a MoE layer at each token count and say where every microsecond between the peak and that figure goes.

Examples:

    perfmodel gap gpt-oss-20b --gpu b200 --format nvfp4

    perfmodel gap deepseek-v3 --gpu h200 --tokens 64,4096 --ep 8 --plot gap.png

    perfmodel gap deepseek-v3 --gpu b200 --set memory.bandwidth_GBps=16000
"""


def gap(
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
    against: o.AgainstOption = None,
    set_: SetOption = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Also draw it: .png, .svg or .pdf.")] = None,
    waterfall: Annotated[int | None, typer.Option(metavar="TOKENS", help="Token count of the waterfall (default: the middle one).")] = None,
    json: JsonOption = False,
) -> None:
    """Predict, explain, print, draw."""
    if plot is not None:
        from perfmodel.report.gap_plot import check_suffix

        check_suffix(plot)
    result = o.call_gap(
        model, gpu, tokens, format=format, kernel=kernel, routing=routing, ep=ep, tp=tp, launch=launch, comm=comm,
        clock=clock, placement=placement, redundant=redundant, against=against, changes=set_ or [],
    )  # fmt: skip
    if waterfall is not None and waterfall not in [row["tokens"] for row in result["rows"]]:
        from perfmodel.errors import PerfModelError

        raise PerfModelError("is not among --tokens", field="waterfall", value=waterfall, mend="Name one of the token counts.")
    if json:
        print_json(result)
    else:
        from rich.console import Console

        from perfmodel.report.gap import render

        render(result, Console(markup=False), waterfall)
    if plot is not None:
        from perfmodel.report.gap_plot import save

        save(result, plot)
        note(f"wrote {plot}")
