"""FLOP and compulsory DRAM bytes of what is measured."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.formats import get_format

BF16 = 2.0


@dataclass(frozen=True)
class Work:
    """FLOP, and bytes that no kernel avoids: weights with scales, input and output once, in bf16."""

    flop: float
    bytes: float


def gemm_work(format_id: str, experts: int, n: int, k: int, tokens: int) -> Work:
    """Of a grouped GEMM over `tokens` in all, each with one expert, all experts active."""
    weights = experts * n * k * get_format(format_id).weights.bits / 8
    return Work(2.0 * tokens * n * k, weights + tokens * (n + k) * BF16)


def layer_work(format_id: str, active: float, topk: int, hidden: int, inter: int, tokens: int) -> Work:
    """Of a gated layer of which `active` experts hold tokens."""
    weights = active * 3 * hidden * inter * get_format(format_id).weights.bits / 8
    return Work(6.0 * tokens * topk * hidden * inter, weights + 2 * tokens * hidden * BF16)
