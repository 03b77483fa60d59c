"""What a sweep is asked for and what it answers: the objects that Python, GRID.yaml and HTTP share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from perfmodel.api import DEFAULT_TOKENS
from perfmodel.errors import PerfModelError, did_you_mean, shorten
from perfmodel.files import load_yaml, read_text
from perfmodel.formats import get_format
from perfmodel.hardware import load_gpu
from perfmodel.ops.launch import launch_modes
from perfmodel.profiles import load_profile
from perfmodel.scenario import Clock, Comm
from perfmodel.validated import Strict, validate
from perfmodel.workload import load_model
from perfmodel.workload.layer import MOST_EXPERTS
from perfmodel.workload.routing import Placement, parse_routing

MOST_POINTS = 10_000_000
"""Points of one grid: some minutes and a gigabyte. More is a slip of the pen, or better several files."""
AUTO = "auto"
TRUSTED = {"trusted": True}
"""Validation context of a request that was checked already: where a cluster reads it, files of the user may not be there."""

SLOW = ("gpu", "format", "kernel", "routing", "placement", "redundant", "launch", "comm", "clock")
FAST = ("model", "ep", "tp", "tokens")
"""The grid's order, the last key changing fastest: what the vectorised model takes at once lies together."""


def _list(value: object) -> object:
    if isinstance(value, list | tuple):
        return tuple(value)
    mend = f"Write [{shorten(value, 40)}]." if isinstance(value, str | int | float) else "Write a list in brackets, such as [a, b]."
    raise PydanticCustomError("no_list", "must be a list", {"mend": mend})


def _once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Duplicates are the same point: the first stays."""
    return tuple(dict.fromkeys(values))


def _known(check: Callable[[str], object]) -> AfterValidator:
    """Words that `check` takes without a PerfModelError; its problem and mend become pydantic's."""

    def validator(word: str, info: ValidationInfo) -> str:
        try:
            if not info.context:
                check(word)
        except PerfModelError as error:
            inside = error.file is not None  # the mistake stands in the file that the word names
            whole = PerfModelError(error.problem, file=error.file, line=error.line, field=error.field, value=error.value)
            context = {"problem": str(whole) if inside else error.problem, "mend": error.mend or "Mend the value."}
            raise PydanticCustomError("unknown", "{problem}", context) from error
        return word

    return AfterValidator(validator)


def _moe_model(name: str) -> None:
    if load_model(name).moe is None:
        raise PerfModelError("has no MoE layer", mend="Choose one that has (`perfmodel models`).")


def _launch(name: str) -> None:
    if name not in launch_modes():
        raise PerfModelError("no such launch mode", mend=did_you_mean(name, launch_modes()))


def _unless_auto(check: Callable[[str], object]) -> Callable[[str], object]:
    return lambda word: word == AUTO or check(word)


_SOME_GROUPS = (2, 1)
"""`group-limited` without numbers takes the model's groups: whether a model has any is seen at its points."""

Model = Annotated[str, _known(_moe_model)]
Gpu = Annotated[str, _known(load_gpu)]
FormatName = Annotated[str, _known(_unless_auto(get_format))]
Kernel = Annotated[str, _known(_unless_auto(load_profile))]
RoutingName = Annotated[str, _known(_unless_auto(lambda text: parse_routing(text, groups=_SOME_GROUPS)))]
LaunchName = Annotated[str, _known(_launch)]
AnyOf = (BeforeValidator(_list), AfterValidator(_once), Field(min_length=1))
Number = Annotated[float, Field(ge=0, lt=2**31)]


class CountRange(Strict):
    """Evenly spaced whole numbers: rounded, duplicates dropped."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    from_: Number = Field(alias="from")
    """The first."""
    to: Number
    """The last."""
    steps: int = Field(ge=1, le=MOST_POINTS)
    """How many, before rounding."""
    scale: Literal["linear", "log"] = "linear"
    """log: equal ratios instead of equal differences."""

    @model_validator(mode="after")
    def _spans(self) -> CountRange:
        if self.from_ > self.to:
            raise PydanticCustomError("backwards", "runs backwards", {"mend": "Give a `from` of at most `to`."})
        if self.steps == 1 and self.from_ != self.to:
            raise PydanticCustomError("one_step", "cannot reach `to` in one step", {"mend": "Give steps of at least 2."})
        if self.scale == "log" and self.from_ < 1:
            raise PydanticCustomError("log_of_0", "a log scale cannot start below 1", {"mend": "Give a `from` of at least 1."})
        return self

    @property
    def counts(self) -> np.ndarray:
        """The whole numbers, rising."""
        spaced = np.geomspace if self.scale == "log" else np.linspace
        rising: np.ndarray = np.rint(spaced(self.from_, self.to, self.steps)).astype(np.int64)
        return rising[np.diff(rising, prepend=-1) > 0]


def _within(least: int, most: int) -> AfterValidator:
    def validator(span: CountRange) -> CountRange:
        if not least - 0.5 < span.from_ <= span.to < most + 0.5:
            context = {"problem": f"must lie between {least} and {most:,}", "mend": f"Start at {least} or above."}
            raise PydanticCustomError("out_of_bounds", "{problem}", context)
        return span

    return AfterValidator(validator)


def _form(value: object) -> str:
    return "(range)" if isinstance(value, dict | CountRange) else "(list)"


MOST_COUNT = 2**31 - 1
LISTED, SPANNED, EITHER = Tag("(list)"), Tag("(range)"), Discriminator(_form)
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Counts = Annotated[
    Annotated[tuple[Count, ...], *AnyOf, LISTED] | Annotated[CountRange, _within(1, MOST_COUNT), SPANNED],
    EITHER,
]
Replica = Annotated[int, Field(ge=0, le=MOST_EXPERTS)]
Replicas = Annotated[
    Annotated[tuple[Replica, ...], *AnyOf, LISTED] | Annotated[CountRange, _within(0, MOST_EXPERTS), SPANNED],
    EITHER,
]


class SweepRequest(Strict):
    """A grid: every key a list, or for counts a range; the product of all keys are its points. Keys mean what they mean in `gap`."""

    model: Annotated[tuple[Model, ...], *AnyOf]
    """Bundled ids, paths to a config.json, or layer:hidden=..,inter=..,experts=..,topk=.."""
    gpu: Annotated[tuple[Gpu, ...], *AnyOf]
    """GPU ids or paths to a YAML."""
    format: Annotated[tuple[FormatName, ...], *AnyOf] = (AUTO,)
    """auto: the fastest that the GPU runs natively and the model's weights allow."""
    kernel: Annotated[tuple[Kernel, ...], *AnyOf] = (AUTO,)
    """Kernel profiles; auto: the fastest measured one, point by point."""
    tokens: Counts = DEFAULT_TOKENS
    """Tokens entering the layer over the whole expert-parallel group."""
    routing: Annotated[tuple[RoutingName, ...], *AnyOf] = (AUTO,)
    """auto: group-limited where the model is so, else uniform."""
    ep: Counts = (1,)
    """Expert-parallel ranks."""
    tp: Counts = (1,)
    """Tensor-parallel ranks, which split the intermediate size."""
    launch: Annotated[tuple[LaunchName, ...], *AnyOf] = ("graph",)
    """eager, graph, pdl or persistent."""
    comm: Annotated[tuple[Comm, ...], *AnyOf] = ("exclude",)
    """Whether dispatch, combine and all-reduce count."""
    clock: Annotated[tuple[Clock, ...], *AnyOf] = ("burst",)
    """burst, or sustained: what long tensor work settles at."""
    placement: Annotated[tuple[Placement, ...], *AnyOf] = ("contiguous",)
    """Experts on ranks."""
    redundant: Replicas = (0,)
    """Replicas of the hottest experts over all ranks."""

    @model_validator(mode="after")
    def _not_too_many(self) -> SweepRequest:
        sizes = {key: len(values) for key, values in self.axes.items()}
        if prod(sizes.values()) > MOST_POINTS:
            longest = max(sizes, key=lambda key: sizes[key])
            problem = f"the grid has {prod(sizes.values()):,} points, at most {MOST_POINTS:,} are allowed"
            context = {"problem": problem, "field": longest, "value": sizes[longest], "mend": "Split it, or take fewer steps."}
            raise PydanticCustomError("too_many", "{problem}", context)
        return self

    @property
    def axes(self) -> dict[str, tuple[str, ...] | np.ndarray]:
        """Key -> its values, in the grid's order; numbers as arrays. Works out all ranges: keep it."""
        return {key: _values(getattr(self, key)) for key in (*SLOW, *FAST)}

    @property
    def points(self) -> int:
        """Points of the grid."""
        return prod(len(values) for values in self.axes.values())


def _values(given: CountRange | tuple[Any, ...]) -> tuple[str, ...] | np.ndarray:
    if isinstance(given, CountRange):
        return given.counts
    return given if isinstance(given[0], str) else np.array(given)


def read_request(grid: SweepRequest | Mapping[str, Any] | str | Path) -> SweepRequest:
    """The request that a GRID.yaml or a mapping holds. Raises PerfModelError with file, line, field, value and mend."""
    if isinstance(grid, SweepRequest):
        return grid
    if isinstance(grid, Mapping):
        return validate(SweepRequest, dict(grid))
    if not isinstance(grid, str | Path):
        raise PerfModelError("is no grid", field="grid", value=grid, mend="Give a mapping of keys, or the path of a GRID.yaml.")
    text = read_text(grid)
    return validate(SweepRequest, load_yaml(grid, text), file=grid, text=text)


class PointError(Strict):
    """Why some points cannot be."""

    message: str
    points: int


class SweepSummary(Strict):
    """What a sweep did."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    schema_: Literal["perfmodel.sweep/1"] = Field(default="perfmodel.sweep/1", alias="schema")
    out: str
    """The Parquet file: one row a point."""
    points: int
    errors: int
    """Points that cannot be: their rows hold nulls and the column `error`."""
    reasons: tuple[PointError, ...] = Field(default=(), strict=False)
    """The most frequent messages."""
    chunks: int
    resumed: int
    """Chunks that an earlier, interrupted run had computed."""
    seconds: float
    points_per_s: float
    """Points of this run, without those resumed."""
    notes: tuple[str, ...] = Field(default=(), strict=False)
    """What was out of the ordinary: damaged parts, say."""
