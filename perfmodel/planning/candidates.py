"""The deployments that a search compares: every way that engines share a model among GPUs, as vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel.hardware import GpuSpec
from perfmodel.planning.pulls import Pulls, pulls_of
from perfmodel.planning.types import Rows
from perfmodel.serving.anchored import Anchored
from perfmodel.serving.deployment import rates_on, words_of
from perfmodel.serving.engine import Calibration
from perfmodel.serving.formats import Formats
from perfmodel.serving.links import domain_of, linked
from perfmodel.serving.memory import most_sequences
from perfmodel.serving.parallel import Parallel, allowed
from perfmodel.serving.step import Rates, stack_rates
from perfmodel.serving.work import Work, stack, work_of
from perfmodel.workload.expectation import Array
from perfmodel.workload.model import ModelSpec

MOST_STAGES = 16


@dataclass(frozen=True)
class Deployment:
    """One instance: GPUs of one kind that share a model in one way."""

    gpu: GpuSpec
    formats: Formats
    parallel: Parallel


@dataclass(frozen=True)
class Table:
    """Deployments with what they have to do and can do, a vector each."""

    deployments: tuple[Deployment, ...]
    work: Work
    rates: Rates
    capacity: Array
    """Bytes of a GPU."""
    gpus: Array
    most: Array
    """Sequences that an instance holds at a time."""
    kind: Rows
    """Number of the (GPU, format) that a deployment belongs to; only those of one kind work together."""
    factors: Array
    """[n, 4] What the calibration multiplies TTFT and TPOT of such services by, aggregated ones and then disaggregated ones."""
    pulls: Pulls | None = None
    """What a user's own measurements make of the whole table's points; a part of a table has none."""

    def take(self, rows: Any) -> Table:
        """The deployments `rows`."""
        picked = tuple(self.deployments[i] for i in np.arange(len(self.deployments))[rows].tolist())
        columns = (self.capacity[rows], self.gpus[rows], self.most[rows], self.kind[rows], self.factors[rows])
        return Table(picked, self.work.take(rows), self.rates.take(rows), *columns)


def parallels(model: ModelSpec, gpu: GpuSpec, most: int) -> Iterator[Parallel]:
    """Ways to share the model among up to `most` GPUs that engines run: powers of two.

    Tensor parallelism stays within the node or NVLink domain. Attention ranks that share experts go beyond it, and so do pipeline stages,
    which are tried where a stage takes as much of the domain as the model lets it.
    Experts are kept whole on the ranks (ep = tp x dp) or split over all of them (ep = 1), as vLLM and SGLang do.
    """
    domain, most = domain_of(gpu), most if linked(gpu) else 1
    stages = []
    for tp in _powers(min(most, domain)):
        for dp in _powers(most // tp if model.moe else 1):
            ways = (Parallel(tp, 1, dp, ep) for ep in (_expert_ranks(tp * dp, dp) if model.moe else [1]))
            stages += [way for way in ways if allowed(way, model)]
    full = max((way.ranks for way in stages if way.ranks <= domain), default=1)
    for stage in stages:
        for pp in _powers(min(most // stage.ranks, MOST_STAGES)):
            way = replace(stage, pp=pp)
            if pp == 1 or (stage.ranks >= full and allowed(way, model)):
                yield way


def _expert_ranks(ranks: int, dp: int) -> list[int]:
    """Of equals the first is shown: whole experts where attention ranks share them, else split ones."""
    return list(dict.fromkeys([ranks, 1] if dp > 1 else [1, ranks]))


def _powers(most: int) -> list[int]:
    return [2**i for i in range(max(most, 0).bit_length())]


def build(
    model: ModelSpec,
    kinds: list[tuple[GpuSpec, Formats, int]],
    context: float,
    factors: list[list[float]],
    anchored: Sequence[Anchored | None] = (),
    micro_batches: int = 1,
) -> Table:
    """All deployments of (GPU, formats, most GPUs). context: tokens that each sequence may reach; factors, anchored: of each kind."""
    found: list[Deployment] = []
    works, rates, kind = [], [], []
    made: dict[tuple[Parallel, Formats], Work] = {}
    for number, (gpu, forms, most) in enumerate(kinds):
        rate = rates_on(gpu, forms, alone=not linked(gpu))  # such a GPU is offered alone only
        for parallel in parallels(model, gpu, most):
            key = (parallel, forms)
            if key not in made:
                made[key] = work_of(model, parallel, forms.experts, dense=forms.dense, cache=forms.cache, micro_batches=micro_batches)
            found.append(Deployment(gpu, forms, parallel))
            works.append(made[key])
            rates.append(rate)
            kind.append(number)
    work, numbers = stack(works), np.array(kind)
    capacity = np.array([d.gpu.dram_capacity for d in found])
    gpus = np.array([float(d.parallel.gpus) for d in found])
    held = most_sequences(work, capacity, np.full(len(found), context))
    pulls = pulls_of(anchored, numbers, [d.formats for d in found], [d.parallel for d in found])
    return Table(tuple(found), work, stack_rates(rates), capacity, gpus, held, numbers, np.array(factors)[numbers], pulls)


def factors_of(calibration: Calibration, model: ModelSpec, gpu: GpuSpec, form: str, backend: str | None) -> list[float]:
    """A row of `Table.factors`: what measured services of the same words differ by."""
    kinds = (words_of(model, gpu, form, mode=mode, backend=backend) for mode in ("aggregated", "disaggregated"))
    return [calibration.factor(figure, words) for words in kinds for figure in ("ttft", "tpot")]
