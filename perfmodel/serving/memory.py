"""What fits a GPU's memory: weights, caches, and what engines keep beside them."""

from __future__ import annotations

import numpy as np

from perfmodel.serving.work import Work
from perfmodel.units import GB
from perfmodel.workload.expectation import Array

USABLE = 0.9
"""Share of the memory that engines take for weights and caches: vLLM's gpu_memory_utilization; 0.85 to 0.9 in the others."""
WORKSPACE = 2.0 * GB
"""CUDA context, graphs, workspaces and activations of a step: 1.5 to 4 GB in the logs of engines."""


def cache_room(work: Work, capacity: Array) -> Array:
    """Bytes of a GPU that are left for caches; negative where the weights do not fit. The layers of a pipeline are spread evenly."""
    room: Array = capacity * USABLE - WORKSPACE - work.weight_bytes / work.pp
    return room


def most_sequences(work: Work, capacity: Array, context: Array) -> Array:
    """Sequences of `context` tokens that an instance holds at a time; 0 where not even the weights fit."""
    a_sequence = work.cache_bytes(context) / work.pp
    room = np.maximum(cache_room(work, capacity), 0.0)
    return np.floor(room / np.maximum(a_sequence, 1.0)) * work.dp


def longest_context(work: Work, capacity: Array, sequences: Array, longest: float = 2.0**24) -> Array:
    """Tokens of context that so many sequences of an instance may have at a time; by halving, up to `longest`."""
    low, high = np.zeros_like(sequences), np.full_like(sequences, longest)
    for _ in range(40):
        middle = np.ceil((low + high) / 2)
        fits = most_sequences(work, capacity, middle) >= sequences
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        high = np.maximum(low, high)
    return low


def memory_bytes(work: Work, sequences: Array, context: Array) -> dict[str, Array]:
    """Bytes of one GPU: weights, caches of an instance's `sequences`, and the rest."""
    return {
        "weights": work.weight_bytes / work.pp,
        "cache": sequences / work.dp * work.cache_bytes(context) / work.pp,
        "workspace": np.full_like(work.weight_bytes, WORKSPACE),
    }
