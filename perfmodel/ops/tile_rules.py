"""How libraries choose the rows of a tile from the tokens per expert, where they do not simply take the fastest."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfmodel.workload.expectation import Array

Rule = Callable[[Array, Array, Array, tuple[int, ...]], Array]
"""(pairs of all ranks, experts of one rank, tokens, menu) -> rows of the tile."""


def half_of_mean(pairs: Array, local_experts: Array, tokens: Array, menu: tuple[int, ...]) -> Array:
    """trtllm-gen, untuned: half the next power of two above the mean tokens per local expert.

    The mean is over the pairs of the whole expert-parallel group, so EP inflates the tile.
    """
    mean = np.maximum(pairs / local_experts, 1.0)
    return _clamp(2.0 ** np.ceil(np.log2(mean) - 1e-12) / 2.0, menu)


def mean(pairs: Array, local_experts: Array, tokens: Array, menu: tuple[int, ...]) -> Array:
    """The next power of two above the mean tokens per local expert, of the pairs of the whole expert-parallel group."""
    return _clamp(2.0 ** np.ceil(np.log2(np.maximum(pairs / local_experts, 1.0)) - 1e-12), menu)


def marlin(pairs: Array, local_experts: Array, tokens: Array, menu: tuple[int, ...]) -> Array:
    """Marlin MoE (vLLM): the smallest block b with tokens per expert / b < 0.9."""
    mean = pairs / local_experts
    choice = np.full_like(mean, float(menu[-1]))
    for rows in reversed(menu):
        choice = np.where(mean / rows < 0.9, float(rows), choice)
    return choice


def sglang_triton(pairs: Array, local_experts: Array, tokens: Array, menu: tuple[int, ...]) -> Array:
    """SGLang's default without a tuned file: the smallest tile while there are no more tokens than experts, else 64."""
    return np.where(tokens <= local_experts, float(menu[0]), _clamp(np.full_like(tokens, 64.0), menu))


def vllm_triton(pairs: Array, local_experts: Array, tokens: Array, menu: tuple[int, ...]) -> Array:
    """vLLM's default without a tuned file: 16 rows up to 32 tokens, 32 up to 96, 64 up to 512, then 128."""
    return _clamp(np.select([tokens <= 32, tokens <= 96, tokens <= 512], [16.0, 32.0, 64.0], 128.0), menu)


def _clamp(rows: Array, menu: tuple[int, ...]) -> Array:
    """The nearest of `menu` at or above `rows`, or its largest."""
    table = np.asarray(menu, float)
    return table[np.minimum(np.searchsorted(table, rows - 1e-9), len(menu) - 1)]


RULES: dict[str, Rule] = {
    "half-of-mean": half_of_mean,
    "mean": mean,
    "marlin": marlin,
    "sglang-triton": sglang_triton,
    "vllm-triton": vllm_triton,
}
