"""One measurement as a row: what ran, on what, how long, what was counted, and where it comes from. Figures are raw."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, PositiveFloat, model_validator

from perfmodel.errors import PerfModelError
from perfmodel.formats import get_format
from perfmodel.validated import Strict, validate
from perfmodel.validation.columns import Kind, parse_routing
from perfmodel.validation.runs.case import Case
from perfmodel.validation.runs.kernels import named
from perfmodel.validation.runs.plausible import check_plausible

RunKind = Literal["grouped-gemm", "layer"]
SIZES: dict[Kind, tuple[str, ...]] = {
    "grouped-gemm": ("experts", "n", "k", "tokens_per_expert"),
    "layer": ("experts", "topk", "hidden", "inter", "tokens"),
}
"""Sizes that a run of each kind has."""
Size = Annotated[int, Field(gt=0, le=10**12)]
"""Of anything counted: more is a mistake, and would not fit the store."""


MOST_ERROR, MOST_ERROR_QUANTISED = 0.01, 0.03
"""||y - ref|| / ||ref|| beyond which a kernel is wrong; the second of layers that quantise their hidden state.

There a hidden value that is off by its 0.2 % may fall to the next E4M3, 6 to 12 % away: 1.1 to 1.7 % of a layer's output on an H200.
"""
DERIVED = {"source", "gpu", "profile", "flop", "bytes", "predicted_us", "predicted_low_us", "predicted_high_us", "predicted_dram_bytes"}
"""Fields that say nothing of what was measured: they do not make a row another one."""


class Run(Strict):
    """A measured time, or the counters of a profiler, of one grouped GEMM or one layer. What is not known is None."""

    run_id: str
    """Of the process that measured; rows of one run share their machine."""
    suite: str
    point: str
    """What is measured, in words that say all of it: what a run that goes on looks for."""
    date: str
    """ISO 8601."""
    commit: str | None = None
    """Of the project that measured."""
    source: str = ""
    """The file that the row was read from."""

    device: str
    """As the driver names it."""
    gpu: str | None = None
    """Id of `perfmodel gpus`."""
    driver: str | None = None
    cuda: str | None = None
    python: str | None = None
    versions: str = "{}"
    """JSON: package -> version."""

    kind: RunKind
    kernel: str
    """Variant; of a layer both grouped GEMMs, with a + between them."""
    profile: str | None = None
    """Kernel profile that describes it."""
    ours: bool
    format: str
    experts: Size
    n: Size | None = None
    """Of a grouped GEMM: columns of the weights of an expert."""
    k: Size | None = None
    """Of a grouped GEMM: their depth."""
    tokens_per_expert: Size | None = None
    """Of a grouped GEMM."""
    topk: Size | None = None
    hidden: Size | None = None
    inter: Size | None = None
    tokens: Size
    """Rows of x that enter: of a layer before top-k, of a grouped GEMM over all experts."""
    routing: str = "balanced"
    launch: str = "graph"

    us: PositiveFloat | None = None
    """Median of the replays [us]; None where only counters were read."""
    us_low: PositiveFloat | None = None
    us_high: PositiveFloat | None = None
    burst_us: PositiveFloat | None = None
    hold_s: PositiveFloat | None = None
    flop: PositiveFloat
    bytes: PositiveFloat
    """Compulsory DRAM bytes: weights with scales, input, output."""
    rel_err: float | None = Field(default=None, ge=0)
    """||y - ref|| / ||ref|| against float64."""
    nan: int | None = Field(default=None, ge=0, le=10**15)
    sm_MHz: Size | None = None
    power_W: PositiveFloat | None = None

    predicted_us: PositiveFloat | None = None
    """By the model of that commit, before the measurement."""
    predicted_low_us: PositiveFloat | None = None
    predicted_high_us: PositiveFloat | None = None
    predicted_dram_bytes: PositiveFloat | None = None

    dram_read_bytes: float | None = Field(default=None, ge=0)
    dram_write_bytes: float | None = Field(default=None, ge=0)
    l2_bytes: float | None = Field(default=None, ge=0)
    l2_hit_pct: float | None = Field(default=None, ge=0, le=100)
    tensor_pct: float | None = Field(default=None, ge=0, le=100)
    """Cycles in which the tensor pipe was active, of those in which its SM was."""
    counters: str = "{}"
    """JSON: metric of Nsight Compute -> value in its base unit."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Raises PerfModelError where a size is missing, or format or routing are none that the model can be asked about."""
        get_format(self.format)
        parse_routing(self.routing)
        for name in SIZES[self.kind]:
            if getattr(self, name) is None:
                raise PerfModelError(f"is missing of a {self.kind}", field=name, mend="Fill it in.")
        if self.topk is not None and self.topk > self.experts:
            raise PerfModelError("is over the number of experts", field="topk", value=self.topk, mend="Swap the two, or mend one.")
        return self

    @property
    def key(self) -> str:
        """The row's identity: the same measurement has the same key, from whichever file it is read and however often."""
        content = self.model_dump(exclude=DERIVED)
        text = json.dumps({name: value for name, value in content.items() if value is not None}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def case(self) -> Case:
        """What the model is asked."""
        return Case(
            self.gpu, self.kind, self.profile, named(self.kernel).tile, self.format, self.experts, self.tokens, self.n or 0, self.k or 0,
            self.tokens_per_expert or 0, self.topk or 0, self.hidden or 0, self.inter or 0, self.routing, self.hold_s,
        )  # fmt: skip

    @property
    def wrong(self) -> bool:
        """Whether the timed kernel computed something else than it should: rounding explains 0.3 % of a GEMM."""
        most = MOST_ERROR_QUANTISED if self.kind == "layer" and get_format(self.format).activations.value_bits < 16 else MOST_ERROR
        return bool(self.nan) or (self.us is not None and self.rel_err is not None and self.rel_err > most)

    @property
    def dram_bytes(self) -> float | None:
        """Counted, read and written."""
        if self.dram_read_bytes is None or self.dram_write_bytes is None:
            return None
        return self.dram_read_bytes + self.dram_write_bytes


NAMES = tuple(Run.model_fields)
_KINDS = {"str": "VARCHAR", "int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN"}


def sql_type(name: str) -> str:
    """DuckDB's type of a field."""
    return _KINDS[_plain(name).__name__]


def parse_run(cells: Mapping[str, Any], *, file: str, line: int) -> Run:
    """A row of texts or typed values as a Run, empty cells as None or the default. Raises PerfModelError with file, line and field."""
    known = {name: value for name, value in cells.items() if name in NAMES and value is not None and value != ""}
    data = {name: _cell(name, value, file, line) for name, value in known.items()}
    try:
        run = validate(Run, data)
        check_plausible(run)
        return run
    except PerfModelError as error:
        raise PerfModelError(error.problem, file=file, line=line, field=error.field, value=error.value, mend=error.mend) from None


def _cell(name: str, value: Any, file: str, line: int) -> Any:
    """A text as its field wants it; other values as they are."""
    kind = _plain(name)
    if not isinstance(value, str) or kind is str:
        return value
    try:
        if kind is bool:
            return {"true": True, "false": False}[value.lower()]
        return kind(value)
    except (ValueError, KeyError):
        raise PerfModelError(
            f"is no {kind.__name__}", file=file, line=line, field=name, value=value, mend="Mend the cell, or leave it empty."
        ) from None


def _plain(name: str) -> type:
    """str, int, float or bool: the type of a field without None and bounds."""
    annotation = Run.model_fields[name].annotation
    found: list[Any] = [annotation, *get_args(annotation)]
    for one in list(found):
        found += get_args(one)
    if any(isinstance(one, str) for one in found):  # a Literal
        return str
    return next(kind for kind in (bool, int, float, str) if kind in found)
