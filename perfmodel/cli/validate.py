"""`perfmodel validate`: predictions held against measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import JsonOption

if TYPE_CHECKING:
    from perfmodel.validation.targets import Validation

HELP = """Hold predictions against measurements: the published and measured `tables` that come along, or a CSV of your own.

A layer has the columns gpu, kernel, format, num_tokens, hidden, inter, topk, num_experts, tp, ep, routing, latency_us
(and may have gated, source, launch),
a grouped GEMM gpu, kernel, format, experts, n, k, tokens_per_expert, latency_us (and may have source).

Rows under the physical floor, listed traps and kernels without a profile are flagged and not scored; spikes and dips are flagged.

Example: `perfmodel validate tables` or `perfmodel validate mine.csv --kernel marlin --json`
"""

TargetArgument = Annotated[str, typer.Argument(metavar="tables|FILE.csv", help="The bundled tables, or a CSV of measurements.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("validate", help=HELP)(validate)


def validate(
    target: TargetArgument,
    gpu: Annotated[str | None, typer.Option("--gpu", help="Only rows of this GPU.")] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", help="Only rows of this kernel.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Score the rows of `target` and print families, or everything as JSON."""
    from perfmodel.report.validate import print_validation, write_json

    outcome = _validation(target, gpu, kernel)
    if as_json:
        write_json(outcome.summary(), outcome.rows())
    else:
        print_validation(outcome.summary(), outcome.rows())


def _validation(target: str, gpu: str | None, kernel: str | None) -> Validation:
    from perfmodel.errors import PerfModelError, did_you_mean
    from perfmodel.validation.targets import TABLES, validate_file, validate_tables

    if target == TABLES:
        return validate_tables(gpu, kernel)
    if not Path(target).exists():
        beside = [str(path) for path in Path().glob("*.csv")]
        raise PerfModelError("is neither a file nor `tables`", field="TARGET", value=target, mend=did_you_mean(target, [TABLES, *beside]))
    return validate_file(target, gpu, kernel)
