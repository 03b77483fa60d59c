"""What is wrong in measured data, whatever the model: rows faster than physics, and points that stand out of their series.

Counted by kernel, GPU and source, apart from the flags (a row may fail several checks, and a listed trap may fail none).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.formats import get_format
from perfmodel.hardware import load_gpu
from perfmodel.ops.attention import FORMATS, Shapes, products_time
from perfmodel.ops.attention_decode import DECODE
from perfmodel.profiles.op_profile import load_op_profile, op_profile_ids
from perfmodel.validation.columns import Kind
from perfmodel.validation.flags import series_of, spikes_and_dips
from perfmodel.validation.measurements import Floats, Integers, Mask, Measurements, group_ids

CHECKS = {
    "bandwidth": "compulsory bytes over the time are more than the bandwidth of DRAM, and more than L2 holds",
    "link": "the bytes that a rank must send, over the time, are more than the bandwidth of its link (NVLink, PCIe or network)",
    "cached": "a MoE layer or grouped GEMM, faster than the DRAM bandwidth allows, but all its bytes fit in L2, which nobody flushed",
    "flops": "FLOP over the time are more than the peak",
    "spike": "1.5 times both neighbours of its series or more",
    "dip": "1.3 times less than both neighbours, though with more tokens than the one before",
    "repeats": "the same measurement was made again and differs by more than 13 %",
}
"""Check -> what it says of a row. Rows below the floor fail one of the first four; which of these there are, the kind of rows says."""
REPEAT = 1.13
"""The 99th percentile of repeated keys in the public data."""
FAMILY = ("kernel", "gpu", "source")
COLD: tuple[Kind, ...] = ("layer", "grouped-gemm")
"""Kinds whose floors count every byte, as if L2 held nothing."""
LINKED: tuple[Kind, ...] = ("collectives", "a2a")
"""Kinds whose floors are those of a link between GPUs: no roof of DRAM, L2 or tensor cores bears on them."""
OVERHEAD = 3.0
"""Times its floor at which a prediction is made of other things than either roof."""


@dataclass(frozen=True, eq=False)
class Checked:
    """Which of n rows fail which check."""

    rows: Measurements
    failed: Mapping[str, Mask]

    def summary(self) -> dict[str, Any]:
        """Counts over all rows and by family, those with most failures first."""
        labels = [self.rows.labels[name] for name in FAMILY]
        ids = group_ids([label.codes for label in labels])
        any_ = np.any(list(self.failed.values()), axis=0)
        _, first, counts = np.unique(ids, return_index=True, return_counts=True)
        sums = {name: np.bincount(ids, mask, len(counts)).astype(int) for name, mask in (*self.failed.items(), ("any", any_))}
        families: list[dict[str, Any]] = [
            {name: label[int(row)] for name, label in zip(FAMILY, labels, strict=True)}
            | {"n": int(counts[i])}
            | {name: int(column[i]) for name, column in sums.items()}
            for i, row in enumerate(first)
        ]
        families.sort(key=lambda family: (-family["any"], family["kernel"], family["gpu"], family["source"]))
        overall = {"n": len(self.rows)} | {name: int(column.sum()) for name, column in sums.items()}
        return {"checks": {name: CHECKS[name] for name in self.failed}, "overall": overall, "families": families}


def check_rows(rows: Measurements, floor: Floats) -> Checked:
    """Check measured rows; `floor` [n] seconds, NaN where there is none."""
    below = rows.latency < floor
    impossible = {"link": below} if rows.kind in LINKED else _over_roofs(rows, floor, below)
    spike, dip = spikes_and_dips(series_of(rows), rows.tokens, rows.latency)
    return Checked(rows, impossible | {"spike": spike, "dip": dip, "repeats": _unrepeatable(rows)})


def _over_roofs(rows: Measurements, floor: Floats, below: Mask) -> dict[str, Mask]:
    """Which roof of a GPU the rows `below` [n] the floor break."""
    over_peak = below & (flops_time(rows) > rows.latency)
    cached = below & ~over_peak & _fits_cache(rows, floor)
    return {"bandwidth": below & ~over_peak & ~cached, "cached": cached, "flops": over_peak}


def flops_time(rows: Measurements) -> Floats:
    """[n] seconds of the FLOP at the dense peak, a rank's share where experts are spread; NaN for kinds and formats without one."""
    if rows.kind == "attention":
        return _attention_time(rows)
    work = _flops(rows)
    out = np.full(len(rows), np.nan)
    gpu, form = rows.labels["gpu"], rows.labels["format"]
    pairs = group_ids([gpu.codes, form.codes])
    for _, first in zip(*np.unique(pairs, return_index=True), strict=True):
        mine = pairs == pairs[first]
        try:
            spec = load_gpu(gpu[int(first)])
            out[mine] = work[mine] / spec.peak_flops(get_format(form[int(first)]).math_type(spec.math_types))
        except PerfModelError:
            continue  # a format that is none of the catalogue's, or not of this GPU
    return out


def regimes(rows: Measurements, predicted: Floats, floor: Floats) -> tuple[Integers, tuple[str, ...]]:
    """[n] the place among the names: what a row is near to.

    overhead: predicted at over OVERHEAD times its floor; unknown: not predicted; else the higher roof, compute or memory, or that of
    the link.
    """
    names = ("compute", "memory", "link", "overhead", "unknown")
    compute = flops_time(rows)
    with np.errstate(invalid="ignore"):
        found = np.where(compute >= 0.99 * floor, 0, 2 if rows.kind in LINKED else 1)
        found = np.where(predicted > OVERHEAD * floor, 3, found)
    return np.where(np.isnan(predicted), 4, found).astype(np.int64), names


def _fits_cache(rows: Measurements, floor: Floats) -> Mask:
    """[n] whether what must move fits in L2; `floor` is that of rows that memory bounds.

    Of layers and grouped GEMMs only: the floors of other ops leave out already what L2 may hold.
    """
    mask = np.zeros(len(rows), bool)
    if rows.kind not in COLD:
        return mask
    gpu = rows.labels["gpu"]
    for name in gpu.values:
        spec = load_gpu(name)
        if spec.l2_capacity is not None:
            mask |= gpu.where(name) & (floor * spec.dram_bandwidth <= spec.l2_capacity)
    return mask


def _attention_time(rows: Measurements) -> Floats:
    """As `flops_time`, of attention: prefill or decode as the profile of the kernel says, NaN for kernels without one."""
    out = np.full(len(rows), np.nan)
    gpu, kernel, form = (rows.labels[name] for name in ("gpu", "kernel", "format"))
    ids = group_ids([gpu.codes, kernel.codes, form.codes])
    for number, first in enumerate(np.unique(ids, return_index=True)[1]):
        row, mine = int(first), ids == number
        if kernel[row] in op_profile_ids() and form[row] in FORMATS:
            sizes = {name: column[mine].astype(float) for name, column in rows.sizes.items()}
            decodes = load_op_profile(kernel[row]).op == DECODE.id
            queries = np.ones_like(sizes["batch"]) if decodes else sizes["context"] - sizes["prefix"]
            out[mine] = products_time(Shapes.of(sizes, queries), FORMATS[form[row]], load_gpu(gpu[row]))
    return out


def _flops(rows: Measurements) -> Floats:
    """[n] FLOP of each row; of a layer the mean rank's."""
    s: dict[str, Floats] = {name: column.astype(float) for name, column in rows.sizes.items()}
    work: Floats = np.full(len(rows), np.nan)
    if rows.kind == "grouped-gemm":
        work = 2.0 * s["experts"] * s["tokens_per_expert"] * s["n"] * s["k"]
    elif rows.kind == "gemm":
        work = 2.0 * s["m"] * s["n"] * s["k"]
    elif rows.kind == "layer":
        gated = rows.labels["gated"].where("true") if "gated" in rows.labels else np.ones(len(rows), bool)
        ranks = s.get("ep", np.ones(len(rows))) * s.get("tp", np.ones(len(rows)))
        work = 2.0 * (2.0 + gated) * s["num_tokens"] * s["topk"] * s["hidden"] * s["inter"] / ranks
    return work


def _unrepeatable(rows: Measurements) -> Mask:
    """[n] rows that were measured again, where slowest and fastest differ by more than REPEAT."""
    ids = group_ids([label.codes for label in rows.labels.values()] + list(rows.sizes.values()))
    fastest = np.full(int(ids.max(initial=-1)) + 1, np.inf)
    slowest = np.zeros_like(fastest)
    np.minimum.at(fastest, ids, rows.latency)
    np.maximum.at(slowest, ids, rows.latency)
    mask: Mask = (slowest > REPEAT * fastest)[ids]
    return mask
