"""A simulation in a terminal: what clients see, what the GPUs do, where the time of a step goes."""

from __future__ import annotations

from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from perfmodel.report.gap import changed
from perfmodel.report.numbers import number, percent
from perfmodel.serving.anchoring import Anchoring, in_words

FIGURES = (("ttft_ms", "first token, ms"), ("tpot_ms", "per further token, ms"), ("latency_ms", "whole answer, ms"))
"""What clients see, in this order everywhere."""


def render(result: dict[str, Any], console: Console) -> None:
    """Print the object of `perfmodel.simulate`."""
    parts: list[RenderableType] = [Text(subject(result), style="bold"), Text(conditions(result)), _clients(result)]
    parts += [_curve(result["curve"])] if "curve" in result else []
    parts += [Text(in_words(Anchoring(**result["anchored"])))] if result["anchored"] else []
    parts += [_service(result), _step(result)]
    for part in parts:
        console.print(part)
    for line in result["notes"]:
        console.print(Text(f"note: {line}", style="yellow"))


def subject(result: dict[str, Any]) -> str:
    """Model, GPUs and how they share it, in one line."""
    ranks = ", ".join(f"{name.upper()} {result[name]}" for name in ("tp", "pp", "dp", "ep") if result[name] > 1)
    count, before = result["instances"], result.get("prefill_instances", 0)
    some = f"{before} + {count} instances" if before else f"{count} instance{'s' if count > 1 else ''}"
    return f"{result['model']} on {result['gpus']} x {result['gpu']}{changed(result['changes'])}, {result['format']}, {some}" + (
        f" of {ranks}" if ranks else ""
    )


def conditions(result: dict[str, Any]) -> str:
    """The load, in one line."""
    if result["trace"]:
        load = "trace"
    elif result["concurrency"]:
        load = f"{result['concurrency']:,} clients in a closed loop"
    else:
        rates = sorted(row["rate"] for row in result.get("curve", [result]))
        some = f"{rates[0]:g} to {rates[-1]:g}" if len(rates) > 1 else f"{rates[0]:g}"
        load = f"{some} requests a second ({result['arrivals']})"
    shape = f"{result['isl_mean']:,.0f} + {result['osl_mean']:,.0f} tokens ({result['lengths']})"
    if result["trace"]:
        shape = f"{result['isl_mean']:,.0f} + {result['osl_mean']:,.0f} tokens on average"
    return f"{load}, {result['requests']:,} requests of {shape}, {result['mode']}"


def _clients(result: dict[str, Any]) -> Table:
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("clients see", no_wrap=True)
    for name in ("p50", "p90", "p99", "mean"):
        table.add_column(name, justify="right", no_wrap=True)
    for figure, name in FIGURES:
        if result[figure] is not None:
            table.add_row(name, *(number(result[figure][p]) for p in ("p50", "p90", "p99", "mean")))
    return table


def _curve(curve: list[dict[str, Any]]) -> Table:
    table = Table(header_style="bold", pad_edge=False, title="Against load (the rest is of the last rate)", title_justify="left")
    for name in ("requests/s", "TTFT p50", "p99", "TPOT p50", "p99", "tokens/s", "busy"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in curve:
        tpot = row["tpot_ms"] or {"p50": 0.0, "p99": 0.0}
        times = [row["ttft_ms"]["p50"], row["ttft_ms"]["p99"], tpot["p50"], tpot["p99"], row["tokens_per_s"]]
        table.add_row(f"{row['rate']:g}", *(number(value) for value in times), percent(row["utilisation"]))
    return table


def _service(result: dict[str, Any]) -> Table:
    memory = result["memory"]
    cache = f"{memory['cache_mean_GB']:.1f} GB on average, {memory['cache_peak_GB']:.1f} at most, of {memory['cache_room_GB']:.1f}"
    lines = [
        ("throughput", f"{number(result['tokens_per_s'])} tokens/s, {number(result['tokens_per_s_per_gpu'])} a GPU"),
        ("requests", f"{result['completed']:,} answered, {number(result['requests_per_s'])} a second over {number(result['seconds'])} s"),
        ("GPUs run steps", f"{percent(result['utilisation'])} of the time"),
        ("memory of a GPU", f"weights {memory['weights_GB']:.1f} GB of {memory['capacity_GB']:.1f}; caches {cache}"),
        ("memory full", f"{percent(result['kv_full_share'])} of the time; {result['preempted']:,} requests put back"),
    ]
    return _grid("The service", lines)


def _step(result: dict[str, Any]) -> Table:
    total, mean = sum(result["step_us"].values()), result["step"]
    title = f"The mean decode step: {number(mean['sequences'])} sequences of {mean['context']:,.0f} tokens" if mean else "A decode step"
    lines = [(name, f"{number(us)} us", percent(us / total)) for name, us in result["step_us"].items() if us > 0]
    return _grid(title, lines)


def _grid(title: str, lines: list[Any]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for line in lines:
        table.add_row(*line)
    return table
