"""`perfmodel plan`: the best ways to serve a model within limits."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perfmodel.cli.completion import complete_gpu, complete_model
from perfmodel.cli.output import AnchorOption, JsonOption, SetOption, note


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan", help=HELP)(plan)


HELP = """Search GPUs, formats, parallelism and batches for the best ways to serve a model within limits, and say what would help.

Examples:

    perfmodel plan deepseek-v3 --gpu h200 --gpus 32 --isl 4000 --osl 500 --ttft-ms 2000 --tpot-ms 30

    perfmodel plan gpt-oss-120b --gpu h200 --gpu b200 --isl 1024 --osl 1024 --tpot-ms 20 --rate 50 --plot pareto.svg

    perfmodel plan qwen3-235b-a22b --gpu h200 --gpus 8 --tpot-ms 25 --flags vllm
"""


def plan(
    model: Annotated[str, typer.Argument(help="Bundled model id or path to a config.json.", autocompletion=complete_model)],
    gpu: Annotated[
        list[str],
        typer.Option("--gpu", help="GPU id (`perfmodel gpus`) or a path to a YAML file. Repeatable.", autocompletion=complete_gpu),
    ],
    gpus: Annotated[int | None, typer.Option(help="GPUs of each kind at most; default: a node, or what the weights need.")] = None,
    isl: Annotated[int, typer.Option(help="Mean tokens of a prompt.")] = 1024,
    osl: Annotated[int, typer.Option(help="Mean tokens of an answer.")] = 1024,
    prefix_cache: Annotated[float, typer.Option(metavar="SHARE", help="Share of a prompt that is in the prefix cache.")] = 0.0,
    ttft_ms: Annotated[float | None, typer.Option(help="Most mean time to the first token.")] = None,
    tpot_ms: Annotated[float | None, typer.Option(help="Most mean time for each further token.")] = None,
    latency_ms: Annotated[float | None, typer.Option(help="Most mean time of a whole request.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second to serve: instances are multiplied until they do.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests at a time to serve.")] = None,
    power_kw: Annotated[float | None, typer.Option("--power-kW", help="Most power of the servers, cooling included.")] = None,
    budget: Annotated[float | None, typer.Option(help="Most cost of an hour.")] = None,
    format: Annotated[
        list[str] | None, typer.Option("--format", help="auto, or a format of the weights. Repeatable: all are searched.")
    ] = None,
    kv_format: Annotated[
        str | None, typer.Option(help="Format of keys and values; default: fp8 beside FP8 and FP4 units, else bf16.")
    ] = None,
    micro_batches: Annotated[
        int, typer.Option(help="2: two halves of each batch take turns, one communicates while the other computes.")
    ] = 1,
    backend: Annotated[str | None, typer.Option(help="trtllm, sglang or vllm; default: what they have in common.")] = None,
    mode: Annotated[str, typer.Option(help="auto, aggregated or disaggregated.")] = "auto",
    anchor: AnchorOption = None,
    set_: SetOption = None,
    prices: Annotated[str | None, typer.Option(metavar="FILE", help="YAML of prices and power in place of the bundled one.")] = None,
    top: Annotated[int, typer.Option(help="Plans for each GPU and mode.")] = 3,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Also draw the Pareto fronts: .png, .svg or .pdf.")] = None,
    flags: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="Print the launch command of the best plan: vllm, sglang, trtllm.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Search, print, draw."""
    _check(plot, flags, json)
    from perfmodel.planning.search import plan as search

    result = search(
        model, gpu, gpus=gpus, isl=isl, osl=osl, prefix_cache=prefix_cache, ttft_ms=ttft_ms, tpot_ms=tpot_ms, latency_ms=latency_ms,
        rate=rate, concurrency=concurrency, power_kW=power_kw, budget=budget, format=tuple(format or ("auto",)), kv_format=kv_format,
        micro_batches=micro_batches, backend=backend, mode=mode, changes=tuple(set_ or ()), anchors=anchor or (), prices=prices, top=top,
    )  # fmt: skip
    _print(result, flags, json)
    if plot is not None:
        from perfmodel.report.plan_plot import save

        save(result, plot)
        note(f"wrote {plot}")


def _check(plot: str | None, flags: str | None, json: bool) -> None:
    """Refuse before the work what would fail after it."""
    if plot is not None:
        from perfmodel.report.gap_plot import check_suffix

        check_suffix(plot)
    if flags is not None:
        from perfmodel.planning.flags import check_engine

        check_engine(flags)
        if json:
            from perfmodel.errors import PerfModelError

            raise PerfModelError("is text", field="--flags", mend="Leave --json out.")


def _print(result: Any, flags: str | None, json: bool) -> None:
    if json:
        import sys

        sys.stdout.write(result.model_dump_json(by_alias=True, indent=1) + "\n")
        return
    from rich.console import Console

    console = Console(markup=False)
    if flags is not None:
        from perfmodel.planning.flags import launch

        console.print(launch(result, flags), soft_wrap=True, highlight=False)
        return
    from perfmodel.report.plan import render

    render(result, console)
