"""The columns that a CSV of measurements may have, and what each cell must be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from perfmodel.errors import PerfModelError, did_you_mean

Cell = int | float | str
Role = Literal["label", "size", "time"]
Kind = Literal["layer", "grouped-gemm", "gemm", "attention", "quantise", "collectives", "a2a"]

LARGEST_SIZE = 10**9

_WHOLE = re.compile(r"\d{1,10}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Column:
    """One column. `parse` turns a cell into its value or raises PerfModelError with problem and mend; without `default` it is required."""

    name: str
    role: Role
    parse: Callable[[str], Cell]
    default: Cell | None = None


def parse_size(text: str) -> int:
    """A count of tokens, experts, ...: a whole number from 1 to a billion."""
    if not _WHOLE.fullmatch(text) or not 0 < int(text) <= LARGEST_SIZE:
        raise PerfModelError("must be a whole number from 1 to a billion", mend="Write 4096, say.")
    return int(text)


def parse_time(text: str) -> float:
    """A latency in microseconds: a positive, finite decimal number."""
    value = float(text) if _DECIMAL.fullmatch(text) else math.nan
    if not (math.isfinite(value) and value > 0):
        raise PerfModelError("must be a positive number of microseconds", mend="Write 206.9, say.")
    return value


def parse_choice(*choices: str) -> Callable[[str], str]:
    """A parser that takes one of `choices` and nothing else."""

    def parse(text: str) -> str:
        if text not in choices:
            raise PerfModelError("is none of the choices", mend=did_you_mean(text, choices))
        return text

    return parse


def parse_gpu(text: str) -> str:
    """A GPU id or a path to a GPU's YAML file that loads."""
    from perfmodel.hardware import load_gpu

    load_gpu(text)
    return text


def parse_format(text: str) -> str:
    """A FORMAT of the catalogue."""
    from perfmodel.formats import get_format

    return get_format(text).id


def parse_routing(text: str) -> str:
    """A ROUTING: balanced, uniform, powerlaw:1.2, ..."""
    from perfmodel.workload.routing import parse_routing as parse

    parse(text)
    return text


def parse_launch(text: str) -> str:
    """A launch mode: eager, graph, pdl, persistent."""
    from perfmodel.ops.launch import launch_modes

    return parse_choice(*launch_modes())(text)


def parse_name(text: str) -> str:
    """Free text of moderate length: the name of a kernel (which may be one without a profile), or a source."""
    if len(text) > 200 or not text.isprintable():
        raise PerfModelError("must be printable text of at most 200 characters", mend="Shorten it.")
    return text


_HARDWARE = (Column("gpu", "label", parse_gpu), Column("kernel", "label", parse_name), Column("format", "label", parse_format))
_LATENCY = Column("latency_us", "time", parse_time)
_SOURCE = Column("source", "label", parse_name, default="")

LAYER_COLUMNS = (
    *_HARDWARE,
    *(Column(name, "size", parse_size) for name in ("num_tokens", "hidden", "inter", "topk", "num_experts", "tp", "ep")),
    Column("routing", "label", parse_routing),
    _LATENCY,
    Column("gated", "label", parse_choice("true", "false"), default="true"),
    _SOURCE,
    Column("launch", "label", parse_launch, default=""),
    Column("caches", "label", parse_choice("cold", "warm"), default="cold"),
)
"""One whole MoE layer a row; an empty `launch` is graph, and `caches` are those of `Scenario`."""

GEMM_COLUMNS = (
    *_HARDWARE,
    *(Column(name, "size", parse_size) for name in ("experts", "n", "k", "tokens_per_expert")),
    _LATENCY,
    _SOURCE,
)
"""One grouped GEMM a row, [tokens_per_expert, k] x [k, n] for each of `experts` experts."""

COLUMNS: Mapping[Kind, tuple[Column, ...]] = {"layer": LAYER_COLUMNS, "grouped-gemm": GEMM_COLUMNS}
"""Of the kinds that a CSV can hold."""
TOKENS: Mapping[Kind, str] = {
    "layer": "num_tokens", "grouped-gemm": "tokens_per_expert", "gemm": "m",
    "attention": "context", "quantise": "m", "collectives": "bytes", "a2a": "tokens",
}  # fmt: skip
"""The column that grows along a series of otherwise equal rows."""
