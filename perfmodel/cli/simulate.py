"""`perfmodel simulate`: a serving engine, request by request."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perfmodel.cli.completion import complete_model
from perfmodel.cli.output import AnchorOption, GpuOption, JsonOption, SetOption, note, print_json


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate", help=HELP)(simulate)


HELP = """Serve requests with a whole model on GPUs, by a discrete-event simulation, and print percentiles of what clients see.

Examples:

    perfmodel simulate qwen3-30b-a3b --gpu h100 --gpus 2 --rate 8 --isl 1000 --osl 200

    perfmodel simulate gpt-oss-120b --gpu b200 --gpus 4 --concurrency 64 --isl 2000 --osl 500 --lengths uniform:0.8

    perfmodel simulate deepseek-v3 --gpu h200 --gpus 16 --rates 1,2,4,8 --isl 4000 --osl 500 --plot load.png

    perfmodel simulate qwen3-235b-a22b --gpu h200 --gpus 16 --trace requests.csv --mode disaggregated --prefill-gpus 8
"""


def simulate(
    model: Annotated[str, typer.Argument(help="Bundled model id, or path to a config.json.", autocompletion=complete_model)],
    gpu: GpuOption,
    gpus: Annotated[int, typer.Option(help="GPUs of all instances together.")] = 1,
    rate: Annotated[float | None, typer.Option(help="Requests a second; with --trace, what its arrivals are scaled to.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Clients of a closed loop, instead of a rate.")] = None,
    trace: Annotated[str | None, typer.Option(metavar="FILE", help="CSV of requests: Azure, BurstGPT or Mooncake columns.")] = None,
    isl: Annotated[int | None, typer.Option(help="Tokens of a prompt.")] = None,
    osl: Annotated[int | None, typer.Option(help="Tokens of an answer.")] = None,
    requests: Annotated[int | None, typer.Option(help="How many requests (default 2000, or the whole trace).")] = None,
    seed: Annotated[int, typer.Option(help="Of the random numbers.")] = 0,
    arrivals: Annotated[str, typer.Option(help="poisson, gamma:CV (bursts where CV > 1) or constant.")] = "poisson",
    lengths: Annotated[
        str, typer.Option(help="fixed, uniform:LOW (LOW to 1 times ISL and OSL) or lognormal:CV (ISL and OSL on average).")
    ] = "fixed",
    format: Annotated[str | None, typer.Option("--format", help="Default: the fastest that the GPU runs and the weights allow.")] = None,
    backend: Annotated[str | None, typer.Option(help="trtllm, sglang or vllm; default: what they have in common.")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel ranks of an instance; default: as many as NVLink joins.")] = None,
    pp: Annotated[int | None, typer.Option(help="Pipeline stages.")] = None,
    dp: Annotated[int | None, typer.Option(help="Data-parallel attention groups.")] = None,
    ep: Annotated[int | None, typer.Option(help="Expert-parallel groups.")] = None,
    mode: Annotated[str, typer.Option(help="aggregated or disaggregated.")] = "aggregated",
    prefill_gpus: Annotated[int | None, typer.Option(help="Of --gpus, those that run prompts, disaggregated.")] = None,
    chunk: Annotated[int | None, typer.Option(help="Prompt tokens of a step at most; default: one prompt a step.")] = None,
    prefix_cache: Annotated[float, typer.Option(help="Share of each prompt that is in the cache, 0 to 1.")] = 0.0,
    speculative: Annotated[
        str | None, typer.Option(metavar="TOKENS:ACCEPTANCE", help="Tokens drafted a step, chance that one is right.")
    ] = None,
    dispatch: Annotated[str, typer.Option(help="least-loaded or round-robin.")] = "least-loaded",
    max_sequences: Annotated[int, typer.Option(help="Sequences that run at a time in an instance at most.")] = 1024,
    rates: Annotated[str | None, typer.Option(help="Several rates, such as 1,2,4,8: percentiles against load.")] = None,
    anchor: AnchorOption = None,
    set_: SetOption = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Also draw it: .png, .svg or .pdf.")] = None,
    json: JsonOption = False,
) -> None:
    """Simulate, print, draw."""
    options: dict[str, Any] = {k: v for k, v in locals().items() if k not in ("model", "gpu", "rates", "set_", "plot", "json", "anchor")}
    if plot is not None:
        from perfmodel.report.gap_plot import check_suffix

        check_suffix(plot)
    from perfmodel.simulation.run import simulate as run

    result = run(model, gpu, rates=parse_rates(rates), changes=set_ or [], anchors=anchor, tell=note, **options)
    if json:
        print_json(result)
    else:
        from rich.console import Console

        from perfmodel.report.simulate import render

        render(result, Console(markup=False))
    if plot is not None:
        from perfmodel.report.simulate_plot import save

        save(result, plot)
        note(f"wrote {plot}")


def parse_rates(text: str | None) -> list[float]:
    """`1,2,4` as numbers. Raises PerfModelError for words."""
    from perfmodel.errors import PerfModelError

    try:
        return [float(word) for word in text.split(",")] if text is not None else []
    except ValueError:
        raise PerfModelError("must be numbers", field="rates", value=text, mend="Give --rates 1,2,4,8, say.") from None
