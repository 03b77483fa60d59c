"""The Python API: `perfmodel.gap(...)` returns the object that `perfmodel gap --json` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.attribution import GapRows, cause_name, gap_rows
from perfmodel.errors import PerfModelError
from perfmodel.explain import Facts, cure, why
from perfmodel.hardware import GpuSpec
from perfmodel.scenario import Scenario, as_gpu, default_format, layer_rows, resolve
from perfmodel.units import GB, MICROSECOND, TFLOPS
from perfmodel.workload import load_model
from perfmodel.workload.layer import MoeLayer
from perfmodel.workload.model import ModelSpec
from perfmodel.workload.routing import parse_routing

MOST_ROWS = 1000
"""Token counts of one gap: each is explained in full."""
DEFAULT_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)


def gap(
    model: str | Path | ModelSpec,
    gpu: str | Path | GpuSpec,
    *,
    tokens: int | Sequence[int] = DEFAULT_TOKENS,
    format: str | None = None,
    kernel: str = "auto",
    routing: str | None = None,
    ep: int = 1,
    tp: int = 1,
    launch: str = "graph",
    comm: str = "exclude",
    clock: str = "burst",
    placement: str = "contiguous",
    redundant: int = 0,
    against: float | None = None,
    changes: Sequence[str] = (),
) -> dict[str, Any]:
    """The gap between the peak and one MoE layer of `model` on `gpu`, a row a token count, every lost microsecond named.

    tokens: entering the layer over the whole expert-parallel group. `against`: another peak, TFLOPS. `changes`: what-ifs such as
    "memory.bandwidth_GBps=9000". Returns the JSON object of `perfmodel gap`. Raises PerfModelError for anything that does not fit.
    """
    spec = model if isinstance(model, ModelSpec) else load_model(model)
    layer = moe_layer_of(spec)
    scenario = layer_scenario(
        spec, as_gpu(gpu, changes), format=format, kernel=kernel, routing=routing, launch=launch, comm=comm, clock=clock,
        placement=placement, redundant=redundant,
    )  # fmt: skip
    counts = _token_counts(tokens)
    _check_ranks(ep=ep, tp=tp)
    rows = layer_rows(layer_columns(layer, counts, ep, tp), gated=layer.gated)
    peak = None if against is None else _against(against)
    parts = gap_rows(scenario, rows, peak)
    asked = {"ep": ep, "tp": tp, "launch": launch, "comm": comm, "clock": clock, "placement": placement, "redundant": redundant}
    result = _as_object(scenario, spec, layer, counts, parts, peak)
    notes = [*result["notes"], *_warnings(scenario, spec, layer, ep, tp)]
    if format is None and spec.format is None and spec.layers > 1:
        notes.append(f"the format of the weights is not known: {scenario.format.id} is assumed (--format names another)")
    return {**result, **asked, "changes": list(changes), "notes": notes}


def layer_scenario(
    spec: ModelSpec,
    gpu: GpuSpec,
    *,
    format: str | None = None,
    kernel: str = "auto",
    routing: str | None = None,
    launch: str = "graph",
    comm: str = "exclude",
    clock: str = "burst",
    placement: str = "contiguous",
    redundant: int = 0,
) -> Scenario:
    """The scenario of a model's MoE layer; None stands for the format and the routing that suit the model. Raises PerfModelError."""
    layer = moe_layer_of(spec)
    chosen = default_format(spec.format, gpu) if format is None else format
    groups = (layer.n_group, layer.topk_group)
    kind = ("group-limited" if layer.n_group > 1 else "uniform") if routing is None else routing
    parsed = parse_routing(kind, groups=groups, placement=placement, redundant=redundant)  # type: ignore[arg-type]
    return resolve(gpu, chosen, kernel, routing=parsed, launch=launch, comm=comm, clock=clock)


def moe_layer_of(spec: ModelSpec) -> MoeLayer:
    """The MoE layer of a model. Raises PerfModelError for a model without one."""
    if spec.moe is None:
        raise PerfModelError("has no MoE layer", field="MODEL", value=spec.id, mend="Choose one that has (`perfmodel models`).")
    return spec.moe


def _token_counts(tokens: int | Sequence[int]) -> list[int]:
    if isinstance(tokens, str | bytes) or not isinstance(tokens, int | np.integer | Iterable):
        raise PerfModelError("must be whole numbers", field="tokens", value=tokens, mend="Give token counts such as [1, 64, 4096].")
    counts = [tokens] if isinstance(tokens, int | np.integer) else list(np.atleast_1d(tokens) if isinstance(tokens, np.ndarray) else tokens)
    if not counts:
        raise PerfModelError("no token count given", field="tokens", mend="Give at least one, such as 64.")
    if len(counts) > MOST_ROWS:
        raise PerfModelError(
            f"at most {MOST_ROWS} token counts a call", field="tokens", value=len(counts), mend="Use moe_latency for more."
        )
    for count in counts:
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 1 <= count < 2**31:
            raise PerfModelError("must be a whole number from 1", field="tokens", value=count, mend="Give token counts such as 1,64,4096.")
    return [int(c) for c in counts]


def _check_ranks(**ranks: object) -> None:
    for name, count in ranks.items():
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 1 <= count < 2**31:
            raise PerfModelError("must be a whole number from 1", field=name, value=count, mend="Give the number of ranks, such as 8.")


def _against(tflops: float) -> float:
    if isinstance(tflops, bool) or not isinstance(tflops, int | float) or not 0 < tflops <= 1e9:
        raise PerfModelError(
            "must be a positive number of TFLOPS up to a billion", field="against", value=tflops, mend="Give a peak such as 9000."
        )
    return tflops * TFLOPS


def _warnings(scenario: Scenario, spec: ModelSpec, layer: MoeLayer, ep: int, tp: int) -> list[str]:
    """What a planner should know beside the figures: weights that do not fit, ranks beyond the NVLink domain."""
    gpu, weights = scenario.gpu, scenario.format.weights
    notes = []
    held = spec.moe_layers * layer.experts / ep * layer.weights_per_expert / tp * weights.bits / 8
    if spec.moe_layers > 1 and held > gpu.dram_capacity:
        notes.append(
            f"the experts of all {spec.moe_layers} MoE layers take {held / GB:,.0f} GB a rank, {gpu.id} has {gpu.dram_capacity / GB:,.0f}: "
            "more ranks are needed for the whole model"
        )
    if ep * tp > gpu.nvlink_domain > 1:
        notes.append(f"{ep * tp} ranks reach beyond the {gpu.nvlink_domain} GPUs that NVLink joins")
    return notes


def _not_over(value: float, limit: float) -> float:
    """`value`, cut to `limit` where only rounding puts it over; anything more is a bug of ours."""
    if value > limit * (1 + 1e-9):
        raise AssertionError(f"{value} is over {limit}")
    return min(value, limit)


def layer_columns(layer: MoeLayer, tokens: list[int], ep: int, tp: int) -> dict[str, np.ndarray]:
    """The columns of `layer_rows`: a row a token count."""
    scalars = {
        "hidden": layer.hidden,
        "width": layer.width,
        "inter": layer.inter,
        "shared_inter": layer.shared_width,
        "experts": layer.experts,
        "topk": layer.topk,
        "ep": ep,
        "tp": tp,
    }
    return {"tokens": np.array(tokens), **{name: np.full(len(tokens), value) for name, value in scalars.items()}}


def _as_object(
    scenario: Scenario, spec: ModelSpec, layer: MoeLayer, tokens: list[int], parts: list[GapRows], against: float | None
) -> dict[str, Any]:
    rows: dict[int, dict[str, Any]] = {}
    for part in parts:
        for at, place in enumerate(part.index.tolist()):
            rows[place] = {"tokens": tokens[place], **_row(Facts(scenario, part, at, against))}
    kernels = {row["kernel"] for row in rows.values()}
    notes = [*scenario.gpu.notes, *spec.notes]
    if layer.latent:
        notes.append("the projections into and out of the latent width are not part of the layer's time")
    return {
        "schema": "perfmodel.gap/1",
        "gpu": scenario.gpu.id,
        "model": spec.id,
        "format": scenario.format.id,
        "kernel": kernels.pop() if len(kernels) == 1 else "auto",
        "routing": str(scenario.routing),
        "peak_tflops": (against or scenario.peak) / TFLOPS,
        "layer": layer.model_dump(exclude_none=True),
        "notes": notes,
        "rows": [rows[i] for i in range(len(tokens))],
    }


def _row(f: Facts) -> dict[str, Any]:
    """One row of the JSON: microseconds, TFLOPS, bytes."""
    part, layer = f.rows, f.rows.layer

    def us(values: np.ndarray) -> float:
        return f.number(values) / MICROSECOND

    latency, ideal = us(part.parts.latency), us(part.parts.ideal)
    losses = {cause: us(values) for cause, values in part.parts.losses.items()}
    flops, moved = f.number(layer.flops), f.number(layer.compulsory_bytes)
    machine, weights = layer.machine, f.number(layer.weights)
    return {
        "kernel": part.profile.id,
        "kernel_status": part.profile.fit(f.scenario.gpu.architecture, f.scenario.format.id).provenance.status,
        "latency_us": latency,
        "interval_us": [us(part.low), us(part.high)],
        "flops": flops,
        "tflops": _not_over(flops / f.number(part.parts.latency), f.against or f.scenario.peak) / TFLOPS,
        "ideal_us": ideal,
        "floor_us": _not_over(us(layer.floor), latency),
        "bound": str(part.parts.bound[f.at]),
        "arithmetic_intensity": flops / moved,
        "ridge": machine.peak / machine.bandwidth,
        "active_experts": f.number(layer.load.active),
        "rank_imbalance": f.number(part.imbalance),
        "dram_bytes": {
            "weights": weights * machine.weight_bytes,
            "scales": weights * machine.scale_bytes,
            "activations": f.number(layer.input_bytes),
            "output": f.number(layer.output_bytes),
        },
        "losses": [
            {"cause": cause_name(c), "us": lost, "saves_us": us(part.parts.saves[c]), "why": why(c, f), "cure": cure(c)}
            for c, lost in losses.items()
        ],
        "ops": [{"name": name, "us": us(values)} for name, values in part.ops.items()],
    }
