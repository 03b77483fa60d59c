"""Measured attention of aiconfigurator-core, prefill and decode, dense and MLA: 2.75 million rows as `Measurements`.

Whole MLA modules (mla_*_module, wideep_*) are left out: they hold the projections around attention as well, with the GEMMs of each library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from perfmodel.validation.measurements import About, Integers, Labels, Measurements
from perfmodel.validation.silicon.op_rows import join_blocks, op_block
from perfmodel.validation.silicon.parts import MILLISECOND, Part, parts, text_labels

ABOUT = About(
    title="Attention measured by the collector of AIConfigurator",
    source="aiconfigurator-core 0.12.0 (Apache-2.0), systems/data/*/attention and mla, context and generation",
)
PREFILL, DECODE = "prefill", "decode"
GROUPS = (1, 4, 32)
"""Query heads of one KV head, from class to class: alone, too few for tensor cores in FlashInfer, as many as fit a tile of most kernels."""
LATENT, ROTARY, NOPE, VALUE = 512, 64, 128, 128
"""Dims of DeepSeek-V3's MLA (config.json: kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim), which all MLA rows have."""

Sizes = dict[str, Integers]


def read_attention() -> Measurements:
    """All rows, file after file. Raises MissingRequirementError without the data."""
    blocks = [_read(part, "attn_dtype", PREFILL, dense_sizes) for part in parts("attention/*/*/context_attention_perf.parquet")]
    blocks += [_read(part, "attn_dtype", DECODE, dense_sizes) for part in parts("attention/*/*/generation_attention_perf.parquet")]
    blocks += [_read(part, "mla_dtype", f"mla-{PREFILL}", mla_prefill_sizes) for part in parts("mla/*/*/context_mla_perf.parquet")]
    blocks += [_read(part, "mla_dtype", f"mla-{DECODE}", mla_decode_sizes) for part in parts("mla/*/*/generation_mla_perf.parquet")]
    return join_blocks("attention", blocks, ABOUT)


def _read(part: Part, dtype: str, phase: str, sizes: Callable[[Mapping[str, Integers]], Sizes]) -> dict[str, Any]:
    """One file. A decode row measures one new token after `isl` - 1 + `step` others, a prefill row all `isl` of them."""
    import pyarrow.parquet as pq

    table = pq.read_table(part.path)
    columns = {name: table[name] for name in table.column_names}
    whole = {name: columns[name].to_numpy().astype(np.int64) for name in ("batch_size", "isl", "step", "num_heads")}
    for name in ("num_key_value_heads", "head_dim", "window_size"):
        column = columns.get(name)
        whole[name] = column.to_numpy().astype(np.int64) if column is not None else np.zeros_like(whole["isl"])
    ours = sizes(whole)
    return op_block(
        "attention",
        part,
        _named(phase, text_labels(columns["kernel_source"]), ours),
        _joined(text_labels(columns[dtype]), text_labels(columns["kv_cache_dtype"]), "/"),
        ours,
        columns["latency"].to_numpy() * MILLISECOND,
    )


def _named(phase: str, source: Labels, sizes: Sizes) -> Labels:
    """PHASE KERNEL HEADS MASK DIM of each row, "decode fa3 gqa window d128" say: all that libraries choose a kernel by.

    Heads are mha, few (up to 4 to a KV head), gqa or wide (more than 32); a prefill of one token is prefill1.
    """
    one = phase.endswith(PREFILL) & (sizes["context"] == 1)
    group = sizes["heads"] // sizes["kv_heads"]
    label = _joined(Labels(one.astype(np.int32), (phase, f"{phase}1")), source, " ")
    label = _joined(label, Labels(np.searchsorted(GROUPS, group).astype(np.int32), ("mha", "few", "gqa", "wide")), " ")
    label = _joined(label, Labels((sizes["window"] > 0).astype(np.int32), ("full", "window")), " ")
    dims, codes = np.unique(sizes["key_dim"], return_inverse=True)
    label = _joined(label, Labels(codes.astype(np.int32), tuple(f"d{dim}" for dim in dims)), " ")
    kept, codes = np.unique(label.codes, return_inverse=True)
    return Labels(codes.astype(np.int32), tuple(label.values[code] for code in kept))


def _joined(first: Labels, second: Labels, between: str) -> Labels:
    """Both texts of each row as one."""
    values = tuple(f"{a}{between}{b}" for a in first.values for b in second.values)
    return Labels(first.codes * len(second.values) + second.codes, values)


def _shared_sizes(columns: Mapping[str, Integers]) -> Sizes:
    none = np.zeros_like(columns["isl"])
    return {
        "batch": columns["batch_size"],
        "context": columns["isl"] + columns["step"],
        "prefix": none,
        "heads": columns["num_heads"],
        "window": np.maximum(columns["window_size"], 0),
    }


def dense_sizes(columns: Mapping[str, Integers]) -> Sizes:
    """Sizes of plain attention: keys and values of `head_dim` each."""
    dim, kv_heads = columns["head_dim"], columns["num_key_value_heads"]
    kv_heads = np.where(kv_heads > 0, kv_heads, columns["num_heads"])
    return _shared_sizes(columns) | {"kv_heads": kv_heads, "key_dim": dim, "value_dim": dim, "cache_dim": 2 * dim}


def mla_prefill_sizes(columns: Mapping[str, Integers]) -> Sizes:
    """Sizes of MLA in prefill, where keys and values are expanded for every head."""
    one = np.ones_like(columns["isl"])
    dims = {"key_dim": (NOPE + ROTARY) * one, "value_dim": VALUE * one, "cache_dim": (NOPE + ROTARY + VALUE) * one}
    return _shared_sizes(columns) | dims | {"kv_heads": columns["num_heads"]}


def mla_decode_sizes(columns: Mapping[str, Integers]) -> Sizes:
    """Sizes of MLA in decode: all heads read one latent vector a token, which is key and value."""
    one = np.ones_like(columns["isl"])
    dims = {"key_dim": (LATENT + ROTARY) * one, "value_dim": LATENT * one, "cache_dim": (LATENT + ROTARY) * one}
    return _shared_sizes(columns) | dims | {"kv_heads": one}
