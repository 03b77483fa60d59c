"""Measured dispatch and combine of expert parallelism (DeepEP, TensorRT-LLM) of aiconfigurator-core as `Measurements`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from perfmodel.hardware import load_gpu
from perfmodel.units import MICROSECOND
from perfmodel.validation.measurements import About, Labels, Measurements
from perfmodel.validation.silicon.op_rows import join_blocks, op_block
from perfmodel.validation.silicon.parts import Part, parts

PHASES = ("dispatch", "combine")
WIRE = {"dispatch": "fp8", "combine": "bf16"}
"""What DeepEP sends where the table does not say: the bytes of bf16 would be more than the link carries."""

ABOUT = About(
    title="Dispatch and combine of expert parallelism measured by the collector of AIConfigurator",
    source="aiconfigurator-core 0.12.0 (Apache-2.0), systems/data/*/comm/*/*/{moe_a2a,wideep_deepep_ll,wideep_deepep_normal}_perf.parquet",
)


def read_all_to_all() -> Measurements:
    """All rows, file after file; a row of both phases counts twice. Raises MissingRequirementError without the data.

    `tokens` are those of one rank. TensorRT-LLM's own kernels (trtllm_alltoall_perf) are no part.
    """
    blocks = [_moe(part) for part in parts("comm/*/*/moe_a2a_perf.parquet")]
    blocks += [block for part in parts("comm/*/*/wideep_deepep_normal_perf.parquet") for block in _deepep(part, "normal", "transmit_us")]
    blocks += [block for part in parts("comm/*/*/wideep_deepep_ll_perf.parquet") for block in _deepep(part, "ll", "avg_t_us")]
    return join_blocks("a2a", blocks, ABOUT)


def _moe(part: Part) -> dict[str, Any]:
    """Rows of one phase each, in us."""
    table = _table(part)
    phases = table["phase"].to_pylist()
    sources = [f"{backend} {phase}" for backend, phase in zip(table["comm_backend"].to_pylist(), phases, strict=True)]
    forms = [_wire(form, phase, source) for form, phase, source in zip(table["comm_dtype"].to_pylist(), phases, sources, strict=True)]
    names = {"tokens": "num_tokens", "hidden": "hidden_size", "topk": "topk", "experts": "num_experts", "ranks": "ep_size", "sms": "sms"}
    sizes = {ours: table[theirs].to_numpy().astype(np.int64) for ours, theirs in names.items()}
    return op_block("a2a", part, Labels.of(sources), Labels.of(forms), sizes, table["latency"].to_numpy() * MICROSECOND)


def _wire(form: str, phase: str, source: str) -> str:
    """What crosses the link: high-throughput kernels combine in bf16, whatever they dispatch."""
    if form == "default" or (phase == "combine" and "_ht " in source):
        return WIRE[phase]
    return {"bfloat16": "bf16", "fp4": "nvfp4"}.get(form, form)


def _deepep(part: Part, kind: str, column: str) -> Iterator[dict[str, Any]]:
    """Both phases of a row."""
    table = _table(part)
    ranks = table["node_num"].to_numpy().astype(np.int64) * load_gpu(part.gpu).gpus_per_node
    for phase in PHASES:
        names = {"tokens": "num_token", "hidden": "hidden_size", "topk": "num_topk", "experts": "num_experts"}
        sizes = {ours: table[theirs].to_numpy().astype(np.int64) for ours, theirs in names.items()} | {"ranks": ranks}
        sizes["sms"] = table[f"{phase}_sms"].to_numpy().astype(np.int64) if f"{phase}_sms" in table.column_names else np.zeros_like(ranks)
        sources, forms = [f"deepep {_kernel(kind, nodes)} {phase}" for nodes in table["node_num"].to_pylist()], [WIRE[phase]] * len(ranks)
        latency = table[f"{phase}_{column}"].to_numpy() * MICROSECOND
        yield op_block("a2a", part, Labels.of(sources), Labels.of(forms), sizes, latency)


def _kernel(kind: str, nodes: int) -> str:
    """DeepEP's normal kernels are others within a node and between nodes; the low-latency one is the same."""
    return "internode" if kind == "normal" and nodes > 1 else kind


def _table(part: Part) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(part.path)
