"""Points as services: copies for the rate that is asked for, what they cost and draw, and which limits they keep."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from perfmodel.planning.candidates import Table
from perfmodel.planning.points import Points, Requests
from perfmodel.planning.power import watts
from perfmodel.planning.prices import Prices
from perfmodel.planning.request import PlanRequest
from perfmodel.planning.types import Flags
from perfmodel.serving.engine import Engine
from perfmodel.workload.expectation import Array

WORDS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "latency_ms": "latency", "power_kW": "power", "budget": "cost", "gpus": "GPUs"}
UNITS = {"ttft_ms": " ms", "tpot_ms": " ms", "latency_ms": " ms", "power_kW": " kW", "budget": " an hour", "gpus": ""}


@dataclass(frozen=True)
class Setting:
    """What stays the same in a search."""

    request: PlanRequest
    requests: Requests
    engine: Engine
    prices: Prices


@dataclass(frozen=True)
class Services:
    """Vectors over points; figures of all copies together."""

    points: Points
    copies: Array
    gpus: Array
    served: Array
    """Requests a second."""
    watts: Array
    power_kW: Array
    budget: Array
    """Cost of an hour; NaN without a price."""

    @property
    def ttft_ms(self) -> Array:
        """Mean time to the first token."""
        return self.points.ttft * 1e3

    @property
    def tpot_ms(self) -> Array:
        """Mean time for each token after the first."""
        return self.points.tpot * 1e3

    @property
    def latency_ms(self) -> Array:
        """Mean time to the last token."""
        return self.points.latency * 1e3

    @property
    def per_gpu(self) -> Array:
        """Answered tokens a second and GPU."""
        return self.served * self.points.output / self.gpus

    def take(self, rows: Any) -> Services:
        """The services `rows`."""
        return Services(self.points.take(rows), *(getattr(self, f.name)[rows] for f in fields(self)[1:]))

    def __len__(self) -> int:
        return len(self.points)


def services(table: Table, points: Points, setting: Setting) -> Services:
    """The points multiplied until they serve the rate, if one is asked for."""
    rate, power = setting.request.rate, setting.prices.power
    copies = np.ones(len(points)) if rate is None else np.ceil(rate / points.requests_per_s)
    gpus = copies * points.gpus
    served = points.requests_per_s if rate is None else np.full(len(points), rate)
    each = watts(table, points, setting.requests, setting.engine, power)
    idle = power.idle.value * np.array([d.gpu.tdp for d in table.deployments])[points.decode]
    each = idle + (each - idle) * served / (copies * points.requests_per_s)  # copies that a rate does not fill are idle between
    total = gpus * (each + power.server_W_per_gpu.value) * power.pue.value / 1e3
    price = {id_: setting.prices.of(id_) for id_ in {d.gpu.id for d in table.deployments}}
    hour = np.array([np.nan if (p := price[d.gpu.id]) is None else p for d in table.deployments])[points.decode]
    return Services(points, copies, gpus, served, each, total, gpus * hour)


def over(found: Services, limits: dict[str, float]) -> dict[str, Flags]:
    """For each limit, which services break it; what has no price breaks a budget."""
    return {name: ~(getattr(found, name) <= limit) for name, limit in limits.items()}
