"""DRAM bytes of one grouped GEMM, tile by tile: what must move, and what a wave reads again because L2 no longer holds it.

The SMs work on `sm_count` tiles at a time, a wave. Within a wave each operand comes from DRAM once: tiles that share it run side by side.
A wave that needs an operand of the wave before finds it in L2 where a wave's operands and results fit there, and reads it again where
they do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from perfmodel.ops.activation import BF16
from perfmodel.workload.expectation import Array

Order = Literal["tokens", "weights"]
"""Which tiles follow each other: all columns of the same tokens, or all tokens of the same weights."""

HELD, LOST = 0.4, 0.8
"""Footprint of a wave over the capacity of L2 up to which the next wave finds everything, and from which on nothing.

Chosen by looking at four grouped GEMMs on an H200, whose L2 of 63 MB lost 1, 16, 85 and 100 % between waves of 24, 31, 47 and 64 MB
(validation/results/h200_kernels_ncu_2026-11-30.csv). Each half of that L2 holds its own copy of what SMs of both halves read.
"""
KEPT, GONE = 0.5, 1.2
"""Footprint of a call over the capacity of L2 up to which the next, equal call finds all its weights there, and from which on none.

Chosen by looking at MoE layers that SGLang's collector repeated on an L40S and an RTX PRO 6000 (aiconfigurator-core 0.12.0): their times
leave the bandwidth of DRAM about there.
"""
MOST_TILES = 4_000_000
"""Beyond so many the GEMM is cut to fewer experts and the bytes are scaled."""


@dataclass(frozen=True)
class Grouped:
    """A grouped GEMM: `tokens` of each of `experts`, times weights [n, k], in tiles of `rows` tokens by `columns` of n."""

    experts: int
    n: int
    k: int
    tokens: int
    rows: int
    columns: int
    weight_bytes: float
    """Bytes of a weight with its scale."""
    act_bytes: float
    """Bytes of an activation with its scale."""
    order: Order = "tokens"


@dataclass(frozen=True)
class Traffic:
    """DRAM bytes of a grouped GEMM. `weights`, `activations` and `output` are compulsory; `again` is read once more."""

    weights: float
    activations: float
    output: float
    again: float

    @property
    def read(self) -> float:
        """Bytes read."""
        return self.weights + self.activations + self.again

    @property
    def total(self) -> float:
        """Bytes read and written."""
        return self.read + self.output


def traffic(gemm: Grouped, sm_count: int, l2_capacity: float | None) -> Traffic:
    """DRAM bytes of a grouped GEMM that finds nothing in L2; without a known `l2_capacity` [B] nothing is read again.

    What is written last may stay in L2 and is counted as written all the same: up to 15 MB too much on an H200.
    """
    g = gemm
    weights, acts = g.experts * g.n * g.k * g.weight_bytes, g.experts * g.tokens * g.k * g.act_bytes
    output = g.experts * g.tokens * g.n * BF16
    if l2_capacity is None:
        return Traffic(weights, acts, output, 0.0)
    read, waves = _read_by_waves(g, sm_count)
    lost = lost_between_waves((read + output) / waves, l2_capacity)
    return Traffic(weights, acts, output, lost * max(read - weights - acts, 0.0))


def lost_between_waves(footprint: float, l2_capacity: float) -> float:
    """Part of what the next wave needs that L2 has dropped: 0 up to HELD of its capacity, 1 from LOST of it on, linear between."""
    return float(np.clip((footprint / l2_capacity - HELD) / (LOST - HELD), 0.0, 1.0))


def lost_between_calls(footprint: Array, l2_capacity: float) -> Array:
    """[n] part of a call's weights that L2 has dropped when the same call comes again: 0 up to KEPT of its capacity, 1 from GONE on."""
    lost: Array = np.clip((footprint / l2_capacity - KEPT) / (GONE - KEPT), 0.0, 1.0)
    return lost


def _read_by_waves(g: Grouped, sm_count: int) -> tuple[float, int]:
    """Bytes read if each wave reads all its operands, once; and the number of waves."""
    token_tiles, strips = -(-g.tokens // g.rows), -(-g.n // g.columns)
    a_expert = token_tiles * strips
    experts = max(1, min(g.experts, MOST_TILES // a_expert))
    expert, inside = np.divmod(np.arange(experts * a_expert), a_expert)
    tile, strip = np.divmod(inside, strips) if g.order == "tokens" else np.divmod(inside, token_tiles)[::-1]
    wave = np.arange(len(inside)) // sm_count
    width = np.minimum(g.columns, g.n - strip * g.columns) * (g.k * g.weight_bytes)
    height = np.minimum(g.rows, g.tokens - tile * g.rows) * (g.k * g.act_bytes)
    read = _once_a_wave(wave, expert * strips + strip, width) + _once_a_wave(wave, expert * token_tiles + tile, height)
    return read * g.experts / experts, max(1, round((int(wave[-1]) + 1) * g.experts / experts))


def _once_a_wave(wave: np.ndarray, operand: np.ndarray, size: Array) -> float:
    """Sum of `size` [tiles] over the different operands of each wave."""
    _, first = np.unique(wave * (int(operand.max()) + 1) + operand, return_index=True)
    return float(size[first].sum())
