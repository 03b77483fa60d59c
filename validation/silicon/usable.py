"""Which measured rows may be fitted: all but those below the floor, listed traps, spikes, dips and times of 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.hardware import load_gpu
from perfmodel.validation.flags import flag_rows
from perfmodel.validation.measurements import Floats, Mask, Measurements
from perfmodel.validation.silicon.moe import read_moe


def usable_rows(kernels: Sequence[str] = (), rows: Measurements | None = None) -> tuple[Measurements, Mask]:
    """The measured `rows` (of MoE layers by default), of these kernels or of all, and which of them may be fitted.

    Raises PerfModelError for a kernel that was not measured.
    """
    rows = read_moe() if rows is None else rows
    there = rows.labels["kernel"].values
    for kernel in kernels:
        if kernel not in there:
            raise PerfModelError("has no measured row of this op", field="--kernel", value=kernel, mend=did_you_mean(kernel, there))
    if kernels:
        rows = rows.take(np.flatnonzero(np.logical_or.reduce([rows.labels["kernel"].where(kernel) for kernel in kernels])))
    return rows, usable_mask(rows)


def usable_mask(rows: Measurements) -> Mask:
    """[n] which rows may be fitted. Of ops beside the MoE layer no floor is looked at: fits bear the few below it."""
    floor = rough_floor(rows) if rows.kind == "layer" else np.zeros(len(rows))
    mask: Mask = (flag_rows(rows, floor, np.ones(len(rows), bool)).codes == 0) & (rows.latency > 0)
    return mask


def rough_floor(rows: Measurements) -> Floats:
    """[n] seconds: the active weights of a balanced layer, less what warm caches hold, at the DRAM bandwidth, at least.

    Enough to see what cannot be.
    """
    from perfmodel.formats import get_format

    gpu, form = rows.labels["gpu"], rows.labels["format"]
    gpus = [load_gpu(name) for name in gpu.values]
    bandwidth = np.array([spec.dram_bandwidth for spec in gpus])[gpu.codes]
    held = np.where(rows.labels["caches"].where("warm"), np.array([spec.l2_capacity or 0.0 for spec in gpus])[gpu.codes], 0.0)
    size = np.array([get_format(name).weights.bits / 8 for name in form.values])[form.codes]
    size_of = {name: rows.sizes[name].astype(float) for name in rows.sizes}
    one = size_of["hidden"] * size_of["inter"] / size_of["tp"] * (2 + (rows.labels["gated"].where("true")))
    experts = np.minimum(np.floor(size_of["num_tokens"] * size_of["topk"] / size_of["ep"]), size_of["num_experts"] / size_of["ep"])
    balanced = rows.labels["routing"].where("balanced")
    weights = np.maximum(np.minimum(experts, size_of["num_experts"]) * one * size - held, 0.0)
    floor: Floats = np.where(balanced, weights / bandwidth, 0.0)
    return floor
