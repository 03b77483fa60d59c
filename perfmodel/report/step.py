"""A step of a whole model in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfmodel.report.gap import changed
from perfmodel.report.numbers import number
from perfmodel.serving.anchoring import in_words
from perfmodel.serving.memory import USABLE

if TYPE_CHECKING:
    from perfmodel.serving.predict import StepResult


def render(result: StepResult, console: Console) -> None:
    """Print what the step consists of, its time and rate, and what the memory of a GPU holds."""
    if not result.fits:
        console.print(Text(_misfit(result), style="bold red"))
    shape = ", ".join(
        f"{name} {value}" for name, value in (("tp", result.tp), ("pp", result.pp), ("dp", result.dp), ("ep", result.ep)) if value > 1
    )
    what = f"decode of {result.batch:,} sequences" if result.phase == "decode" else "a prompt"
    console.print(
        Text(f"{result.model} on {result.gpus} x {result.gpu}{changed(result.changes)}, {what} at {result.context:,} tokens", style="bold")
    )
    formats = f"{result.format}, other layers {result.dense_format}, cache {result.cache_format}"
    console.print(Text(f"{formats}{'; ' + shape if shape else ''}{'; ' + result.backend if result.backend else ''}"))
    console.print(_table(result))
    low, high = (number(value) for value in result.interval_us)
    console.print(Text(f"80 % from {low} to {high} us; {result.tokens_per_s_per_gpu:,.0f} tokens/s a GPU"))
    if result.anchored is not None:
        console.print(Text(in_words(result.anchored, ["tpot" if result.phase == "decode" else "ttft"])))
    held = ", ".join(f"{name} {value:,.1f}" for name, value in result.memory_GB.items())
    console.print(Text(f"GB of a GPU: {held}; it has {result.capacity_GB:,.1f}"))
    if result.fits:
        most = f"{result.most_sequences:,} sequences of this context fit, or so many of up to {result.longest_context:,} tokens"
        console.print(Text(most))
    for line in result.notes:
        console.print(Text(f"note: {line}", style="yellow"))


def _misfit(result: StepResult) -> str:
    """What does not fit, and how many sequences would; the figures after it are of GPUs with memory enough."""
    held = sum(result.memory_GB.values())
    some = f"{result.most_sequences:,} sequences of this context do" if result.most_sequences else "not a single sequence does"
    room = f"engines take {USABLE * result.capacity_GB:,.0f} of a GPU's {result.capacity_GB:,.0f}"
    return f"does not fit: {held:,.0f} GB, where {room}; {some}. The rest is as if it did."


def _table(result: StepResult) -> Table:
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("op")
    table.add_column("us", justify="right")
    table.add_column("share", justify="right")
    for op in result.ops:
        table.add_row(op.name, number(op.us), f"{op.us / result.latency_us:.0%}")
    table.add_section()
    table.add_row("step" if result.phase == "decode" else "prompt", number(result.latency_us), "", style="bold")
    return table
