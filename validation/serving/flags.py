"""Which measured services cannot be what they say.

No rule looks at a prediction, but some were found by looking at residuals: see docs/serving.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perfmodel.validation.serving.rows import Service

R1 = "deepseek-r1"
FEW = 8
"""Requests at a time up to which it matters little how many instances decode."""
LARGEST = 8
"""Ranks of an aggregated instance of GB200."""
MTP_FROM = "2026-01-14"
TWICE = 1.35
"""Times that measurements of the same differ at most: 16 % at the 90th percentile."""
HIDDEN_LIMIT = 512
"""Requests at a time of gpt-oss of which most wait, TTFT 20 to 460 s: the engine had a lower limit."""

RULES: tuple[tuple[str, Callable[[Service], bool]], ...] = (
    ("workers-unknown", lambda s: s.model == R1 and s.mode == "disaggregated" and s.decoders is None and s.clients > FEW),
    ("not-aggregated", lambda s: s.mode == "aggregated" and s.gpu.startswith("gb") and s.decode.gpus > LARGEST),
    ("other-benchmark", lambda s: s.origin == "gap" and (s.model == R1 or (s.model, s.backend) == ("llama-3.1-8b", "vllm"))),
    ("early-blackwell", lambda s: s.model == "qwen3-32b" and s.gpu in ("b200", "gb200") and s.mode == "aggregated" and s.clients > 1),
    ("unlabelled-mtp", lambda s: s.model == R1 and s.backend == "trtllm" and s.origin == "dated" and s.measured >= MTP_FROM),
    ("hidden-limit", lambda s: s.model == "gpt-oss-120b" and s.backend == "vllm" and s.clients >= HIDDEN_LIMIT),
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
