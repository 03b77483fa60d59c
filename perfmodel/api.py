"""The Python API: `perfmodel.gap(...)` returns the object that `perfmodel gap --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.attribution import GapRows, cause_name, gap_rows
from perfmodel.errors import PerfModelError
from perfmodel.explain import Facts, cure, why
from perfmodel.gap_request import DEFAULT_TOKENS as DEFAULT_TOKENS
from perfmodel.gap_request import GapRequest
from perfmodel.hardware import GpuSpec
from perfmodel.scenario import Scenario, as_gpu, default_format, layer_rows, resolve
from perfmodel.units import GB, MICROSECOND, TFLOPS
from perfmodel.validated import validate
from perfmodel.workload import load_model
from perfmodel.workload.layer import MoeLayer
from perfmodel.workload.model import ModelSpec
from perfmodel.workload.routing import parse_routing


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
    given = {k: v for k, v in locals().items() if k not in ("model", "gpu")}
    names = {"model": str(model) if isinstance(model, Path) else model, "gpu": str(gpu) if isinstance(gpu, Path) else gpu}
    request = validate(GapRequest, {**names, **given})
    return gaps(request, [request.tokens])[0]


def gaps(request: GapRequest, tokens: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """An answer for each of several lists of token counts, computed at once: each is what the request with these `tokens` alone gets.

    Raises PerfModelError as `gap` does.
    """
    r = request
    spec = r.model if isinstance(r.model, ModelSpec) else load_model(r.model)
    layer = moe_layer_of(spec)
    scenario = layer_scenario(
        spec, as_gpu(r.gpu, r.changes), format=r.format, kernel=r.kernel, routing=r.routing, launch=r.launch, comm=r.comm,
        clock=r.clock, placement=r.placement, redundant=r.redundant,
    )  # fmt: skip
    counts = [count for several in tokens for count in several]
    peak = None if r.against is None else r.against * TFLOPS
    parts = gap_rows(scenario, layer_rows(layer_columns(layer, counts, r.ep, r.tp), gated=layer.gated), peak)
    rows = _rows(scenario, counts, parts, peak)
    notes = [*_warnings(scenario, spec, layer, r.ep, r.tp), *_measured_elsewhere(scenario, parts)]
    if r.format is None and spec.format is None and spec.layers > 1:
        notes.append(f"the format of the weights is not known: {scenario.format.id} is assumed (--format names another)")
    asked = {name: getattr(r, name) for name in ("ep", "tp", "launch", "comm", "clock", "placement", "redundant")}
    results = []
    for several in tokens:
        own, rows = rows[: len(several)], rows[len(several) :]
        result = _as_object(scenario, spec, layer, own, peak)
        results.append({**result, **asked, "changes": list(r.changes), "notes": [*result["notes"], *notes]})
    return results


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


def _rows(scenario: Scenario, tokens: list[int], parts: list[GapRows], against: float | None) -> list[dict[str, Any]]:
    """The rows of the JSON in the order of `tokens`."""
    rows: dict[int, dict[str, Any]] = {}
    for part in parts:
        for at, place in enumerate(part.index.tolist()):
            rows[place] = {"tokens": tokens[place], **_row(Facts(scenario, part, at, against))}
    return [rows[i] for i in range(len(tokens))]


def _as_object(scenario: Scenario, spec: ModelSpec, layer: MoeLayer, rows: list[dict[str, Any]], against: float | None) -> dict[str, Any]:
    kernels = {row["kernel"] for row in rows}
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
        "rows": rows,
    }


def _measured_elsewhere(scenario: Scenario, parts: list[GapRows]) -> list[str]:
    """Kernels whose numbers come from other GPUs of this architecture."""
    gpu = scenario.gpu
    fits = {part.profile.id: part.profile.fit(gpu.architecture, scenario.format.id) for part in parts}
    return [
        f"{name} was measured on {', '.join(fit.provenance.gpus or ())} only: on {gpu.id} it is estimated, with a wider interval"
        for name, fit in fits.items()
        if fit.elsewhere(gpu.id)
    ]


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
        "kernel_status": part.profile.fit(f.scenario.gpu.architecture, f.scenario.format.id).status_on(f.scenario.gpu.id),
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
