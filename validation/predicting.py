"""The model's answer to each measured row: rows that share GPU, kernel and format go through it in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.validation.columns import TOKENS
from perfmodel.validation.flags import flag_rows
from perfmodel.validation.measurements import Floats, Integers, Measurements, group_ids
from perfmodel.validation.score import FAMILY, Comparison

LAYER_NAMES = {"num_tokens": "tokens", "num_experts": "experts"}
"""What the model calls a column, where it says it otherwise."""


class Predicted(Protocol):
    """Seconds [n] of a call: prediction, physical floor, and the bounds of the 80 % interval."""

    latency_s: Floats
    floor_s: Floats
    lo_s: Floats
    hi_s: Floats


class Model(Protocol):
    """What `perfmodel.latency` offers; sizes are integer arrays over rows."""

    def predict_rows(self, gpu_id: str, kernel: str, format: str, columns: dict[str, Integers], **options: Any) -> Predicted:
        """Whole layers."""

    def predict_grouped_gemm(
        self, gpu_id: str, kernel: str, format: str, experts: Integers, n: Integers, k: Integers, tokens_per_expert: Integers
    ) -> Predicted:
        """Single grouped GEMMs of equally loaded experts."""


def hold(rows: Measurements, model: Model | None = None) -> Comparison:
    """Every row with its prediction and its flag.

    `model` is `perfmodel.latency` by default. Raises PerfModelError with the file and the line of a row that cannot be: a format that
    the GPU lacks, sizes that do not divide.
    """
    if model is None:
        model = cast(Model, import_module("perfmodel.latency"))
    out = np.full((4, len(rows)), np.nan)
    for group in _groups(rows):
        out[:, group] = _named(rows, group, _asker(rows, int(group[0]), model))
    latency, floor, low, high = out
    family = {name: rows.labels[name] for name in FAMILY}
    return Comparison(family, rows.latency, latency, floor, low, high, flag_rows(rows, floor, ~np.isnan(latency)))


def has_profile(gpu: str, kernel: str, format_id: str) -> bool:
    """Whether a kernel profile (an id, or a YAML file) covers the format on the GPU's architecture; `auto` always finds one."""
    from perfmodel.hardware import load_gpu
    from perfmodel.profiles import load_profile, profile_ids

    if kernel == "auto":
        return True
    if kernel not in profile_ids() and not kernel.endswith((".yaml", ".yml")):
        return False
    return load_profile(kernel).supports(load_gpu(gpu).architecture, format_id)


def _groups(rows: Measurements) -> Iterator[Integers]:
    """Indices of the rows that share all labels but the source, which the model does not see."""
    ids = group_ids([label.codes for name, label in rows.labels.items() if name != "source"])
    order = np.argsort(ids, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(ids[order])) + 1)


def _asker(rows: Measurements, first: int, model: Model) -> Callable[[Integers], Floats]:
    """A function from row indices to [4, len(indices)] seconds: latency, floor, low, high. The labels of all are those of row `first`."""
    label = {name: column[first] for name, column in rows.labels.items()}
    where = (label["gpu"], label["kernel"], label["format"])

    def ask(index: Integers) -> Floats:
        _check_format(label["gpu"], label["format"])
        if not has_profile(*where):
            return np.full((4, len(index)), np.nan)
        sizes = {name: column[index] for name, column in rows.sizes.items()}
        if rows.kind == "grouped-gemm":
            answer = model.predict_grouped_gemm(*where, sizes["experts"], sizes["n"], sizes["k"], sizes[TOKENS[rows.kind]])
        else:
            columns = {LAYER_NAMES.get(name, name): column for name, column in sizes.items()}
            launch = {"launch": label["launch"]} if label["launch"] else {}
            answer = model.predict_rows(*where, columns, routing=label["routing"], gated=label["gated"] == "true", **launch)
        return np.stack([answer.latency_s, answer.floor_s, answer.lo_s, answer.hi_s])

    return ask


def _named(rows: Measurements, group: Integers, ask: Callable[[Integers], Floats]) -> Floats:
    """`ask(group)`; an error of the user's is traced to the first row that causes it and raised with file and line."""
    try:
        return ask(group)
    except PerfModelError as error:
        row, cause = _first_failing(group, ask, error)
        problem = cause.problem + (f" (got {cause.value!r})" if cause.value is not None else "")
        raise PerfModelError(problem, file=rows.file, line=int(rows.lines[row]), field=cause.field, mend=cause.mend) from error


def _first_failing(group: Integers, ask: Callable[[Integers], Floats], error: PerfModelError) -> tuple[int, PerfModelError]:
    """The first row at which `ask` fails, found by halving, and its error."""
    while len(group) > 1:
        first, second = group[: len(group) // 2], group[len(group) // 2 :]
        try:
            ask(first)
            group = second
        except PerfModelError as nearer:
            group, error = first, nearer
    return int(group[0]), error


def _check_format(gpu: str, format_id: str) -> None:
    """Raises PerfModelError where the GPU lacks the units of the format: a measurement of that cannot exist."""
    from perfmodel.formats import get_format
    from perfmodel.hardware import load_gpu

    get_format(format_id).math_type(load_gpu(gpu).math_types)
