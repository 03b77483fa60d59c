"""Parts of the measured MoE layers that stress different mechanisms: few and many tokens per expert, parallelism, skew, ungated experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perfmodel.validation.measurements import Mask, Measurements
from perfmodel.validation.score import Comparison, score


def regime_masks(rows: Measurements) -> Iterator[tuple[str, Mask]]:
    """(name, [n] rows in it). Tokens per expert are those of the whole group, tokens x top-k / experts."""
    size = rows.sizes
    mean = size["num_tokens"] * size["topk"] / size["num_experts"]
    edges = (("under 1 token per expert", 0.0, 1.0), ("1 to 30", 1.0, 30.0), ("30 to 100", 30.0, 100.0), ("over 100", 100.0, float("inf")))
    for name, low, high in edges:
        yield name, (mean >= low) & (mean < high)
    yield "EP1, TP1", (size["ep"] == 1) & (size["tp"] == 1)
    yield "EP 2 to 16", (size["ep"] > 1) & (size["ep"] <= 16)
    yield "EP over 16", size["ep"] > 16
    yield "TP over 1", size["tp"] > 1
    yield "balanced", rows.labels["routing"].where("balanced")
    yield "skewed", ~rows.labels["routing"].where("balanced")
    yield "without a gate", rows.labels["gated"].where("false")


def score_by_regime(rows: Measurements, held: Comparison) -> list[dict[str, Any]]:
    """The score of each part; none for ops that are no MoE layers."""
    if rows.kind != "layer":
        return []
    return [{"name": name} | score(held, mask) for name, mask in regime_masks(rows)]
