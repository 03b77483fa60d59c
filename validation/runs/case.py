"""What a prediction needs to know of a run, or of a point that is still to be measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One grouped GEMM (n, k, tokens_per_expert) or one layer (topk, hidden, inter). What does not apply is None."""

    gpu: str | None
    kind: str
    profile: str | None
    tile: int | None
    """Tokens of the tile that runs, where it is known."""
    format: str
    experts: int
    tokens: int
    """That enter: of a layer before top-k, of a grouped GEMM over all experts."""
    n: int = 0
    k: int = 0
    tokens_per_expert: int = 0
    topk: int = 0
    hidden: int = 0
    inter: int = 0
    routing: str = "balanced"
    hold_s: float | None = None
