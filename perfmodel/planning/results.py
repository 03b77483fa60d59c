"""What a planner answers: typed, the same in Python, as `--json` and over HTTP. Units stand in the names of the fields."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfmodel.serving.anchoring import Anchoring
from perfmodel.validated import Strict

Range = tuple[float, float]


class Interval(Strict):
    """80 % intervals of the figures."""

    ttft_ms: Range
    tpot_ms: Range
    tokens_per_s_per_gpu: Range
    status: str
    """fitted: from errors on measured services; estimated: from experience."""


class Memory(Strict):
    """What lies in the memory of one GPU."""

    weights: float
    cache: float
    """Keys, values and states of the sequences that run at a time."""
    workspace: float
    free: float
    """Of what engines take."""
    capacity: float


class Side(Strict):
    """The instances of a disaggregated service that run prompts, or those that decode."""

    tp: int
    pp: int
    ep: int
    dp: int
    instances: int
    gpus: int
    """Of all of them."""


class Help(Strict):
    """What one change of the hardware would bring to a plan, its batch chosen anew within the limits."""

    change: str
    gain: float
    """Tokens a second and GPU that it would bring, as a share of those of the plan."""


class Plan(Strict):
    """One way to serve the load."""

    gpu: str
    mode: Literal["aggregated", "disaggregated"]
    format: str
    dense_format: str
    """Of attention and dense layers."""
    kv_format: str
    tp: int
    pp: int
    ep: int
    dp: int
    """Ranks of attention, each of `tp` GPUs, that share the experts. Of a disaggregated plan these four are the decoding side's."""
    batch: int
    """Requests at a time of one instance (that decodes)."""
    concurrency: int
    """Requests at a time of all instances, those in prefill and on their way included."""
    instances: int
    """Instances of an aggregated plan; of a disaggregated one, copies of its prefill and decode sides together."""
    gpus: int
    """Of all instances."""
    prefill: Side | None = None
    decode: Side | None = None
    ttft_ms: float
    tpot_ms: float
    latency_ms: float
    tokens_per_s_per_gpu: float
    """Answered tokens."""
    tokens_per_s_per_user: float
    requests_per_s: float
    """Served; of a plan for a rate, that rate."""
    most_requests_per_s: float
    """What the plan's instances could serve."""
    memory_GB_per_gpu: float
    memory_GB: Memory
    cost_per_million_tokens: float | None
    """Answered tokens; absent where the GPU has no price."""
    cost_per_hour: float | None
    watts_per_gpu: float
    """An estimate: idle power and what memory and tensor units take by how busy they are."""
    power_kW: float
    """Of the servers, cooling included."""
    interval: Interval
    anchored: Anchoring | None = None
    """What the user's own measurements made of it."""
    step: dict[str, float]
    """Shares of the time of a decode step by kind of work."""
    binds: tuple[str, ...] = ()
    """Limits or resources that keep this deployment from serving more, the nearest first."""
    helps: tuple[Help, ...] = ()
    """What would bring more, the most first; only for `plans`."""


class LimitEffect(Strict):
    """What one limit costs: the best plan without it."""

    limit: str
    value: float
    without: float
    """Best tokens a second and GPU without the limit."""
    gain: float
    """Over the best plan with it, as a share."""


class PlanResult(Strict):
    """The answer of `plan`."""

    schema_: Literal["perfmodel.plan/1"] = Field(default="perfmodel.plan/1", alias="schema")
    model: str
    weights: str
    """Their Hugging Face repository, or the model's id where that is not known."""
    isl: int
    osl: int
    changes: tuple[str, ...]
    """What-ifs on every GPU."""
    currency: str
    searched: int
    """Configurations (deployment, batch) whose steady state was computed."""
    plans: tuple[Plan, ...]
    """Best first; the best few of each GPU and mode."""
    pareto: tuple[Plan, ...]
    """Of each GPU, what nothing else of it beats both in tokens a second and GPU and for a user; limits not applied."""
    limits: tuple[LimitEffect, ...]
    """Limits that cost something, the dearest first."""
    notes: tuple[str, ...]
