"""The main loops of a consumer warpgroup: fragments from packed weights, wgmma on them, stages given back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda  # isort: skip

from perfmodel.kernels.ptx.barrier import mbarrier_arrive, mbarrier_wait
from perfmodel.kernels.ptx.wgmma import Element, descriptor_base, wgmma, wgmma_wait
from perfmodel.kernels.wgmma_config import BARRIER_BYTES, TILE_BYTES, Plan

U = np.uint32
U64 = np.uint64


@dataclass(frozen=True)
class Operand:
    """How a format's packed weights become the fragments of wgmma's first operand: device functions."""

    element: Element
    read: Callable[..., Any]
    """(tile, inside, lane) -> (words, scales) of a lane, of 16 rows number `inside` of the packed tile at shared address `tile`."""
    half_0: Callable[..., Any]
    """(words, scales) -> the 8 registers of the first two fragments of a stage."""
    half_1: Callable[..., Any]
    """(words, scales) -> the 8 registers of the other two."""


def fragments(plan: Plan, operand: Operand) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Device functions (read, descriptor): words and scales of a lane for 16 rows of a stage, and the descriptor of its activations."""
    config = plan.config
    WEIGHTS, STAGE_W, STAGE_X = U(plan.weights), U(config.weight_bytes), U(config.x_bytes)
    TILE = U(TILE_BYTES[config.format])
    read_tile, base_descriptor = operand.read, descriptor_base()

    @cuda.jit(device=True, forceinline=True)
    def read(base, stage, sixteen, lane):
        tile = base + WEIGHTS + stage * STAGE_W + (sixteen >> U(3)) * TILE
        return read_tile(tile, sixteen & U(7), lane)

    @cuda.jit(device=True, forceinline=True)
    def descriptor(base, stage):
        return base_descriptor | U64((base + stage * STAGE_X) >> U(4))

    return read, descriptor


def ahead(plan: Plan, operand: Operand) -> Callable[..., Any]:
    """Main loop that converts the next stage while the last one multiplies.

    (d, base, sixteen, lane, stage, parity, k_tiles) -> (d, stage, parity). `sixteen` is the number of the lane's 16 rows in the CTA's tile.
    Two stages a turn, so that the fragments in flight and the next ones have registers of their own.
    """
    read, descriptor = fragments(plan, operand)
    half_0, half_1 = operand.half_0, operand.half_1
    multiply = wgmma(plan.config.columns, operand.element, steps=4)
    STAGES, BARRIERS = U(plan.stages), U(plan.barriers)

    @cuda.jit(device=True, forceinline=True)
    def release(barriers, stage):
        mbarrier_arrive(barriers + stage * U(BARRIER_BYTES) + U(8))

    @cuda.jit(device=True, forceinline=True)
    def advance(d, base, sixteen, lane, stage, parity):
        mbarrier_wait(base + BARRIERS + stage * U(BARRIER_BYTES), parity)
        words, scales = read(base, stage, sixteen, lane)
        d = multiply(d, (*half_0(words, scales), *half_1(words, scales)), descriptor(base, stage))
        wgmma_wait(1)
        return d

    @cuda.jit(device=True, forceinline=True)
    def after(stage, parity):
        stage += U(1)
        if stage == STAGES:
            stage = U(0)
            parity ^= U(1)
        return stage, parity

    @cuda.jit(device=True, forceinline=True)
    def main_loop(d, base, sixteen, lane, stage, parity, k_tiles):
        barriers = base + BARRIERS
        before = stage
        for k in range(0, k_tiles - U(1), 2):
            d = advance(d, base, sixteen, lane, stage, parity)
            if k > 0:
                release(barriers, before)
            before = stage
            stage, parity = after(stage, parity)
            d = advance(d, base, sixteen, lane, stage, parity)
            release(barriers, before)
            before = stage
            stage, parity = after(stage, parity)
        if k_tiles & U(1):
            d = advance(d, base, sixteen, lane, stage, parity)
            if k_tiles > U(1):
                release(barriers, before)
            before = stage
            stage, parity = after(stage, parity)
        wgmma_wait(0)
        release(barriers, before)
        return d, stage, parity

    return main_loop


def in_step(plan: Plan, operand: Operand) -> Callable[..., Any]:
    """Main loop that waits for each multiplication; for four warpgroups, of which one converts while the others multiply.

    Arguments and result as in `ahead`.
    """
    read, descriptor = fragments(plan, operand)
    half_0, half_1 = operand.half_0, operand.half_1
    two_blocks = plan.config.blocks == 2
    multiply = wgmma(plan.config.columns, operand.element, steps=2 if two_blocks else 4, blocks=plan.config.blocks)
    STAGES, BARRIERS = U(plan.stages), U(plan.barriers)

    @cuda.jit(device=True, forceinline=True)
    def main_loop(d, base, sixteen, lane, stage, parity, k_tiles):
        for _ in range(k_tiles):
            full = base + BARRIERS + stage * U(BARRIER_BYTES)
            mbarrier_wait(full, parity)
            words, scales = read(base, stage, sixteen, lane)
            b = descriptor(base, stage)
            if two_blocks:
                words_1, scales_1 = read(base, stage, sixteen + U(4), lane)
                d = multiply(d, (*half_0(words, scales), *half_0(words_1, scales_1)), b)
                wgmma_wait(0)
                d = multiply(d, (*half_1(words, scales), *half_1(words_1, scales_1)), b + U64(4))
            else:
                d = multiply(d, (*half_0(words, scales), *half_1(words, scales)), b)
            wgmma_wait(0)
            mbarrier_arrive(full + U(8))
            stage += U(1)
            if stage == STAGES:
                stage = U(0)
                parity ^= U(1)
        return d, stage, parity

    return main_loop
