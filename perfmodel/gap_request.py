"""What a gap is asked for, checked. The same object in Python, on the command line and over HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec
from perfmodel.validated import Changes, Strict
from perfmodel.workload.model import ModelSpec

MOST_ROWS = 1000
"""Token counts of one gap: each is explained in full."""
DEFAULT_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
MOST = 2**31 - 1
Tokens = Annotated[int, Field(ge=1, le=MOST)]


class GapRequest(Strict):
    """One MoE layer of a model on a GPU, at some token counts."""

    model: str | ModelSpec
    """Bundled id, `layer:hidden=..,inter=..,experts=..,topk=..`, path to a config.json, or a loaded model."""
    gpu: str | GpuSpec
    """Id of the catalogue, path to a YAML file, or a loaded GPU."""
    tokens: tuple[Tokens, ...] = Field(default=DEFAULT_TOKENS, min_length=1, max_length=MOST_ROWS)
    """Tokens that enter the layer over the whole expert-parallel group, a row each."""
    format: str | None = None
    """Format of weights and activations; default: the fastest that the GPU runs and the model's weights allow."""
    kernel: str = "auto"
    """Kernel profile; auto: for each row the fastest measured one."""
    routing: str | None = None
    """balanced, uniform, group-limited[:GROUPS/USED], powerlaw:ALPHA, zipf:S, active:N, counts:FILE; default: the model's own."""
    ep: int = Field(default=1, ge=1, le=MOST)
    """Expert-parallel ranks; figures are the busiest rank's."""
    tp: int = Field(default=1, ge=1, le=MOST)
    """Tensor-parallel ranks, which split the intermediate size."""
    launch: str = "graph"
    """eager, graph, pdl or persistent."""
    comm: str = "exclude"
    """exclude or include dispatch, combine and all-reduce."""
    clock: str = "burst"
    """burst (as benchmarks of 0.1 s run) or sustained (what long tensor work settles at)."""
    placement: str = "contiguous"
    """Experts on ranks: contiguous, round-robin or balanced."""
    redundant: int = 0
    """Replicas of the hottest experts over all ranks."""
    against: float | None = Field(default=None, gt=0, le=1e9)
    """Another peak to hold the layer against, TFLOPS."""
    changes: Changes = ()
    """What-ifs on the GPU, such as "memory.bandwidth_GBps=9600"."""

    @field_validator("tokens", mode="before")
    @classmethod
    def _counts(cls, value: Any) -> tuple[int, ...]:
        return token_counts(value)

    @field_validator("ep", "tp", mode="before")
    @classmethod
    def _ranks(cls, value: Any, info: ValidationInfo) -> int:
        if not _counts_something(value):
            raise PerfModelError(
                "must be a whole number from 1", field=info.field_name, value=value, mend="Give the number of ranks, such as 8."
            )
        return int(value)

    @field_validator("against", mode="before")
    @classmethod
    def _peak(cls, value: Any) -> Any:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e9):
            problem = "must be a positive number of TFLOPS up to a billion"
            raise PerfModelError(problem, field="against", value=value, mend="Give a peak such as 9000.")
        return value

    @field_validator("format", "kernel", "routing", "launch", "comm", "clock", "placement", mode="before")
    @classmethod
    def _word(cls, value: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        optional = cls.model_fields[name].default is None
        if not isinstance(value, str) and not (value is None and optional):
            raise PerfModelError("must be a word", field=name, value=value, mend="Give it as text, or leave it out.")
        return value

    @field_validator("changes", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


def token_counts(tokens: Any) -> tuple[int, ...]:
    """Token counts as whole numbers from 1, of a number, a sequence or an array. Raises PerfModelError."""
    if isinstance(tokens, str | bytes) or not isinstance(tokens, int | np.integer | Iterable):
        raise PerfModelError("must be whole numbers", field="tokens", value=tokens, mend="Give token counts such as [1, 64, 4096].")
    counts = [tokens] if isinstance(tokens, int | np.integer) else list(np.atleast_1d(tokens) if isinstance(tokens, np.ndarray) else tokens)
    if not counts:
        raise PerfModelError("no token count given", field="tokens", mend="Give at least one, such as 64.")
    if len(counts) > MOST_ROWS:
        raise PerfModelError(
            f"at most {MOST_ROWS} token counts a call", field="tokens", value=len(counts), mend="Use moe_latency for more."
        )
    for count in counts:
        if not _counts_something(count):
            raise PerfModelError("must be a whole number from 1", field="tokens", value=count, mend="Give token counts such as 1,64,4096.")
    return tuple(int(c) for c in counts)


def _counts_something(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | np.integer) and 1 <= int(value) <= MOST
