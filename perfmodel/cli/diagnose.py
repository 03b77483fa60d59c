"""`perfmodel diagnose`: a profiler's report beside the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli import layer_options as o
from perfmodel.cli.output import JsonOption, note, print_json
from perfmodel.errors import PerfModelError

HELP = """Read a CSV of Nsight Compute (raw page, details page, --metrics) or Nsight Systems (cuda_gpu_kern_sum, cuda_gpu_trace).

It says what bounds each kernel, why, what would cure it, and what that would save at most. With --model and --tokens the grouped GEMMs of
that MoE layer are predicted beside the counters. `--thresholds` lists what is looked at, with sources. Needs no GPU.

Examples:

    ncu -i report.ncu-rep --csv --page raw > report.csv; perfmodel diagnose report.csv

    perfmodel diagnose report.csv --model gpt-oss-120b --tokens 1024 --format mxfp4-w4a16

    nsys stats --report cuda_gpu_trace --format csv report.nsys-rep > trace.csv; perfmodel diagnose trace.csv --gpu h200
"""
FileArgument = Annotated[Path | None, typer.Argument(help="A CSV file that ncu or nsys exported.", show_default=False)]
GpuOption = Annotated[str | None, typer.Option("--gpu", help="GPU id or YAML file; by default the one that the report names.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="The model whose MoE layer ran, as in `gap`.")]
TokensOption = Annotated[int | None, typer.Option("--tokens", help="With --model: tokens that entered the layer.")]
OpsOption = Annotated[str, typer.Option("--ops", help="With --model: which grouped GEMMs the report holds, over and over in this order.")]
PlotOption = Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Draw how busy each unit is: .png, .svg or .pdf.")]
DEFAULTS = {"format": None, "kernel": "auto", "routing": None, "ep": 1, "tp": 1, "clock": "burst", "ops": "gate_up,down"}
"""Options that only --model uses."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diagnose", help=HELP)(diagnose)


def diagnose(
    file: FileArgument = None,
    gpu: GpuOption = None,
    model: ModelOption = None,
    tokens: TokensOption = None,
    format: o.FormatOption = None,
    kernel: o.KernelOption = "auto",
    routing: o.RoutingOption = None,
    ep: o.EpOption = 1,
    tp: o.TpOption = 1,
    clock: o.ClockOption = "burst",
    ops: OpsOption = "gate_up,down",
    top: Annotated[int, typer.Option("--top", min=1, help="Show so many kernels, those that take longest.")] = 8,
    plot: PlotOption = None,
    thresholds: Annotated[bool, typer.Option("--thresholds", help="List the thresholds with their sources.")] = False,
    json: JsonOption = False,
) -> None:
    """Read, diagnose and print."""
    from perfmodel.diagnose.expected import Asked
    from perfmodel.diagnose.result import diagnose as run

    if thresholds:
        _thresholds(json)
        return
    if file is None:
        raise PerfModelError("no report given", field="FILE", mend="Give the CSV that ncu or nsys exported; --help shows how to get one.")
    options = {"format": format, "kernel": kernel, "routing": routing, "ep": ep, "tp": tp, "clock": clock, "ops": ops}
    if plot is not None:
        from perfmodel.report.gap_plot import check_suffix

        check_suffix(plot)
    _check(model, tokens, options)
    words = tuple(word.strip() for word in ops.split(","))
    asked = None if model is None or tokens is None else Asked(model, tokens, format, kernel, routing, ep, tp, clock, words)
    result = run(file, gpu=gpu, asked=asked)
    if plot is not None:
        from perfmodel.report.diagnose_plot import save

        save(result, plot, top)
        note(f"wrote {plot}")
    if json:
        print_json(result)
        return
    from rich.console import Console

    from perfmodel.report.diagnose import render

    render(result, Console(markup=False, highlight=False), top=top)


def _check(model: str | None, tokens: int | None, options: Mapping[str, object]) -> None:
    """Raise PerfModelError where a scenario is half given."""
    if model is not None and tokens is None:
        raise PerfModelError("is missing", field="--tokens", mend="Say how many tokens entered the layer in the profiled call.")
    given = [f"--{name}" for name, value in options.items() if value != DEFAULTS[name]] + (["--tokens"] if tokens is not None else [])
    if model is None and given:
        raise PerfModelError("goes with --model", field=given[0], mend="Add --model, the model whose layer ran, or leave it out.")


def _thresholds(json: bool) -> None:
    from rich.console import Console

    from perfmodel.diagnose.thresholds import thresholds
    from perfmodel.report.diagnose import thresholds_table

    table = {name: one.model_dump(exclude_none=True) for name, one in thresholds().items()}
    if json:
        print_json({"schema": "perfmodel.diagnose-thresholds/1", "thresholds": table})
        return
    Console(markup=False, highlight=False).print(thresholds_table(table))
