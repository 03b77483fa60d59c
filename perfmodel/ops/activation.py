"""Stages beside the grouped GEMMs: passes over activations, and the router's own work."""

from __future__ import annotations

from typing import Literal

import numpy as np

from perfmodel.ops.machine import Machine
from perfmodel.workload.expectation import Array

BF16 = 2.0
BYTES = {"bf16": BF16, "fp32": 4.0}


Kind = Literal["quantise", "move"]


def stage_time(kind: Kind, rows: dict[str, Array], widths: dict[str, Array], machine: Machine) -> Array:
    """Seconds of all stages of one kind: bytes over the stages' bandwidth.

    `rows` counts tokens and pairs, `widths` the columns hidden, inter and up (the rank's share).
    """
    total = np.zeros_like(rows["tokens"])
    for stage in machine.stages:
        if stage.kind != kind or (kind == "quantise" and not machine.quantises):
            continue
        per_element = sum(BYTES.get(element, machine.act_bytes) for element in stage.moves)
        share = machine.token_bandwidth if stage.rows == "tokens" else machine.activation_bandwidth
        total = total + rows[stage.rows] * widths[stage.width] * per_element / (machine.bandwidth * share)
    return total


def routing_time(tokens: Array, experts: Array, topk: Array, local: Array, machine: Machine) -> Array:
    """Seconds of top-k and sorting: a step for each doubling of the tokens, tokens x (experts + 24 top-k), and the `local` experts."""
    steps = np.log2(np.maximum(tokens, 1.0))
    return tokens * (experts + 24.0 * topk) * machine.routing + steps * machine.sort + local * machine.expert
