"""Quantisation of activations x [m, k] from 16 bits to 8: a scale that is known is applied, or one is found, which takes longer.

    total = fixed + depth of a row + (rows^p + bytes^p)^(1/p)

A row is the work of one thread block, so that few long rows wait for its loop over k and many short ones for their blocks; bytes come
from L2 where x and the result fit, as they do after the layer before, and else from DRAM. `whole` is 1 for a kernel, 0 for what one takes
longer than another.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.formats import get_format
from perfmodel.ops.activation import BF16
from perfmodel.ops.gemm import outgrows
from perfmodel.ops.grouped_gemm import smooth_maximum
from perfmodel.ops.op import Op, OpTime, Parameter, Use, known, l2_bandwidth
from perfmodel.units import MICROSECOND, NANOSECOND, PICOSECOND
from perfmodel.workload.expectation import Array

JOINED = 3.0
"""Exponent that joins rows and bytes."""

PARAMETERS = {
    "fixed_us": Parameter(2.0, 1.0, 0.01, 100.0, "what no size explains: launches, fill, drain [us]"),
    "depth_ps": Parameter(20.0, 1.5, 0.01, 3000.0, "an element of a row, one after the other [ps]"),
    "row_ns": Parameter(0.3, 1.5, 0.001, 100.0, "a row, over all SMs [ns]"),
    "bandwidth_efficiency": Parameter(0.7, 0.5, 0.01, 4.0, "bytes of one read and one write over the DRAM bandwidth; passes make it small"),
    "l2_efficiency": Parameter(0.5, 0.8, 0.01, 4.0, "the same over the L2 bandwidth"),
    "l2_share": Parameter(0.7, 0.6, 0.02, 4.0, "of the L2 capacity that x and the result can stay in"),
}


def quantise_time(use: Use, sizes: Mapping[str, Array], p: Mapping[str, float]) -> OpTime:
    """Seconds of quantising x of m x k, [n rows]. Raises PerfModelError for a GPU whose L2 capacity is not known."""
    gpu, form = use.gpu, get_format(use.format)
    m, k = sizes["m"], sizes["k"]
    moved = m * k * (BF16 + form.activations.bits / 8)
    l2 = known(gpu, "l2_capacity")
    # Of a difference of two kernels no byte is compulsory: what is scaled next may be held on the chip.
    floor = sizes["whole"] * np.maximum(moved - l2, 0.0) / gpu.dram_bandwidth
    cold = outgrows(moved, l2 * p["l2_share"]) if p["l2_share"] else np.ones_like(moved)
    from_dram = gpu.dram_bandwidth * p["bandwidth_efficiency"]
    from_l2 = l2_bandwidth(gpu) * p["l2_efficiency"]
    # What DRAM gives comes through L2. A difference of two kernels is no such time: for each byte it may be larger out of L2.
    warm = np.where(sizes["whole"] > 0, _over(1.0 - cold, max(from_l2, from_dram)), _over(1.0 - cold, from_l2))
    memory = moved * (_over(cold, from_dram) + warm)
    rows = m * (p["row_ns"] * NANOSECOND) + k * (p["depth_ps"] * PICOSECOND)
    total = p["fixed_us"] * MICROSECOND + smooth_maximum(rows, memory, JOINED)
    return OpTime(np.maximum(total, floor), floor, rows, memory)


def _over(share: Array, rate: float) -> Array:
    """Seconds a byte; none at a rate of 0, which stands for a kernel that does not run at all."""
    return share / rate if rate else np.zeros_like(share)


QUANTISE = Op("quantise", ("m", "k", "whole"), "m", (), PARAMETERS, quantise_time)
