"""`perfmodel predict`: the time of a MoE layer, or of a step of a whole model, op by op."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perfmodel.cli import layer_options as o
from perfmodel.cli.output import AnchorOption, GpuOption, JsonOption, SetOption, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict", help=HELP)(predict)


HELP = """Predict a MoE layer op by op; with --phase a step of the whole model on one instance of tp x dp x pp GPUs.

Examples:

    perfmodel predict gpt-oss-120b --gpu h200 --tokens 64,4096

    perfmodel predict kimi-k2 --gpu b300 --format nvfp4 --ep 32 --comm include

    perfmodel predict deepseek-v3 --gpu h200 --phase decode --batch 64 --context 4096 --tp 8
"""
PhaseOption = Annotated[str | None, typer.Option("--phase", help="decode or prefill: of the whole model.")]
BatchOption = Annotated[int, typer.Option("--batch", help="With --phase decode: sequences of the instance.")]
ContextOption = Annotated[int, typer.Option("--context", help="With --phase: tokens that a sequence sees, or those of the prompt.")]
PpOption = Annotated[int, typer.Option("--pp", help="With --phase: pipeline stages.")]
DpOption = Annotated[int, typer.Option("--dp", help="With --phase: ranks of data-parallel attention.")]
MicroOption = Annotated[
    int,
    typer.Option(
        "--micro-batches", help="With --phase: 2 for two halves of the batch, of which one communicates while the other computes."
    ),
]
BackendOption = Annotated[str | None, typer.Option("--backend", help="With --phase: trtllm, sglang or vllm.")]
LAYER_ONLY = {"kernel": "auto", "launch": "graph", "comm": "exclude", "clock": "burst", "placement": "contiguous", "redundant": 0}
"""Options that only a layer has, with their defaults."""


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
    phase: PhaseOption = None,
    batch: BatchOption = 1,
    context: ContextOption = 4096,
    pp: PpOption = 1,
    dp: DpOption = 1,
    micro_batches: MicroOption = 1,
    backend: BackendOption = None,
    anchor: AnchorOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Predict and print."""
    layer = {"kernel": kernel, "launch": launch, "comm": comm, "clock": clock, "placement": placement, "redundant": redundant}
    if phase is not None:
        given = [name for name, value in layer.items() if value != LAYER_ONLY[name]]
        given += [name for name, value in (("tokens", tokens), ("routing", routing)) if value is not None]
        _refuse(given, "goes with a layer, not with --phase", "Leave it out.")
        options = {"phase": phase, "batch": batch, "context": context, "pp": pp, "dp": dp, "ep": ep, "tp": tp, "backend": backend}
        options["micro_batches"] = micro_batches
        _step(model, gpu, {"format": format, "changes": tuple(set_ or ()), "anchors": anchor or ()} | options, json)
        return
    whole = {
        "batch": batch != 1,
        "context": context != 4096,
        "pp": pp != 1,
        "dp": dp != 1,
        "micro-batches": micro_batches != 1,
        "backend": backend is not None,
        "anchor": anchor is not None,
    }
    _refuse([name for name, set_here in whole.items() if set_here], "goes with --phase", "Add --phase decode, or leave it out.")
    result = o.call_gap(
        model, gpu, tokens, format=format, routing=routing, ep=ep, tp=tp, changes=set_ or [], **layer,
    )  # fmt: skip
    if json:
        print_json({**result, "schema": "perfmodel.predict/1"})
        return
    from rich.console import Console

    from perfmodel.report.predict import render

    render(result, Console(markup=False))


def _refuse(names: list[str], problem: str, mend: str) -> None:
    from perfmodel.errors import PerfModelError

    if names:
        raise PerfModelError(problem, field=f"--{names[0]}", mend=mend)


def _step(model: str, gpu: str, options: dict[str, Any], json: bool) -> None:
    from perfmodel.serving.predict import as_json, predict

    result = predict(model, gpu, **options)
    if json:
        print_json(as_json(result))
        return
    from rich.console import Console

    from perfmodel.report.step import render

    render(result, Console(markup=False))
