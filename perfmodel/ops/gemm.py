"""A dense GEMM, y [m, n] = x [m, k] w [k, n]: tiles over SMs against operands from DRAM.

total = fixed + (compute^p + memory^p)^(1/p); compute = waves x (tile at one SM's rate + fixed time of a tile), for the best tile of the
menu and, where that helps, K split over several SMs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.formats import get_format
from perfmodel.ops.activation import BF16
from perfmodel.ops.grouped_gemm import smooth_maximum
from perfmodel.ops.op import Op, OpTime, Parameter, Use
from perfmodel.units import MICROSECOND
from perfmodel.workload.expectation import Array

PARAMETERS = {
    "fixed_us": Parameter(3.0, 1.0, 0.1, 500.0, "what no size explains: launch, fill, drain [us]"),
    "tile_fixed_us": Parameter(0.8, 1.0, 0.01, 40.0, "prologue and epilogue of a tile [us]"),
    "compute_efficiency": Parameter(0.8, 0.3, 0.02, 1.0, "of the dense tensor peak, in the main loop of a tile"),
    "bandwidth_efficiency": Parameter(0.85, 0.2, 0.1, 1.0, "of the DRAM bandwidth"),
    "overlap_exponent": Parameter(4.0, 0.8, 1.0, 30.0, "p that joins compute and memory: 1 adds them up, a large p overlaps them"),
}


def gemm_time(use: Use, sizes: Mapping[str, Array], p: Mapping[str, float]) -> OpTime:
    """Seconds of GEMMs of m x n x k, [n rows]."""
    form, gpu = get_format(use.format), use.gpu
    m, n, k = (sizes[name] for name in ("m", "n", "k"))
    peak = gpu.peak_flops(form.math_type(gpu.math_types))
    bytes_ = n * k * (form.weights.bits / 8) + m * k * (form.activations.bits / 8) + m * n * BF16
    floor = np.maximum(2.0 * m * n * k / peak, bytes_ / gpu.dram_bandwidth)
    memory = bytes_ / (gpu.dram_bandwidth * p["bandwidth_efficiency"])
    rate = peak / gpu.sm_count * p["compute_efficiency"]
    compute = np.full_like(memory, np.inf)
    for tile_m in use.menus["tile_m"]:
        for tile_n in use.menus["tile_n"]:
            tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n)
            waves = np.ceil(tiles / gpu.sm_count)
            compute = np.minimum(compute, waves * (2.0 * tile_m * tile_n * k / rate + p["tile_fixed_us"] * MICROSECOND))
    total = p["fixed_us"] * MICROSECOND + smooth_maximum(compute, memory, p["overlap_exponent"])
    return OpTime(np.maximum(total, floor), floor, compute, memory)


GEMM = Op("gemm", ("m", "n", "k"), "m", ("tile_m", "tile_n"), PARAMETERS, gemm_time)
