"""Measured ops beside MoE layers as `Measurements`: what their loaders share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfmodel.validation.columns import Kind
from perfmodel.validation.measurements import About, Floats, Integers, Labels, Measurements
from perfmodel.validation.silicon.names import names
from perfmodel.validation.silicon.parts import Part, chosen_labels


def op_block(kind: str, part: Part, sources: Labels, formats: Labels, sizes: Mapping[str, Integers], latency: Floats) -> dict[str, Any]:
    """Columns of one file in our words. `sources` and `formats` are the file's own texts; names.yaml says what they mean for this kind."""
    known = names()
    width = len(formats.values)
    pair = sources.codes.astype(np.int64) * width + formats.codes
    ours = [known.op_formats.get(kind, {}).get(text, known.formats.get(text, text)) for text in formats.values]
    kernels, forms, origins = [], [], []
    for source in sources.values:
        for form in ours:
            rule = next((rule for rule in known.ops.get(kind, ()) if rule.matches(source, part.gpu, form, part.source)), None)
            kernels.append(rule.profile if rule else source)
            forms.append((rule.format if rule else None) or form)
            origins.append(f"{part.source} {source}")
    return dict(sizes) | {
        "gpu": Labels(np.zeros(len(latency), np.int32), (part.gpu,)),
        "kernel": chosen_labels(kernels, pair),
        "format": chosen_labels(forms, pair),
        "source": chosen_labels(origins, pair),
        "latency": latency,
    }


def join_blocks(kind: Kind, blocks: Sequence[Mapping[str, Any]], about: About) -> Measurements:
    """All rows of all files; `lines` counts the rows of each file from 1. Text columns beside the usual become labels, too."""
    first = blocks[0]
    labels = [name for name, column in first.items() if isinstance(column, Labels)]
    sizes = [name for name in first if name not in labels and name != "latency"]
    return Measurements(
        kind=kind,
        file="aiconfigurator-core",
        lines=np.concatenate([np.arange(1, len(block["latency"]) + 1) for block in blocks]),
        labels={name: Labels.join([block[name] for block in blocks]) for name in labels},
        sizes={name: np.concatenate([block[name] for block in blocks]) for name in sizes},
        latency=np.concatenate([block["latency"] for block in blocks]),
        about=about,
    )
