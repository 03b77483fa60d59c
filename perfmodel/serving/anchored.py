"""A user's measurements held against the model's own predictions of them: what `predict`, `plan` and `simulate` are pulled by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec, load_gpu
from perfmodel.serving.anchoring import FIGURES, Anchoring, Flags, Posterior, Pull, load_of, posteriors
from perfmodel.serving.anchors import Anchor
from perfmodel.serving.deployment import formats_on, rates_on, serving_format, words_of
from perfmodel.serving.engine import load_calibration
from perfmodel.serving.formats import precision_of
from perfmodel.serving.memory import most_sequences
from perfmodel.serving.parallel import Parallel
from perfmodel.serving.steady import Load, Side, aggregated, disaggregated
from perfmodel.serving.work import work_of
from perfmodel.workload import load_model
from perfmodel.workload.expectation import Array
from perfmodel.workload.model import ModelSpec

MOST_NAMED = 4
"""Measurements far from their predictions that notes name one by one."""


@dataclass(frozen=True)
class Configuration:
    """What one service has and another has not, but for the load: `decoders` and `prefillers` are 0 of aggregated ones."""

    precision: str
    decode: Parallel
    prefill: Parallel | None = None
    decoders: int = 0
    prefillers: int = 0


@dataclass(frozen=True)
class Anchored:
    """A user's measurements of one model on one GPU; `configurations` of each, and what they say of each figure."""

    configurations: tuple[Configuration, ...]
    of: dict[str, Posterior]
    notes: tuple[str, ...] = ()

    def same(self, configuration: Configuration) -> Flags:
        """[1, m] which are of this configuration."""
        return np.array([[one == configuration for one in self.configurations]], dtype=bool)

    def pulls(self, configuration: Configuration, *load: float) -> tuple[dict[str, Pull], Anchoring]:
        """What becomes of one prediction, by figure. load: as in `load_of`."""
        same = self.same(configuration)
        found = {figure: self.of[figure].at(same, load_of(*load)) for figure in FIGURES}
        return found, self.told(int(same.sum()), *(float(found[figure].factor[0]) for figure in FIGURES))

    def told(self, own: int, ttft: float, tpot: float) -> Anchoring:
        """The pull on a prediction of whose configuration `own` measurements are."""
        return Anchoring(own=own, similar=len(self.configurations) - own, ttft=ttft, tpot=tpot)


def anchored_of(anchors: Sequence[Anchor], model: ModelSpec, gpu: GpuSpec, backend: str | None) -> Anchored | None:
    """The anchors of `model` on `gpu` (as its file says it, without what-ifs) by `backend`; None where there are none.

    Raises PerfModelError for models, GPUs and formats that do not exist, ranks that do not divide, and weights that do not fit.
    """
    mine = [one for one in anchors if _is_of(one, model, gpu, backend)]
    if not mine:
        return None
    found = [_held(one, model, gpu, backend) for one in mine]
    configurations = tuple(configuration for configuration, _ in found)
    measured = np.array([[_seconds(one.ttft_ms), _seconds(one.tpot_ms)] for one in mine]).T
    load = np.concatenate([load_of(one.clients, one.isl + one.osl / 2, one.isl) for one in mine])
    same = np.array([[a == b for b in configurations] for a in configurations], dtype=bool)
    of = posteriors(measured, np.array([times for _, times in found]).T, load, same)
    return Anchored(configurations, of, _notes(mine, of))


def _seconds(ms: float | None) -> float:
    return float("nan") if ms is None else ms / 1e3


def _notes(mine: Sequence[Anchor], of: dict[str, Posterior]) -> tuple[str, ...]:
    """A sentence for each of the first measurements that are far from their predictions, and one for the rest."""
    found = [
        f"{one.place}: {figure.upper()} is {np.exp(of[figure].residual[at]):.2g} times the predicted one: is it the same service?"
        for figure in FIGURES
        for at, one in enumerate(mine)
        if of[figure].wild[at]
    ]
    more = len(found) - MOST_NAMED
    return (*found[:MOST_NAMED], *([f"{more} more measured figures are as far from the predicted ones"] if more > 0 else []))


def left_out(anchors: Sequence[Anchor], used: Sequence[Anchored | None]) -> list[str]:
    """A note on anchors that pull nothing."""
    count = len(anchors) - sum(len(one.configurations) for one in used if one is not None)
    return [f"{count} of your {len(anchors)} measurements are of other models, GPUs or backends: they pull nothing"] if count > 0 else []


def _is_of(one: Anchor, model: ModelSpec, gpu: GpuSpec, backend: str | None) -> bool:
    if backend and one.backend and one.backend != backend:
        return False
    with _at(one):
        return (one.model == model.id or load_model(one.model).id == model.id) and (one.gpu == gpu.id or load_gpu(one.gpu).id == gpu.id)


def _held(one: Anchor, model: ModelSpec, gpu: GpuSpec, backend: str | None) -> tuple[Configuration, tuple[float, float]]:
    """The configuration of an anchor, and its TTFT and TPOT as `plan` predicts them."""
    with _at(one):
        form = one.format or serving_format(model.format, gpu)
        times = predicted(one, model, gpu, form, backend)
        apart = (one.prefill, one.instances, one.prefill_instances) if one.prefill else ()
        return Configuration(precision_of(form), one.decode, *apart), times


def predicted(one: Anchor, model: ModelSpec, gpu: GpuSpec, form: str, backend: str | None) -> tuple[float, float]:
    """Seconds of TTFT and TPOT in the steady state. Raises PerfModelError where the weights do not fit."""
    calibration = load_calibration()
    engine = calibration.engine_of(backend)
    load = Load(*(np.array([float(value)]) for value in (one.clients, one.isl, 0.0, one.osl)))
    decoding = _side(one, model, gpu, form, one.decode, one.instances)
    split = lanes(decoding.work.pp, load.clients / (decoding.instances if one.prefill else 1.0))
    if one.prefill is None:
        load = replace(load, clients=load.clients / split)
        steady = aggregated(decoding.work, decoding.rates, engine, load, decoding.most / split)
    else:
        first = _side(one, model, gpu, form, one.prefill, one.prefill_instances)
        first = replace(first, instances=first.instances * first.work.pp)
        second = replace(decoding, instances=decoding.instances * split, most=decoding.most / split)
        steady = disaggregated(first, second, engine, load)
    words = words_of(model, gpu, form, mode=one.mode, backend=backend)
    ttft, tpot = (calibration.factor(figure, words) for figure in FIGURES)
    return float(ttft * steady.ttft[0]), float(tpot * steady.tpot[0])


def lanes(pp: Array, batch: Array) -> Array:
    """Micro-batches that follow each other through a pipeline: each takes the time of all stages, and they share the requests."""
    return np.minimum(pp, np.maximum(batch, 1.0))


def _side(one: Anchor, model: ModelSpec, gpu: GpuSpec, form: str, parallel: Parallel, count: int) -> Side:
    parallel.check(model)
    formats = formats_on(model, gpu, form)
    work = work_of(model, parallel, formats.experts, dense=formats.dense, cache=formats.cache)
    rates = rates_on(gpu, formats, alone=parallel.gpus == 1 and one.prefill is None)
    most = most_sequences(work, np.array([gpu.dram_capacity]), np.array([float(one.isl + one.osl)]))
    if most[0] < 1:
        problem = f"{model.id} in {form} does not fit {parallel.gpus} x {gpu.id}"
        raise PerfModelError(problem, field="tp", value=one.tp, mend="Give the tp, pp, dp and format that were measured.")
    return Side(work, rates, np.array([float(count)]), most)


@contextmanager
def _at(one: Anchor) -> Iterator[None]:
    """Adds the file and the line of an anchor to a PerfModelError."""
    try:
        yield
    except PerfModelError as error:
        problem = error.problem if error.file is None else f"{error.file}: {error.problem}"
        raise PerfModelError(problem, file=one.file, line=one.line, field=error.field, value=error.value, mend=error.mend) from error
