"""`perfmodel models`: the bundled models, or one model from anywhere."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from perfmodel.cli.completion import complete_model
from perfmodel.cli.output import JsonOption, print_json


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("models")(models)


def models(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Bundled id, path to a config.json or its folder, or layer:...; all ids without.",
            autocompletion=complete_model,
        ),
    ] = None,
    json: JsonOption = False,
    yaml: Annotated[bool, typer.Option("--yaml", help="Print the file that would bundle this model.")] = False,
) -> None:
    """Show what a model consists of: layers, experts, attention, parameters, the format of its weights, what was not understood.

    Example: `perfmodel models gpt-oss-120b`, `perfmodel models ./DeepSeek-V3/config.json --json`
    """
    from perfmodel.errors import PerfModelError
    from perfmodel.report.models import model_data, model_yaml, print_model, print_models
    from perfmodel.workload import load_model, model_ids

    if yaml and (model is None or json):
        raise PerfModelError("needs one MODEL, and goes without --json", field="--yaml", mend="Write `perfmodel models MODEL --yaml`.")
    specs = [load_model(name) for name in ([model] if model is not None else model_ids())]
    if json:
        print_json(model_data(specs[0]) if model is not None else {"models": [model_data(spec) for spec in specs]})
    elif yaml:
        sys.stdout.write(model_yaml(specs[0]))
    else:
        from rich.console import Console

        if model is not None:
            print_model(specs[0], Console())
        else:
            print_models(specs, Console())
