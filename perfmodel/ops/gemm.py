"""A dense GEMM, y [m, n] = x [m, k] w [k, n], as a library calls it: quantisation of x where the format has 8 or 4 bits, then one kernel.

    total = fixed + quantise + kernel, or the time of the CPU where that launches eagerly and takes longer
    kernel = (compute^p + memory^p)^(1/p) + depth + reduction of split K, for the fastest tile and split of the menus

compute: waves of tiles over SMs, each at the rate of its SM or of the L2 that feeds it, with a fixed time; slower under load that lasts.
memory: weights from DRAM, or from L2 where all that take turns fit, bounded by what the busy SMs hold in flight; x, y; re-reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfModelError
from perfmodel.formats import Format, get_format
from perfmodel.hardware import GpuSpec
from perfmodel.ops.activation import BF16
from perfmodel.ops.grouped_gemm import smooth_maximum
from perfmodel.ops.op import Op, OpTime, Parameter, Use, known, l2_bandwidth
from perfmodel.units import KIB, MICROSECOND, NANOSECOND, PICOSECOND
from perfmodel.workload.expectation import Array

FP32 = 4
LARGEST_TILE = 128 * 256
"""Accumulators of a tile in FP32 take at most 128 KiB: half of an SM's registers, or of its tensor memory."""
SHORTEST_K = 64
"""Of a slice of split K."""
CALLS = 9
"""Of each of the weights in turn under measurement: 3 to warm up, 6 that count."""
HEATED = 15e-3
"""Seconds of full load after which half of the slow-down has set in: power management samples every 10 to 20 ms."""
ALIGNED = 4
"""FP32 scales of a column, 16 bytes: what TMA takes."""
FULL, LAUNCH = 4.0, 8.0
"""Exponents that join bandwidth with latency, and host with GPU: near a maximum."""

PARAMETERS = {
    "fixed_us": Parameter(3.0, 1.0, 0.1, 500.0, "what no size explains: launches, fill, drain [us]"),
    "depth_ps": Parameter(30.0, 1.5, 0.1, 3000.0, "of each element of k: latency that the loop of a tile does not hide [ps]"),
    "tile_fixed_us": Parameter(0.8, 1.0, 0.01, 40.0, "prologue and epilogue of a tile [us]"),
    "compute_efficiency": Parameter(0.8, 0.3, 0.02, 1.0, "of the dense tensor peak, in the main loop of a tile"),
    "bandwidth_efficiency": Parameter(0.85, 0.2, 0.1, 1.0, "of the DRAM bandwidth"),
    "overlap_exponent": Parameter(3.0, 0.8, 1.0, 30.0, "p that joins compute and memory: 1 adds them up, a large p overlaps them"),
    "wave_rounding": Parameter(0.5, 0.8, 0.02, 1.0, "share of a last, partly filled wave that is waited for: 1 whole waves, 0 stream-K"),
    "l2_efficiency": Parameter(0.8, 0.4, 0.05, 2.0, "of the L2 bandwidth; above 1 where multicast feeds several SMs at once"),
    "l2_share": Parameter(0.7, 0.5, 0.02, 2.0, "of the L2 capacity that weights can stay in from one call to the next"),
    "in_flight_KiB": Parameter(64.0, 0.8, 2.0, 2000.0, "that an SM keeps on the way from memory [KiB]"),
    "reread": Parameter(0.5, 0.8, 0.01, 4.0, "of the operands that waves of tiles read again from DRAM where they outgrow L2"),
    "split_us": Parameter(1.5, 1.0, 0.01, 40.0, "reduction of split K beside its traffic [us]"),
    "slow_down": Parameter(0.1, 1.0, 0.001, 3.0, "of compute under load that lasts: power limits the clock"),
    "quantise_bandwidth": Parameter(0.6, 0.8, 0.02, 8.0, "x read and written while it is quantised, over the DRAM bandwidth"),
    "row_ns": Parameter(0.3, 1.5, 0.001, 50.0, "a row of x while it is quantised, over all SMs [ns]"),
    "unaligned_us": Parameter(1.0, 1.5, 0.01, 500.0, "to pad scales of 1 x 128 to 16 bytes, where m is no multiple of 4 [us]"),
    "host_us": Parameter(100.0, 1.0, 1.0, 2000.0, "of the CPU for an eager call, without a graph [us]"),
}  # fmt: skip


@dataclass(frozen=True)
class _Problem:
    """Sizes [n rows] with what they mean in bytes on a GPU."""

    gpu: GpuSpec
    form: Format
    m: Array
    n: Array
    k: Array
    copies: Array
    """Weights of this size that take turns: those of other layers, or of one as often as it is measured."""

    @property
    def weight_bytes(self) -> float:
        """Of an element, with its scales."""
        return self.form.weights.bits / 8

    @property
    def act_bytes(self) -> float:
        """Of an element, with its scales."""
        return self.form.activations.bits / 8

    @property
    def weights(self) -> Array:
        return self.n * self.k * self.weight_bytes

    @property
    def others(self) -> Array:
        """x and y."""
        return self.m * (self.k * self.act_bytes + self.n * BF16)

    @property
    def flops(self) -> Array:
        return 2.0 * self.m * self.n * self.k

    @property
    def l2_bandwidth(self) -> float:
        return l2_bandwidth(self.gpu)


@dataclass(frozen=True)
class _Rates:
    """What parameters make of a GPU, in SI units."""

    sm: float
    """FLOP/s of an SM."""
    dram: float
    l2: float
    in_flight: float
    """Bytes of an SM."""


@dataclass(frozen=True)
class _Kernel:
    """Seconds of the fastest candidate so far."""

    total: Array
    compute: Array
    memory: Array

    def where(self, may: NDArray[np.bool_]) -> _Kernel:
        """Never the fastest but in the rows that `may` take it."""
        return replace(self, total=np.where(may, self.total, np.inf))

    def or_faster(self, other: _Kernel) -> _Kernel:
        """Row by row."""
        use = other.total < self.total
        pairs = ((self.total, other.total), (self.compute, other.compute), (self.memory, other.memory))
        return _Kernel(*(np.where(use, theirs, mine) for mine, theirs in pairs))


def gemm_time(use: Use, sizes: Mapping[str, Array], p: Mapping[str, float]) -> OpTime:
    """Seconds of GEMMs of m x n x k, [n rows]. Raises PerfModelError for a GPU whose L2 or latencies are not known."""
    gpu, form = use.gpu, get_format(use.format)
    problem = _Problem(gpu, form, *(sizes[name] for name in ("m", "n", "k", "copies")))
    peak = gpu.peak_flops(form.math_type(gpu.math_types))
    floor = _floor(problem, peak)
    kernel = _fastest(use, problem, peak, p)
    load = CALLS * problem.copies * kernel.compute
    slower = kernel.compute * (p["slow_down"] * load / (load + HEATED))
    total = p["fixed_us"] * MICROSECOND + _quantise(problem, sizes["eager"], p) + kernel.total + slower
    host = sizes["eager"] * (p["host_us"] * MICROSECOND + _unaligned(problem, p))
    total = smooth_maximum(total, host, LAUNCH)
    return OpTime(np.maximum(total, floor), floor, kernel.compute + slower, kernel.memory)


def _floor(problem: _Problem, peak: float) -> Array:
    """Seconds that physics allows: FLOPs at the peak; bytes that cannot be in L2 at the DRAM bandwidth.

    Between two uses of a weight all others, x and y pass: L2 saves a round over all copies no more than its capacity.
    """
    l2 = known(problem.gpu, "l2_capacity")
    cold = np.maximum(problem.weights + (problem.others - l2) / problem.copies, problem.weights + problem.others - l2)
    return np.maximum(problem.flops / peak, np.maximum(cold, 0.0) / problem.gpu.dram_bandwidth)


def _quantise(problem: _Problem, eager: Array, p: Mapping[str, float]) -> Array:
    """Seconds in which x [m, k] is read in 16 bits and written in fewer; none where the format keeps 16."""
    if problem.form.activations.value_bits >= 8 * BF16:
        return np.zeros_like(problem.m)
    moved = problem.m * problem.k * (BF16 + problem.act_bytes)
    time = moved / (p["quantise_bandwidth"] * problem.gpu.dram_bandwidth) + problem.m * (p["row_ns"] * NANOSECOND)
    return time + np.where(eager > 0, 0.0, _unaligned(problem, p))


def _unaligned(problem: _Problem, p: Mapping[str, float]) -> Array:
    """Seconds to pad scales of x: columns of m scales that do not end on 16 bytes, where there is more than one column."""
    block = problem.form.activations.block
    if block is None or block[1] < 128:
        return np.zeros_like(problem.m)
    return np.where((problem.m % ALIGNED != 0) & (problem.k > block[1]), p["unaligned_us"] * MICROSECOND, 0.0)


def _fastest(use: Use, problem: _Problem, peak: float, p: Mapping[str, float]) -> _Kernel:
    """The kernel with the fastest tile and split of the menus."""
    gpu = use.gpu
    dram_rate = gpu.dram_bandwidth * p["bandwidth_efficiency"]
    rates = _Rates(
        sm=peak / gpu.sm_count * p["compute_efficiency"],
        dram=dram_rate,
        l2=max(problem.l2_bandwidth * p["l2_efficiency"], dram_rate),  # what DRAM gives comes through L2
        in_flight=p["in_flight_KiB"] * KIB,
    )
    l2 = known(gpu, "l2_capacity")
    cold = outgrows(problem.copies * problem.weights + problem.others, l2 * p["l2_share"])
    again = p["reread"] * outgrows(problem.weights + problem.m * problem.k * problem.act_bytes, l2)
    best: _Kernel | None = None
    splits = use.menus.get("split", (1,))
    for tile_m, tile_n, allowed in _tiles(use.menus, problem.m):
        dram = problem.weights * cold + problem.others + again * _rereads(problem, tile_m, tile_n)
        for split in splits:
            may = allowed & ((split == min(splits)) | (problem.k >= split * SHORTEST_K))
            kernel = _candidate(problem, rates, p, (tile_m, tile_n, split), dram, cold).where(may)
            best = kernel if best is None else best.or_faster(kernel)
    if best is None:
        mend = f"Menus must hold a tile of tile_m x tile_n <= {LARGEST_TILE}."
        raise PerfModelError("no tile of the menus fits into an SM", field="menus.tile_n", value=dict(use.menus), mend=mend)
    return best


def _tiles(menus: Mapping[str, tuple[int, ...]], m: Array) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
    """(tile_m, tile_n, rows of [n] that may take it).

    `tile_m`: whichever is fastest. `tile_m_by_size` instead: the smallest that holds m, or the largest, as CUTLASS dispatchers choose.
    """
    by_size = menus.get("tile_m_by_size")
    heights = sorted(by_size or menus["tile_m"])
    for lower, tile_m in zip([0, *heights], heights, strict=False):
        allowed = np.ones(len(m), dtype=bool)
        if by_size:
            allowed = (m > lower) & ((m <= tile_m) | (tile_m == heights[-1]))
        for tile_n in menus["tile_n"]:
            if tile_m * tile_n <= LARGEST_TILE:
                yield tile_m, tile_n, allowed


def _candidate(problem: _Problem, rates: _Rates, p: Mapping[str, float], tile: tuple[int, int, int], dram: Array, cold: Array) -> _Kernel:
    """One tile and split: `dram` bytes, of the weights the share `cold` among them."""
    tile_m, tile_n, split = tile
    sms, depth = problem.gpu.sm_count, problem.k / split
    blocks = np.ceil(problem.m / tile_m) * np.ceil(problem.n / tile_n) * split
    waves = blocks / sms
    waves = np.maximum(waves + p["wave_rounding"] * (np.ceil(waves - 1e-9) - waves), 1.0)
    fed = (tile_m * problem.act_bytes + tile_n * problem.weight_bytes) / (rates.l2 / sms)
    compute = waves * (depth * max(2.0 * tile_m * tile_n / rates.sm, fed) + p["tile_fixed_us"] * MICROSECOND)
    strip = depth * (tile_n * problem.weight_bytes + np.minimum(tile_m, problem.m) * problem.act_bytes)
    flying = np.minimum(blocks, sms) * np.minimum(rates.in_flight, strip)
    latency = cold * known(problem.gpu, "dram_latency") + (1.0 - cold) * known(problem.gpu, "l2_latency")
    memory = smooth_maximum(dram / rates.dram + problem.weights * (1.0 - cold) / rates.l2, problem.weights * latency / flying, FULL)
    total = smooth_maximum(compute, memory, p["overlap_exponent"]) + depth * (p["depth_ps"] * PICOSECOND)
    if split > 1:
        total = total + p["split_us"] * MICROSECOND + problem.m * problem.n * (2.0 * FP32 * split / rates.l2)
    return _Kernel(total, compute, memory)


def _rereads(problem: _Problem, tile_m: int, tile_n: int) -> Array:
    """Bytes of operands that all waves read beyond the first time, where a wave covers a square of tiles."""
    tiles = np.ceil(problem.m / tile_m) * np.ceil(problem.n / tile_n)
    side = np.sqrt(np.minimum(tiles, problem.gpu.sm_count) * (tile_m * tile_n))
    operands = problem.weights + problem.m * problem.k * problem.act_bytes
    reads = problem.flops * (np.sqrt(problem.weight_bytes * problem.act_bytes) / side)
    more: Array = np.maximum(reads - operands, 0.0)
    return more


def outgrows(size: Array, capacity: float) -> Array:
    """Share of `size` bytes, used in turn, that is gone from a cache of `capacity` before it is used again: 1/2 at the capacity."""
    result: Array = 1.0 / (1.0 + (capacity / size) ** 4)
    return result


SIZES = ("m", "n", "k", "copies", "eager")
MENUS = ("tile_m", "tile_m_by_size", "tile_n", "split")
GEMM = Op("gemm", SIZES, "m", MENUS, PARAMETERS, gemm_time, needs=(("tile_m", "tile_m_by_size"), ("tile_n",)))
