"""Measured dense GEMMs of aiconfigurator-core: 3.0 million rows as `Measurements`."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.validation.measurements import About, Measurements
from perfmodel.validation.silicon.op_rows import join_blocks, op_block
from perfmodel.validation.silicon.parts import MILLISECOND, Part, parts, text_labels

ABOUT = About(
    title="Dense GEMMs measured by the collector of AIConfigurator",
    source="aiconfigurator-core 0.12.0 (Apache-2.0), systems/data/*/gemm/*/*/gemm_perf.parquet",
)


def read_gemm() -> Measurements:
    """All rows, file after file. Raises MissingRequirementError without the data."""
    return join_blocks("gemm", [_read(part) for part in parts("gemm/*/*/gemm_perf.parquet")], ABOUT)


def _read(part: Part) -> dict[str, Any]:
    import pyarrow.parquet as pq

    table = pq.read_table(part.path, columns=["m", "n", "k", "kernel_source", "gemm_dtype", "latency"])
    sizes = {name: table[name].to_numpy().astype(np.int64) for name in ("m", "n", "k")}
    return op_block(
        "gemm",
        part,
        text_labels(table["kernel_source"]),
        text_labels(table["gemm_dtype"]),
        sizes,
        table["latency"].to_numpy() * MILLISECOND,
    )
