"""What the model expects of the kernels of one MoE layer: the time of each op, and the DRAM bytes of its operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.api import layer_columns, layer_scenario, moe_layer_of
from perfmodel.attribution import GapRows, gap_rows
from perfmodel.diagnose.facts import Expected
from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.hardware import GpuSpec
from perfmodel.ops.activation import BF16
from perfmodel.scenario import layer_rows
from perfmodel.workload import load_model

GEMM = "grouped_gemm"
KIND_OPS = {GEMM: ("gate_up", "down"), "quantise": ("quantise",), "activation": ("activations",), "collective": ("communication",)}
"""Kind of kernel -> the ops of a layer that such kernels make up."""


@dataclass(frozen=True)
class Asked:
    """The scenario as `gap` takes it. `ops`: which grouped GEMMs the report holds, over and over in this order."""

    model: str | Path
    tokens: int
    format: str | None = None
    kernel: str = "auto"
    routing: str | None = None
    ep: int = 1
    tp: int = 1
    clock: str = "burst"
    ops: Sequence[str] = field(default=("gate_up", "down"))


@dataclass(frozen=True)
class Layer:
    """The prediction of a layer: its grouped GEMMs in the order of the report, and seconds by kind of kernel."""

    gemms: list[Expected]
    kinds: dict[str, float]
    kernel: str
    format: str


def expect(asked: Asked, gpu: GpuSpec) -> Layer:
    """The layer of a scenario. Raises PerfModelError as `gap` does, and for ops that it does not have."""
    spec = load_model(asked.model)
    layer = moe_layer_of(spec)
    if not 1 <= asked.tokens < 2**31:
        raise PerfModelError("must be a whole number from 1", field="tokens", value=asked.tokens, mend="Give the tokens of a call.")
    scenario = layer_scenario(spec, gpu, format=asked.format, kernel=asked.kernel, routing=asked.routing, clock=asked.clock)
    rows = layer_rows(layer_columns(layer, [asked.tokens], asked.ep, asked.tp), gated=layer.gated)
    (part,) = gap_rows(scenario, rows)
    times = {name.rsplit(".", 1)[-1]: float(seconds[0]) for name, seconds in part.ops.items()}
    times.setdefault("gate_up", times.get("up", 0.0))
    for op in asked.ops:
        if op not in KIND_OPS[GEMM]:
            raise PerfModelError("is no grouped GEMM of a layer", field="--ops", value=op, mend=did_you_mean(op, KIND_OPS[GEMM]))
    moved = operand_bytes(part)
    return Layer(
        gemms=[Expected(op, times[op], moved[op]) for op in asked.ops],
        kinds={kind: sum(times[op] for op in (asked.ops if kind == GEMM else ops)) for kind, ops in KIND_OPS.items()},
        kernel=part.profile.id,
        format=scenario.format.id,
    )


def operand_bytes(part: GapRows) -> dict[str, float]:
    """DRAM bytes of the busiest rank's grouped GEMMs: active weights with their scales, inputs, and bf16 outputs, each once.

    The output of gate_up is counted before the activation function: a kernel that fuses it writes half.
    """
    rows, load, machine = part.layer.rows, part.layer.load, part.layer.machine
    inter = float((rows.inter / rows.tp)[0])
    active, pairs, width = float(load.active[0]), float(load.pairs[0]), float(rows.width[0])

    def moved(n: float, k: float) -> float:
        weights = active * n * k * (machine.weight_bytes + machine.scale_bytes)
        return weights + pairs * (k * machine.act_bytes + n * BF16)

    return {"gate_up": moved(rows.projections * inter, width), "down": moved(width, inter)}


def match(kinds: Sequence[str], layer: Layer | None) -> list[Expected | None]:
    """For each launch, by its kind, what is expected of it: the grouped GEMMs take turns, the others have no prediction."""
    found: list[Expected | None] = []
    seen = 0
    for kind in kinds:
        one = layer.gemms[seen % len(layer.gemms)] if layer is not None and kind == GEMM else None
        seen += kind == GEMM
        found.append(one)
    return found
