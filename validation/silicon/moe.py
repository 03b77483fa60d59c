"""Measured MoE layers of aiconfigurator-core: 3.6 million rows as `Measurements`."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfmodel.validation.measurements import About, Integers, Labels, Mask, Measurements
from perfmodel.validation.silicon.names import Names, caches_of, names, routing_of
from perfmodel.validation.silicon.parts import MILLISECOND, Part, chosen_labels, parts, text_labels

SIZES = {
    "num_tokens": "num_tokens", "hidden": "hidden_size", "inter": "inter_size", "topk": "topk", "num_experts": "num_experts",
    "tp": "moe_tp_size", "ep": "moe_ep_size",
}  # fmt: skip
"""Our name of each size -> its column."""
TEXTS = ("kernel_source", "moe_dtype", "distribution")
ABOUT = About(
    title="MoE layers measured by the collector of AIConfigurator",
    source="aiconfigurator-core 0.12.0 (Apache-2.0), systems/data/*/moe/*/*/moe_perf.parquet",
    notes=(
        "a row is rank 0's forward without all-to-all, in a CUDA graph, mean of 6; tokens are those of the whole expert-parallel group",
    ),
)


def read_moe() -> Measurements:
    """All rows, file after file; `lines` counts the rows of each file from 1. Raises MissingRequirementError without the data."""
    blocks = [_read(part, names()) for part in parts("moe/*/*/moe_perf.parquet")]
    rows = sum(len(block["latency"]) for block in blocks)
    labels = {
        name: Labels.join([block[name] for block in blocks]) for name in ("gpu", "kernel", "format", "routing", "gated", "source", "caches")
    }
    labels["launch"] = Labels(np.zeros(rows, np.int32), ("",))
    return Measurements(
        kind="layer",
        file="aiconfigurator-core",
        lines=np.concatenate([np.arange(1, len(block["latency"]) + 1) for block in blocks]),
        labels=labels,
        sizes={name: np.concatenate([block[name] for block in blocks]) for name in SIZES},
        latency=np.concatenate([block["latency"] for block in blocks]),
        about=ABOUT,
    )


def _read(part: Part, known: Names) -> dict[str, Any]:
    """Columns of one file in our words."""
    import pyarrow.parquet as pq

    table = pq.read_table(part.path, columns=[*SIZES.values(), *TEXTS, "latency"])
    sizes: dict[str, Integers] = {name: table[column].to_numpy().astype(np.int64) for name, column in SIZES.items()}
    texts = {name: text_labels(table[name]) for name in TEXTS}
    count = len(table)
    labels, whole = _kernels(part, known, texts, _ungated(known, sizes))
    sizes["ep"] = np.where(whole, 1, sizes["ep"])
    one = np.zeros(count, np.int32)
    return (
        sizes
        | labels
        | {
            "gpu": Labels(one, (part.gpu,)),
            "routing": Labels(texts["distribution"].codes, tuple(routing_of(text, part.source) for text in texts["distribution"].values)),
            "caches": Labels(one, (caches_of(part.source),)),
            "latency": table["latency"].to_numpy().astype(float) * MILLISECOND,
        }
    )


def _kernels(part: Part, known: Names, texts: dict[str, Labels], ungated: Mask) -> tuple[dict[str, Labels], Mask]:
    """Of each row: kernel profile, format, gated or not, FRAMEWORK VERSION KERNEL as `source`; and whether each rank held all experts."""
    sources, formats = texts["kernel_source"], texts["moe_dtype"]
    width = len(formats.values)
    pair = sources.codes.astype(np.int64) * width + formats.codes
    kernels, forms, open_gate, origins, whole = [], [], [], [], []
    for source in sources.values:
        for format_name in formats.values:
            form = known.formats.get(format_name, format_name)
            rule = known.rule(source, part.gpu, form, part.source)
            kernels.append(rule.profile if rule else source)
            forms.append(rule.format or form if rule else form)
            open_gate.append(rule is not None and not rule.gated)
            whole.append(rule is not None and rule.whole)
            origins.append(f"{part.source} {source}")
    no_gate = np.array(open_gate)[pair] | ungated
    gated = Labels(no_gate.astype(np.int32), ("true", "false"))
    labels = {"kernel": chosen_labels(kernels, pair), "format": chosen_labels(forms, pair), "source": chosen_labels(origins, pair)}
    return labels | {"gated": gated}, np.array(whole)[pair]


def _ungated(known: Names, sizes: dict[str, Integers]) -> Mask:
    mask = np.zeros(len(sizes["hidden"]), bool)
    for shape in known.ungated:
        mask |= np.logical_and.reduce([sizes[name] == size for name, size in shape.items()])
    return mask
