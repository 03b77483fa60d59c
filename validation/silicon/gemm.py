"""Measured dense GEMMs of aiconfigurator-core: 3.0 million rows as `Measurements`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfmodel.formats import get_format
from perfmodel.hardware import load_gpu
from perfmodel.validation.measurements import About, Integers, Measurements
from perfmodel.validation.silicon.names import gemm_protocol
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
    latency = table["latency"].to_numpy() * MILLISECOND
    block = op_block("gemm", part, text_labels(table["kernel_source"]), text_labels(table["gemm_dtype"]), sizes, latency)
    return block | protocol_sizes(part.gpu, block)


def protocol_sizes(gpu: str, block: Mapping[str, Any]) -> dict[str, Integers]:
    """How each row [n] was measured: `copies` of the weights that take turns, and whether it was launched `eager` (1) or not (0)."""
    sources, formats = block["source"], block["format"]
    pairs = sources.codes.astype(np.int64) * len(formats.values) + formats.codes
    copies, eager = np.empty(len(pairs), np.int64), np.empty(len(pairs), np.int64)
    for pair in np.unique(pairs):
        mine = pairs == pair
        form = formats.values[pair % len(formats.values)]
        protocol = gemm_protocol(sources.values[pair // len(formats.values)], form)
        copies[mine] = protocol.copies
        eager[mine] = protocol.eager
        if protocol.until_l2:
            weights = block["n"][mine] * block["k"][mine] * (get_format(form).weights.value_bits / 8)
            needed = np.ceil((load_gpu(gpu).l2_capacity or 0.0) / weights)
            copies[mine] = np.clip(needed, 1, protocol.copies)
    return {"copies": copies, "eager": eager}
