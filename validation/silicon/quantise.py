"""Measured quantisations of activations of aiconfigurator-core: 78 thousand rows as `Measurements`.

`scale_matrix` is the time to apply a known scale. `computescale` is what finding the scale adds: the time of the kernel that does both,
less the former, which the collector cuts off at 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.validation.measurements import About, Labels, Measurements
from perfmodel.validation.silicon.op_rows import join_blocks, op_block
from perfmodel.validation.silicon.parts import MILLISECOND, Part, parts, text_labels

ABOUT = About(
    title="Quantisations of activations measured by the collector of AIConfigurator",
    source="aiconfigurator-core 0.12.0 (Apache-2.0), systems/data/*/quantize/*/*/{computescale,scale_matrix}_perf.parquet",
)
TABLES = ("computescale", "scale_matrix")


def read_quantise() -> Measurements:
    """All rows, file after file. Raises MissingRequirementError without the data."""
    blocks = [_read(part, table) for table in TABLES for part in parts(f"quantize/*/*/{table}_perf.parquet")]
    return join_blocks("quantise", blocks, ABOUT)


def _read(part: Part, table: str) -> dict[str, Any]:
    import pyarrow.parquet as pq

    columns = pq.read_table(part.path, columns=["m", "k", "kernel_source", "quant_dtype", "latency"])
    sizes = {name: columns[name].to_numpy().astype(np.int64) for name in ("m", "k")}
    sizes["whole"] = np.full(len(columns), table == "scale_matrix", np.int64)
    sources = text_labels(columns["kernel_source"])
    sources = Labels(sources.codes, tuple(f"{table} {text}" for text in sources.values))
    return op_block("quantise", part, sources, text_labels(columns["quant_dtype"]), sizes, columns["latency"].to_numpy() * MILLISECOND)
