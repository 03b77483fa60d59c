"""The deployments that a search compares: every way that engines share a model among GPUs, as vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from perfmodel.hardware import GpuSpec
from perfmodel.ops.collective import fabric
from perfmodel.planning.formats import dense_format
from perfmodel.serving.memory import most_sequences
from perfmodel.serving.parallel import Parallel, allowed
from perfmodel.serving.step import Rates, rates_of, stack_rates
from perfmodel.serving.work import Work, stack, work_of
from perfmodel.workload.expectation import Array
from perfmodel.workload.model import ModelSpec

MOST_STAGES = 16


@dataclass(frozen=True)
class Deployment:
    """One instance: GPUs of one kind that share a model in one way."""

    gpu: GpuSpec
    format: str
    dense: str
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
    kind: Array
    """Number of the (GPU, format) that a deployment belongs to; only those of one kind work together."""

    def take(self, rows: Any) -> Table:
        """The deployments `rows`."""
        picked = tuple(self.deployments[i] for i in np.arange(len(self.deployments))[rows].tolist())
        columns = (self.capacity[rows], self.gpus[rows], self.most[rows], self.kind[rows])
        return Table(picked, self.work.take(rows), take_rates(self.rates, rows), *columns)


def take_rates(rates: Rates, rows: Any) -> Rates:
    """The rates of the deployments `rows`."""
    return Rates(**{f.name: getattr(rates, f.name)[rows] for f in fields(Rates)})


def parallels(model: ModelSpec, gpu: GpuSpec, most: int) -> Iterator[Parallel]:
    """Ways to share the model among up to `most` GPUs that engines run: powers of two.

    Tensor parallelism stays within the node or NVLink domain; pipeline stages, and attention ranks that share experts, go beyond it.
    Experts are kept whole on the ranks (ep = tp x dp) or split over all of them (ep = 1), as vLLM and SGLang do.
    """
    domain = max(fabric(gpu).domain, gpu.gpus_per_node)
    for tp in _powers(min(most, domain)):
        for dp in _powers(most // tp if model.moe else 1):
            for pp in _powers(min(most // (tp * dp), MOST_STAGES)):
                for ep in _expert_ranks(tp * dp, dp) if model.moe else [1]:
                    parallel = Parallel(tp, pp, dp, ep)
                    if allowed(parallel, model):
                        yield parallel


def _expert_ranks(ranks: int, dp: int) -> list[int]:
    """Of equals the first is shown: whole experts where attention ranks share them, else split ones."""
    return list(dict.fromkeys([ranks, 1] if dp > 1 else [1, ranks]))


def _powers(most: int) -> list[int]:
    return [2**i for i in range(max(most, 0).bit_length())]


def build(model: ModelSpec, kinds: list[tuple[GpuSpec, str, int]], cache: str, context: float) -> Table:
    """All deployments of (GPU, format, most GPUs). cache: format of keys and values; context: tokens that each sequence may reach."""
    found: list[Deployment] = []
    works, rates, kind = [], [], []
    made: dict[tuple[Parallel, str, str], Work] = {}
    for number, (gpu, form, most) in enumerate(kinds):
        dense = dense_format(form, model, gpu)
        rate = rates_of(gpu, form, dense)
        for parallel in parallels(model, gpu, most):
            key = (parallel, form, dense)
            if key not in made:
                made[key] = work_of(model, parallel, form, dense=dense, cache=cache)
            found.append(Deployment(gpu, form, dense, parallel))
            works.append(made[key])
            rates.append(rate)
            kind.append(number)
    work = stack(works)
    capacity = np.array([d.gpu.dram_capacity for d in found])
    gpus = np.array([float(d.parallel.gpus) for d in found])
    held = most_sequences(work, capacity, np.full(len(found), context))
    return Table(tuple(found), work, stack_rates(rates), capacity, gpus, held, np.array(kind))
