"""What a planner is asked: a model, GPUs, a load, limits. The same object in Python, on the command line and over HTTP."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from perfmodel.hardware import GpuSpec
from perfmodel.serving.anchors import MOST_ANCHORS, Anchor
from perfmodel.validated import Changes, Strict
from perfmodel.workload.model import ModelSpec

Mode = Literal["auto", "aggregated", "disaggregated"]
MOST_GPUS = 4096
"""GPUs of one kind in a search; a larger service is more instances of the same."""


class PlanRequest(Strict):
    """A question to the planner."""

    model: str | ModelSpec
    """Bundled id, path to a config.json, or a loaded model."""
    gpu: tuple[str | GpuSpec, ...] = Field(min_length=1, max_length=64, strict=False)
    """Ids of the catalogue, paths to YAML files, or loaded GPUs; each is planned for on its own."""
    gpus: int | None = Field(default=None, ge=1, le=MOST_GPUS)
    """GPUs of each kind at most; default: a node, or what the model's weights need."""
    isl: int = Field(default=1024, ge=1, le=2**24)
    """Mean tokens of a prompt."""
    osl: int = Field(default=1024, ge=1, le=2**24)
    """Mean tokens of an answer."""
    prefix_cache: float = Field(default=0.0, ge=0, lt=1)
    """Share of a prompt's tokens that are found in the prefix cache."""
    ttft_ms: float | None = Field(default=None, gt=0)
    """Most mean time to the first token."""
    tpot_ms: float | None = Field(default=None, gt=0)
    """Most mean time for each token after the first."""
    latency_ms: float | None = Field(default=None, gt=0)
    """Most mean time from a request to its last token."""
    rate: float | None = Field(default=None, gt=0, le=1e9)
    """Requests a second to be served; instances are multiplied until they do."""
    concurrency: int | None = Field(default=None, ge=1, le=10**7)
    """Requests at a time over all instances; default: the planner chooses."""
    power_kW: float | None = Field(default=None, gt=0)
    """Most power of the plan's servers, cooling included."""
    budget: float | None = Field(default=None, gt=0)
    """Most cost of an hour, in the currency of the prices."""
    format: tuple[str, ...] = Field(default=("auto",), min_length=1, strict=False)
    """Formats of the weights to try; auto: the fastest that the GPU runs and the model's weights allow."""
    kv_format: str | None = None
    """Format of the keys and values in the cache; default: fp8 beside FP8 and FP4 units, else bf16."""
    backend: Literal["trtllm", "sglang", "vllm"] | None = None
    """Engine that serves; default: what all of them have in common."""
    mode: Mode = "auto"
    """aggregated: the same GPUs run prompts and decode; disaggregated: prompts on instances of their own; auto: both are searched."""
    micro_batches: Literal[1, 2] = 1
    """2: two halves of each batch take turns, so that one communicates while the other computes."""
    changes: Changes = ()
    """What-ifs on every GPU, such as "memory.bandwidth_GBps=9600"."""
    anchors: tuple[Anchor, ...] = Field(default=(), max_length=MOST_ANCHORS, strict=False)
    """The user's own measurements of services, which pull the predictions."""
    prices: str | None = None
    """A YAML file of prices and power in place of the bundled one."""
    top: int = Field(default=3, ge=1, le=100)
    """Plans for each GPU and mode."""

    @field_validator("gpu", "format", "changes", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str | GpuSpec) else value

    @model_validator(mode="after")
    def _one_load(self) -> PlanRequest:
        if self.rate is not None and self.concurrency is not None:
            facts = {"field": "concurrency", "value": self.concurrency, "mend": "Give one of them: each follows from the other."}
            raise PydanticCustomError("two_loads", "rate and concurrency exclude each other", facts)
        return self

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by field name."""
        names = ("ttft_ms", "tpot_ms", "latency_ms", "power_kW", "budget")
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}
