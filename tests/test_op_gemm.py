"""The dense GEMM: times worked out by hand, floors, and the laws of each mechanism."""

import numpy as np
import pytest

from perfmodel.errors import PerfModelError
from perfmodel.hardware import load_gpu
from perfmodel.ops.gemm import CALLS, GEMM, HEATED, PARAMETERS, gemm_time, outgrows
from perfmodel.ops.op import FIELDS, Use, known

H200 = load_gpu("h200")  # 989.4 TFLOPS bf16, 4.8 TB/s, 132 SMs, 60 MiB of L2
SIZES = ("m", "n", "k", "copies", "eager")
ONE_TILE = {"tile_m": (128,), "tile_n": (128,)}
IDEAL = {
    "fixed_us": 2.0, "depth_ps": 0.0, "tile_fixed_us": 1.0, "compute_efficiency": 1.0, "bandwidth_efficiency": 1.0,
    "overlap_exponent": 30.0, "wave_rounding": 1.0, "l2_efficiency": 2.0, "l2_share": 1e-3, "in_flight_KiB": 2000.0, "reread": 0.0,
    "split_us": 1.0, "slow_down": 0.0, "quantise_bandwidth": 1.0, "row_ns": 0.0, "unaligned_us": 0.0, "host_us": 0.0,
}  # fmt: skip


def us(m, n, k, *, copies=6, eager=0, form="bf16", menus=ONE_TILE, gpu=H200, **parameters):
    """Microseconds of one GEMM."""
    sizes = {name: np.array([float(value)]) for name, value in zip(SIZES, (m, n, k, copies, eager), strict=True)}
    return float(gemm_time(Use(gpu, form, menus), sizes, IDEAL | parameters).total[0]) * 1e6


def test_ideal_parameters_are_all_there_are():
    assert set(IDEAL) == set(PARAMETERS) == set(GEMM.parameters)


def test_one_wave_by_hand():
    # 66 x 2 tiles of 128 x 128 fill 132 SMs once, each at 989.4e12 / 132 FLOP/s
    mma = 2 * 128 * 128 * 8192 / (989.4e12 / 132) * 1e6
    assert us(128 * 66, 256, 8192) == pytest.approx(2.0 + 1.0 + mma, rel=1e-3)


def test_a_tile_too_many_costs_a_wave_as_far_as_waves_are_whole():
    full, more = us(128 * 66, 256, 8192), us(128 * 66 + 1, 256, 8192)
    assert more - 2.0 == pytest.approx(2 * (full - 2.0), rel=1e-2)
    assert us(128 * 66 + 1, 256, 8192, wave_rounding=0.02) < full + 0.05 * (more - full)


def test_few_rows_wait_for_the_weights():
    read = (8192 * 8192 * 2 + 8192 * 2 * 2) / 4.8e12 * 1e6
    small = {"tile_m": (64,), "tile_n": (64,)}
    assert us(1, 8192, 8192, menus=small) == pytest.approx(2.0 + read, rel=0.02)
    assert us(1, 8192, 8192, menus=small, bandwidth_efficiency=0.5) == pytest.approx(2.0 + 2 * read, rel=0.02)


@pytest.mark.parametrize("form", ["bf16", "fp8", "fp8-block"])
def test_never_below_the_floor(form):
    rng = np.random.default_rng(0)
    sizes = {name: np.exp2(rng.integers(0, 16, 300)).astype(float) for name in ("m", "n", "k")}
    sizes |= {"copies": rng.integers(1, 7, 300).astype(float), "eager": np.zeros(300)}
    menus = {"tile_m": (64, 128), "tile_n": (64, 256), "split": (1, 4)}
    time = gemm_time(Use(H200, form, menus), sizes, IDEAL | {"l2_share": 1.0})
    peak = H200.peak_flops("bf16" if form == "bf16" else "fp8")
    assert np.all(time.total >= time.floor)
    assert np.all(time.floor >= 2 * sizes["m"] * sizes["n"] * sizes["k"] / peak)
    assert np.all(np.isfinite(time.total))


def test_the_floor_counts_what_l2_cannot_hold():
    sizes = {name: np.array([value]) for name, value in zip(SIZES, (1.0, 8192.0, 8192.0, 1e6, 0.0), strict=True)}
    floor = gemm_time(Use(H200, "bf16", ONE_TILE), sizes, IDEAL).floor[0]
    assert floor == pytest.approx(8192 * 8192 * 2 / 4.8e12, rel=1e-3)
    sizes["copies"] = np.array([1.0])
    small = gemm_time(Use(H200, "bf16", ONE_TILE), sizes | {"n": np.array([256.0])}, IDEAL).floor[0]
    assert small == pytest.approx(2 * 8192 * 256 / 989.4e12)


def test_weights_that_stay_in_l2_are_faster():
    hot, cold = us(16, 4096, 4096, copies=1, l2_share=1.0), us(16, 4096, 4096, copies=100, l2_share=1.0)
    assert hot < cold
    assert us(16, 16384, 16384, copies=1, l2_share=1.0) == pytest.approx(us(16, 16384, 16384, copies=100, l2_share=1.0), rel=0.01)


def test_half_is_gone_at_the_capacity():
    assert outgrows(np.array([1.0, 1e-3, 1e3]), 1.0) == pytest.approx([0.5, 0.0, 1.0], abs=1e-9)


def test_what_is_in_flight_bounds_few_blocks():
    assert us(1, 256, 8192, in_flight_KiB=8.0) > 2 * us(1, 256, 8192, in_flight_KiB=64.0)


def test_split_k_helps_few_tiles_of_great_depth_and_is_not_taken_where_it_does_not():
    split = {**ONE_TILE, "split": (1, 8)}
    assert us(64, 256, 16384, menus=split) < 0.5 * us(64, 256, 16384)
    assert us(4096, 4096, 512, menus=split) == us(4096, 4096, 512)
    assert us(16, 128, 256, menus={**ONE_TILE, "split": (1, 32)}) == us(16, 128, 256)  # slices of 8 are too short


def test_more_choice_is_never_slower():
    wide = {"tile_m": (64, 128, 256), "tile_n": (64, 128, 256)}
    for m in (1, 65, 257, 4096):
        assert us(m, 4096, 4096, menus=wide) <= us(m, 4096, 4096)


def test_tiles_hold_at_most_the_accumulators_that_fit():
    assert us(4096, 4096, 4096, menus={"tile_m": (128, 256), "tile_n": (256,)}) == us(
        4096, 4096, 4096, menus={"tile_m": (128,), "tile_n": (256,)}
    )


def test_a_dispatcher_by_size_takes_the_smallest_tile_that_holds_m():
    by_size = {"tile_m_by_size": (64, 128), "tile_n": (128,)}
    for m, tile in ((1, 64), (64, 64), (65, 128), (5000, 128)):
        assert us(m, 4096, 4096, menus=by_size) == us(m, 4096, 4096, menus={"tile_m": (tile,), "tile_n": (128,)})


def test_quantisation_is_of_eight_bits_and_fewer():
    assert us(4096, 1024, 1024, row_ns=2.0) == us(4096, 1024, 1024)
    assert us(4096, 1024, 1024, form="fp8", row_ns=2.0) - us(4096, 1024, 1024, form="fp8") == pytest.approx(4096 * 2e-3)
    bytes_ = 4096 * 1024 * 3
    slower = us(4096, 1024, 1024, form="fp8", quantise_bandwidth=0.5) - us(4096, 1024, 1024, form="fp8")
    assert slower == pytest.approx(bytes_ / 4.8e12 * 1e6)


def test_scales_that_do_not_end_on_16_bytes_cost_a_kernel():
    cost = lambda m, k, form="fp8-block": us(m, 1024, k, form=form, unaligned_us=3.0) - us(m, 1024, k, form=form)  # noqa: E731
    assert cost(5, 1024) == pytest.approx(3.0)
    assert cost(8, 1024) == cost(5, 128) == cost(5, 1024, "fp8") == 0


def test_an_eager_call_takes_the_longer_of_cpu_and_gpu():
    assert us(8, 1024, 1024, eager=1, host_us=100.0) == pytest.approx(100.0, rel=1e-3)
    assert us(8192, 8192, 8192, eager=1, host_us=100.0) == pytest.approx(us(8192, 8192, 8192), rel=1e-3)
    assert us(8, 1024, 1024, eager=0, host_us=100.0) < 10


def test_load_that_lasts_slows_compute_down():
    cool = us(8192, 8192, 8192, copies=1)
    hot = us(8192, 8192, 8192, copies=1, slow_down=0.2)
    load = CALLS * (cool - 2.0) * 1e-6
    assert (hot - cool) / (cool - 2.0) == pytest.approx(0.2 * load / (load + HEATED), rel=0.01)


def test_rereads_add_bytes_where_operands_outgrow_l2():
    assert us(256, 256, 256, reread=4.0) == pytest.approx(us(256, 256, 256))
    assert us(16384, 16384, 16384, reread=4.0) > us(16384, 16384, 16384)


def test_parameters_that_are_better_are_never_slower():
    for name, better in (("bandwidth_efficiency", 1.0), ("compute_efficiency", 1.0), ("in_flight_KiB", 500.0), ("l2_efficiency", 2.0)):
        for m in (1, 100, 3000):
            assert us(m, 3000, 3000, **{name: better}) <= us(m, 3000, 3000, **{name: 0.5 * better})


def test_many_rows_at_once_are_each_as_alone():
    sizes = {"m": [1, 300, 5000], "n": [512, 4096, 64], "k": [64, 8192, 3000], "copies": [1, 5, 6], "eager": [0, 1, 0]}
    use = Use(H200, "fp8-block", {"tile_m": (64, 128), "tile_n": (128,), "split": (1, 2)})
    every = gemm_time(use, {name: np.array(values, float) for name, values in sizes.items()}, IDEAL).total
    for i in range(3):
        one = gemm_time(use, {name: np.array([float(values[i])]) for name, values in sizes.items()}, IDEAL).total
        assert one[0] == every[i]


def test_what_a_gpu_lacks_is_named():
    bare = H200.model_copy(update={"memory": H200.memory.model_copy(update={"latency_ns": None})})
    with pytest.raises(PerfModelError, match=r"memory\.latency_ns"):
        us(1, 1024, 1024, gpu=bare)


@pytest.mark.parametrize("fact", FIELDS)
def test_what_a_gpu_lacks_is_named_as_its_file_would_have_it(fact):
    section, field = FIELDS[fact].split(".")
    bare = H200.model_copy(update={section: getattr(H200, section).model_copy(update={field: None})})
    assert known(H200, fact) == getattr(H200, fact)
    with pytest.raises(PerfModelError) as caught:
        known(bare, fact)
    assert caught.value.field == FIELDS[fact]
    assert FIELDS[fact] in caught.value.mend


def test_gb10_has_no_latency_yet():
    with pytest.raises(PerfModelError, match=r"memory\.latency_ns: the file of gb10"):
        us(1, 1024, 1024, gpu=load_gpu("gb10"))


def test_l2_is_never_slower_than_the_dram_behind_it():
    warm = {"menus": {"tile_m": (64,), "tile_n": (64,)}, "copies": 1, "l2_share": 2.0}
    as_dram = H200.dram_bandwidth / H200.l2_bandwidth
    assert us(1, 4096, 2048, l2_efficiency=0.05, **warm) == pytest.approx(us(1, 4096, 2048, l2_efficiency=as_dram, **warm))
    assert us(1, 4096, 2048, l2_efficiency=1.0, **warm) < us(1, 4096, 2048, l2_efficiency=as_dram, **warm)
