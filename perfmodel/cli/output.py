"""What every command shares: the options that recur, JSON on stdout, notes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from perfmodel.cli.completion import complete_gpu

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the GPU for this call: the what-if. Repeatable.")
]
AnchorOption = Annotated[
    str | None,
    typer.Option("--anchor", metavar="FILE", help="CSV or YAML of your own measurements of services, which pull the prediction."),
]
GpuOption = Annotated[str, typer.Option("--gpu", help="GPU id (`perfmodel gpus`) or a path to a YAML file.", autocompletion=complete_gpu)]


def print_json(data: Any) -> None:
    """`data` as one JSON object on stdout; NaN and infinity are a bug of ours and raise ValueError."""
    sys.stdout.write(json.dumps(data, indent=1, allow_nan=False) + "\n")


def note(text: str) -> None:
    """One line for the person at the terminal, on stderr."""
    sys.stderr.write(text + "\n")


class Stopped(KeyboardInterrupt):
    """Ctrl-C, with the line for the person at the terminal: what is kept of the work so far."""


@contextmanager
def stoppable(kept: Callable[[], str]) -> Iterator[None]:
    """Around work that takes minutes: Ctrl-C becomes Stopped, which says what is `kept` by then."""
    try:
        yield
    except Stopped:
        raise
    except KeyboardInterrupt as stop:
        raise Stopped(f"stopped: {kept()}") from stop
