"""The options that `gap` and `predict` share, and the call that they make."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perfmodel.cli.completion import complete_format, complete_kernel, complete_model
from perfmodel.cli.output import GpuOption, JsonOption, SetOption

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="Bundled model id, path to a config.json, or layer:hidden=7168,inter=2048,experts=256,topk=8[,shared=1].",
        autocompletion=complete_model,
    ),
]
TokensOption = Annotated[str | None, typer.Option(help="Token counts entering the layer over the EP group, such as 1,64,4096.")]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="Default: the fastest that the GPU runs and the weights allow.", autocompletion=complete_format),
]
KernelOption = Annotated[
    str, typer.Option(help="Kernel profile (`perfmodel profiles`); auto takes the fastest measured one.", autocompletion=complete_kernel)
]
RoutingOption = Annotated[
    str | None,
    typer.Option(help="balanced, uniform (default), group-limited (models that do so), powerlaw:ALPHA, zipf:S, active:N, counts:FILE."),
]
EpOption = Annotated[int, typer.Option(help="Expert-parallel ranks; figures are the busiest rank's.")]
TpOption = Annotated[int, typer.Option(help="Tensor-parallel ranks, which split the intermediate size.")]
LaunchOption = Annotated[str, typer.Option(help="eager, graph, pdl or persistent.")]
CommOption = Annotated[str, typer.Option(help="exclude or include dispatch, combine and all-reduce.")]
ClockOption = Annotated[str, typer.Option(help="burst (as benchmarks of 0.1 s run) or sustained (what long tensor work settles at).")]
PlacementOption = Annotated[str, typer.Option(help="Experts on ranks: contiguous, round-robin or balanced.")]
RedundantOption = Annotated[int, typer.Option(help="Replicas of the hottest experts over all ranks.")]
AgainstOption = Annotated[float | None, typer.Option(help="Another peak to hold the layer against, in TFLOPS.")]

__all__ = ["GpuOption", "JsonOption", "SetOption", "parse_tokens"]


def parse_tokens(text: str | None) -> list[int] | None:
    """`1,64,4096` as numbers, None for None. Raises PerfModelError for words."""
    from perfmodel.errors import PerfModelError

    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= 12):
            raise PerfModelError("must be whole numbers from 1", field="tokens", value=word, mend="Give --tokens 1,64,4096, say.")
    return [int(word) for word in words]


def call_gap(model: str, gpu: str, tokens: str | None, **options: Any) -> dict[str, Any]:
    """`perfmodel.gap` with the options of the command line."""
    from perfmodel.api import DEFAULT_TOKENS, gap

    return gap(model, gpu, tokens=parse_tokens(tokens) or DEFAULT_TOKENS, **options)
