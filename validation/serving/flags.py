"""Which measured services cannot be what they say.

No rule looks at a prediction, but some were found by looking at residuals: see docs/serving.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfmodel.validation.serving.rows import Service

FEW = 8
"""Requests at a time up to which the number of instances that decode is left to chance: as many as leave 80 % of the rows to be scored."""
LARGEST = 8
"""Ranks of an aggregated instance of GB200."""
MTP_FROM = "2026-01-14"
TWICE = 1.35
"""Times that measurements of the same differ at most: 16 % at the 90th percentile."""

RULES: tuple[tuple[str, Callable[[Service], bool]], ...] = (
    ("workers-unknown", lambda s: s.mode == "disaggregated" and s.decoders is None and s.clients > FEW),
    ("not-aggregated", lambda s: s.mode == "aggregated" and s.gpu.startswith("gb") and s.decode.gpus > LARGEST),
    ("other-benchmark", lambda s: s.model == "deepseek-r1" and s.origin == "gap"),
    (
        "unlabelled-mtp",
        lambda s: (
            s.model == "deepseek-r1" and s.backend == "trtllm" and s.origin == "dated" and s.mode == "aggregated" and s.measured >= MTP_FROM
        ),
    ),
)


def flag_services(services: Sequence[Service]) -> list[str]:
    """The flag of each row, "" for none; names.yaml says why."""
    flags = [next((name for name, holds in RULES if holds(service)), "") for service in services]
    slowest: dict[Any, float] = {}
    for service, flag in zip(services, flags, strict=True):
        if not flag:
            key = _load(service)
            slowest[key] = max(slowest.get(key, 0.0), service.tpot)
    return [
        "faster-twin" if not flag and service.origin != "dump" and service.tpot * TWICE < slowest[_load(service)] else flag
        for service, flag in zip(services, flags, strict=True)
    ]


def _load(service: Service) -> tuple[Any, ...]:
    return (*service.configuration, service.prompt, service.output, service.clients)
