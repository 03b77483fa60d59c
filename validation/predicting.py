"""The model's answer to each measured row: rows that share GPU, kernel and format go through it together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.validation.columns import COLUMNS, Kind
from perfmodel.validation.flags import flag_rows
from perfmodel.validation.measurements import Floats, Integers, Measurements, group_ids
from perfmodel.validation.score import FAMILY, Comparison

if TYPE_CHECKING:
    from perfmodel.hardware import GpuSpec

Predict = Callable[[Kind, Mapping[str, str], Mapping[str, Integers]], Floats]
"""From the labels that rows share and their sizes [n] to [4, n] seconds: prediction, physical floor, low and high of the 80 % interval."""


def hold(rows: Measurements, predict: Predict | None = None) -> Comparison:
    """Every row with its prediction (by `perfmodel` unless another is given) and its flag.

    Raises PerfModelError with the file and the line of a row that cannot be: a format that the GPU lacks, sizes that do not divide.
    """
    out = np.full((4, len(rows)), np.nan)
    for group in _groups(rows):
        out[:, group] = _named(rows, group, _asker(rows, int(group[0]), predict or predict_rows))
    predicted, floor, low, high = out
    family = {name: rows.labels[name] for name in FAMILY}
    return Comparison(family, rows.latency, predicted, floor, low, high, flag_rows(rows, floor, ~np.isnan(predicted)))


def predict_rows(kind: Kind, labels: Mapping[str, str], sizes: Mapping[str, Integers]) -> Floats:
    """[4, n] seconds, as `Predict` says: what `perfmodel gap` gives for layers, single grouped GEMMs by the same model."""
    return _predict_gemms(labels, sizes) if kind == "grouped-gemm" else _predict_layers(labels, sizes)


def _predict_gemms(labels: Mapping[str, str], sizes: Mapping[str, Integers]) -> Floats:
    from perfmodel.latency import predict_grouped_gemm

    experts, n, k, tokens = (sizes[name] for name in ("experts", "n", "k", "tokens_per_expert"))
    answer = predict_grouped_gemm(labels["gpu"], labels["kernel"], labels["format"], experts=experts, n=n, k=k, tokens_per_expert=tokens)
    return np.stack([answer.latency, answer.floor, answer.low, answer.high])


def _predict_layers(labels: Mapping[str, str], sizes: Mapping[str, Integers]) -> Floats:
    from perfmodel.latency import predict_layers
    from perfmodel.scenario import resolve

    gpu = load_measured_gpu(labels["gpu"])
    how = {"routing": labels["routing"], "launch": labels["launch"] or "graph", "caches": labels["caches"]}
    scenario = resolve(gpu, labels["format"], labels["kernel"], **how)
    columns = {name.removeprefix("num_"): column for name, column in sizes.items()}
    answer = predict_layers(scenario, columns, gated=labels["gated"] == "true")
    return np.stack([answer.latency, answer.floor, answer.low, answer.high])


def load_measured_gpu(gpu: str) -> GpuSpec:
    """The GPU of measured rows, which are asked for again and again: those of the catalogue are read once, files each time."""
    from perfmodel.hardware import gpu_ids, load_gpu

    return _load_bundled(gpu) if gpu in gpu_ids() else load_gpu(gpu)


@lru_cache(maxsize=64)
def _load_bundled(gpu: str) -> GpuSpec:
    from perfmodel.hardware import load_gpu

    return load_gpu(gpu)


def has_profile(gpu: str, kernel: str, format_id: str) -> bool:
    """Whether a kernel profile (an id, or a YAML file) covers the format on the GPU's architecture; `auto` always finds one."""
    from perfmodel.profiles import load_profile, profile_ids

    if kernel == "auto":
        return True
    if kernel not in profile_ids() and not kernel.endswith((".yaml", ".yml")):
        return False
    return load_profile(kernel).supports(load_measured_gpu(gpu).architecture, format_id)


def _groups(rows: Measurements) -> Iterator[Integers]:
    """Indices of the rows that share all labels but the source, which the model does not see."""
    ids = group_ids([label.codes for name, label in rows.labels.items() if name != "source"])
    order = np.argsort(ids, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(ids[order])) + 1)


def _asker(rows: Measurements, first: int, predict: Predict) -> Callable[[Integers], Floats]:
    """A function from row indices to the prediction of those rows, NaN without a profile; the labels of all are those of row `first`."""
    labels = {name: column[first] for name, column in rows.labels.items()}
    gpu, kernel, format_id = (labels[name] for name in FAMILY)

    def ask(index: Integers) -> Floats:
        if rows.kind in COLUMNS:  # the profiles of other ops are looked for by their predictors
            _check_format(gpu, format_id)
            if not has_profile(gpu, kernel, format_id):
                return np.full((4, len(index)), np.nan)
        return predict(rows.kind, labels, {name: column[index] for name, column in rows.sizes.items()})

    return ask


def _named(rows: Measurements, group: Integers, ask: Callable[[Integers], Floats]) -> Floats:
    """`ask(group)`; an error of the user's is traced to the first row that causes it and raised with file and line."""
    try:
        return ask(group)
    except PerfModelError as error:
        row, cause = _first_failing(group, ask, error)
        problem = cause.problem if cause.file is None else f"{cause.file}: {cause.problem}"
        line = int(rows.lines[row])
        raise PerfModelError(problem, file=rows.file, line=line, field=cause.field, value=cause.value, mend=cause.mend) from error


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

    get_format(format_id).math_type(load_measured_gpu(gpu).math_types)
