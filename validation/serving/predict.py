"""The model's answer to measured services: all of them at once, with any engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perfmodel.hardware import GpuSpec, load_gpu
from perfmodel.serving.engine import OF_BACKENDS, Engine
from perfmodel.serving.formats import Formats, formats_of
from perfmodel.serving.memory import most_sequences
from perfmodel.serving.parallel import Parallel
from perfmodel.serving.steady import Load, Side, aggregated, disaggregated
from perfmodel.serving.step import Rates, rates_of, stack_rates
from perfmodel.serving.work import Work, stack, work_of
from perfmodel.validation.measurements import Floats, Integers
from perfmodel.validation.serving.rows import Service
from perfmodel.workload import load_model
from perfmodel.workload.model import ModelSpec

MEAN_LENGTH = 0.9
"""Prompts and answers are uniform in 0.8 to 1.0 of the length that is said."""
FORMATS = {"bf16": "bf16", "fp8": "fp8-block", "int4": "int4-w4a16", "fp4": "nvfp4"}
"""What a precision is, where model and GPU do not say otherwise."""
SMALL, USUAL_DECODERS = 8, 4
"""Instances up to this size, of which rows that say it have mostly four; larger ones decode alone."""
WITHOUT_FP4 = "mxfp4-w4a16"
GPT_OSS = "mxfp4-w4a8"


@dataclass(frozen=True, eq=False)
class Services:
    """n measured services, ready to be predicted again and again with other engines."""

    rows: tuple[Service, ...]
    decoding: Side
    prefill: Side
    load: Load
    separate: NDArray[np.bool_]
    """Whether prompts have instances of their own."""
    ttft: Floats
    tpot: Floats

    @classmethod
    def of(cls, rows: Sequence[Service]) -> Services:
        """The services of `rows`. Raises PerfModelError for models, GPUs and formats that do not exist."""
        load = Load(
            clients=np.array([row.clients for row in rows], float),
            prompt=MEAN_LENGTH * np.array([row.prompt for row in rows], float),
            cached=np.zeros(len(rows)),
            output=MEAN_LENGTH * np.array([row.output for row in rows], float),
        )
        rates = stack_rates([_rates(row.gpu, *_formats(row)[:2]) for row in rows])
        capacity = np.array([_gpu(row.gpu).dram_capacity for row in rows])

        def side(works: list[Work], instances: list[int]) -> Side:
            work = stack(works)
            most = np.maximum(most_sequences(work, capacity, load.prompt + load.output / 2), 1.0)
            return Side(work, rates, np.array(instances, float), most)

        return cls(
            tuple(rows),
            side([_work(row.model, row.decode, _formats(row)) for row in rows], [_decoders(row) for row in rows]),
            side([_work(row.model, row.prefill or row.decode, _formats(row)) for row in rows], [row.prefillers or 1 for row in rows]),
            load,
            np.array([row.mode == "disaggregated" for row in rows], bool),
            np.array([row.ttft for row in rows]),
            np.array([row.tpot for row in rows]),
        )

    def take(self, index: Integers) -> Services:
        """The services at `index`."""
        return Services.of([self.rows[int(i)] for i in index])

    def predict(self, engine: Engine, backends: Mapping[str, Mapping[str, float]]) -> tuple[Floats, Floats]:
        """(TTFT, TPOT) [n] seconds, by the engine and what its backends have of their own alone."""
        out = np.empty((2, len(self.rows)))
        for index, apart in self._parts:
            mine = _engine_of([self.rows[i].backend for i in index], engine, backends)
            load = Load(*(getattr(self.load, field.name)[index] for field in fields(Load)))
            decoding, prefill = _side_of(self.decoding, index), _side_of(self.prefill, index)
            if apart:
                steady = disaggregated(prefill, decoding, mine, load)
            else:
                steady = aggregated(decoding.work, decoding.rates, mine, load, decoding.most)
            out[:, index] = steady.ttft, steady.tpot
        return out[0], out[1]

    @property
    def _parts(self) -> list[tuple[Integers, bool]]:
        found = ((np.flatnonzero(self.separate == apart), apart) for apart in (False, True))
        return [(index, apart) for index, apart in found if len(index)]


def _decoders(row: Service) -> int:
    """Instances that decode; where a row does not say it, what the others of its size have, but no more than there are requests."""
    usual = USUAL_DECODERS if row.mode == "disaggregated" and row.decode.gpus <= SMALL else 1
    return row.decoders or min(usual, row.clients)


def _side_of(side: Side, index: Integers) -> Side:
    return Side(side.work.take(index), side.rates.take(index), side.instances[index], side.most[index])


def _engine_of(names: Sequence[str], engine: Engine, backends: Mapping[str, Mapping[str, float]]) -> Engine:
    """An engine whose OF_BACKENDS are vectors over rows."""
    own = {name: np.array([backends.get(backend, {}).get(name, getattr(engine, name)) for backend in names]) for name in OF_BACKENDS}
    return replace(engine, **own)  # type: ignore[arg-type]


def format_of(row: Service) -> str:
    """FORMAT of a row's experts (or linear layers)."""
    if row.precision != "fp4":
        return FORMATS[row.precision]
    if "fp4" not in _gpu(row.gpu).math_types:
        return WITHOUT_FP4
    return GPT_OSS if row.model.startswith("gpt-oss") else FORMATS["fp4"]


def _formats(row: Service) -> Formats:
    return formats_of(_model(row.model), format_of(row))


@lru_cache(maxsize=64)
def _model(name: str) -> ModelSpec:
    return load_model(name)


@lru_cache(maxsize=64)
def _gpu(name: str) -> GpuSpec:
    return load_gpu(name)


@lru_cache(maxsize=4096)
def _work(model: str, parallel: Parallel, formats: Formats) -> Work:
    return work_of(_model(model), parallel, formats.experts, dense=formats.dense, cache=formats.cache)


@lru_cache(maxsize=256)
def _rates(gpu: str, experts: str, dense: str) -> Rates:
    return rates_of(_gpu(gpu), experts, dense)
