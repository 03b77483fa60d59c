"""Measured collectives of aiconfigurator-core: 14 thousand of NCCL, 8 thousand all-reduces of serving frameworks, as `Measurements`."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.validation.measurements import About, Labels, Measurements
from perfmodel.validation.silicon.op_rows import join_blocks, op_block
from perfmodel.validation.silicon.parts import MILLISECOND, Part, parts

NCCL = "comm/*/*/nccl_perf.parquet"
OWN = "comm/*/*/custom_allreduce_perf.parquet"
ELEMENT_BYTES = {"half": 2, "bfloat16": 2, "int8": 1}
"""`message_size` counts elements in both tables."""

ABOUT = About(
    title="Collectives measured by the collector of AIConfigurator",
    source="aiconfigurator-core 0.12.0 (Apache-2.0), systems/data/*/comm/*/*/nccl_perf.parquet and custom_allreduce_perf.parquet",
)


def read_collectives() -> Measurements:
    """All rows of one message over some ranks, file after file. Raises MissingRequirementError without the data.

    `bytes` is the whole buffer, `eager` is 1 where the host launched each call. The all-to-alls of expert parallelism are no part.
    """
    blocks = [_read(part, "nccl_dtype", named=True) for part in parts(NCCL)]
    blocks += [_read(part, "allreduce_dtype", named=False) for part in parts(OWN)]
    return join_blocks("collectives", blocks, ABOUT)


def _read(part: Part, form: str, *, named: bool) -> dict[str, Any]:
    """One file. `named`: the kernel is told apart by the collective, too."""
    import pyarrow.parquet as pq

    table = pq.read_table(part.path, columns=["op_name", "kernel_source", form, "num_gpus", "message_size", "latency"])
    sources = table["kernel_source"].to_pylist()
    forms = table[form].to_pylist()
    size = np.array([ELEMENT_BYTES[text] for text in forms], np.int64)
    sizes = {
        "bytes": table["message_size"].to_numpy().astype(np.int64) * size,
        "ranks": table["num_gpus"].to_numpy().astype(np.int64),
        "eager": np.array([text.endswith("_eager") for text in sources], np.int64),
    }
    if named:
        sources = [f"{text} {op}" for text, op in zip(sources, table["op_name"].to_pylist(), strict=True)]
    latency = table["latency"].to_numpy() * MILLISECOND
    return op_block("collectives", part, Labels.of(sources), Labels.of(forms), sizes, latency)
