"""Collectives: traffic worked out by hand, laws of the model, and how small tables are drawn from and fitted."""

import numpy as np
import pytest

from perfmodel.errors import PerfModelError
from perfmodel.hardware import load_gpu
from perfmodel.ops.catalog import get_op, op_profiles, predict_op
from perfmodel.ops.collectives import COLLECTIVES, PARAMETERS, by_ranks, collective_time, crowd, least_traffic, own_time, traffic
from perfmodel.ops.op import Use
from perfmodel.profiles.op_profile import load_op_profile
from perfmodel.validation.calibrate_ops import calibrate_ops, refitted_op
from perfmodel.validation.calibrate_scarce import SHARE, _interval, spread_draw
from perfmodel.validation.measurements import Labels, Measurements

MIB = 2.0**20
EXPECTED = {name: one.expected for name, one in PARAMETERS.items()}
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL = {"passes": (2,)}, {"passes": (1,)}, {"passes": (1,), "direct": (1,)}


def use(gpu="h100", menus=ALL_REDUCE):
    return Use(load_gpu(gpu), "bf16", menus)


def sizes(bytes_, ranks, eager=0):
    bytes_, ranks, eager = np.broadcast_arrays(np.asarray(bytes_, float), np.asarray(ranks, float), np.asarray(eager, float))
    return {"bytes": bytes_, "ranks": ranks, "eager": eager}


def time(bytes_, ranks, *, gpu="h100", menus=ALL_REDUCE, eager=0, **changed):
    return collective_time(use(gpu, menus), sizes(bytes_, ranks, eager), EXPECTED | changed)


def test_a_ring_all_reduce_sends_2_p_minus_1_over_p_of_the_buffer_and_an_all_gather_half_of_that():
    buffer, ranks = np.full(3, 8e6), np.array([2.0, 4.0, 8.0])
    assert traffic(use(), buffer, ranks).tolist() == [8e6, 12e6, 14e6]
    assert traffic(use(menus=ALL_GATHER), buffer, ranks).tolist() == [4e6, 6e6, 7e6]


def test_a_large_buffer_takes_its_traffic_over_the_bandwidth():
    gib = 2.0**30  # 2 (8 - 1) / 8 GiB at 0.8 x 450 GB/s, nothing else that counts
    t = time([gib], [8], simple_us=0.5, simple_hop_us=0.01, local_GBps=1e4, overlap_exponent=1.0).total
    assert t == pytest.approx([1.75 * gib / (0.8 * 450e9)], rel=0.01)


def test_a_small_buffer_takes_its_hops():
    t = time([256.0], [8], overlap_exponent=1.0).total  # 5 us and 2 x 7 hops of 1 us
    assert t == pytest.approx([19e-6], rel=0.01)
    assert time([256.0], [8], menus=ALL_GATHER, overlap_exponent=1.0).total == pytest.approx([12e-6], rel=0.01)


def test_the_floor_is_the_buffer_once_where_the_switch_adds_up_and_the_ring_on_pcie():
    buffer, ranks = np.array([8e6]), np.array([8.0])
    assert least_traffic(use("h100"), buffer, ranks) == 8e6
    assert least_traffic(use("l40s"), buffer, ranks) == 14e6
    assert time([450e9 * 1e-3], [8]).floor == pytest.approx([1e-3])


@pytest.mark.parametrize("gpu", ["a100-80gb", "h100", "b200", "gb300", "l40s", "rtx-pro-6000"])
def test_no_prediction_is_under_the_floor(gpu):
    every = sizes(2.0 ** np.arange(8, 31)[:, None], np.array([2.0, 4.0, 8.0]))
    flat = {name: column.ravel() for name, column in every.items()}
    for profile in op_profiles(COLLECTIVES):
        for fit in profile.fits:
            if load_gpu(gpu).architecture in fit.architectures:
                predicted, floor, low, high = predict_op(COLLECTIVES, load_gpu(gpu), fit.formats[0], fit, flat)
                assert (predicted >= floor).all()
                assert (low >= floor).all()
                assert (high > predicted).all()


@pytest.mark.parametrize("menus", [ALL_REDUCE, ALL_GATHER, ALL_TO_ALL])
@pytest.mark.parametrize("gpu", ["h100", "l40s"])
def test_more_bytes_never_take_less(gpu, menus):
    t = time(np.linspace(2**8, 2**27, 4000), 4, gpu=gpu, menus=menus).total
    assert (np.diff(t) >= 0).all()


@pytest.mark.parametrize("profile", [profile for profile in op_profiles(COLLECTIVES) if profile.id.startswith("nccl")], ids=lambda p: p.id)
def test_more_bytes_never_take_less_by_the_bundled_fits_of_nccl(profile):
    ids = {"ampere": "a100-80gb", "hopper": "h100", "blackwell": "b200", "ada": "l40s", "blackwell-rtx": "rtx-pro-6000"}
    for fit in profile.fits:
        for ranks in (2, 8):
            column = sizes(np.geomspace(2**8, 2**30, 2000), ranks)
            assert (np.diff(predict_op(COLLECTIVES, load_gpu(ids[fit.architectures[0]]), "fp16", fit, column)[0]) >= 0).all()


@pytest.mark.parametrize("gpu", ["b200", "gb200", "b300", "gb300"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_end_of_vllm_s_own_kernels_is_no_cliff(gpu, ranks):
    fit = load_op_profile("vllm-all-reduce-0.14").find_fit("blackwell", "bf16")
    column = sizes(np.geomspace(2**14, 2**27, 4000), ranks)
    predicted = predict_op(COLLECTIVES, load_gpu(gpu), "bf16", fit, column)[0]
    assert (predicted[1:] > 0.95 * predicted[:-1]).all()  # NCCL takes over where it is about as fast


def test_more_ranks_never_take_less():
    t = time(MIB, [2, 3, 4, 6, 8]).total
    assert (np.diff(t) > 0).all()


def test_more_bandwidth_is_never_slower():
    assert (time(2.0 ** np.arange(8, 31), 8, gpu="b200").total <= time(2.0 ** np.arange(8, 31), 8, gpu="h100").total).all()


def test_one_rank_costs_nothing():
    alone = time([256.0, MIB], [1, 1], eager=1)
    assert alone.total.tolist() == [0.0, 0.0]
    assert alone.floor.tolist() == [0.0, 0.0]


def test_the_switch_reduces_from_the_ranks_that_the_menu_says():
    ring = time(2.0**30, [4, 8]).total
    switched = time(2.0**30, [4, 8], menus=ALL_REDUCE | {"in_switch": (8,)}, in_switch_efficiency=0.9).total
    assert switched[0] == ring[0]
    assert switched[1] < ring[1]


def test_one_shot_reads_the_buffers_of_all_peers_and_two_shot_less():
    p = EXPECTED | {"own_efficiency": 0.5, "peer_efficiency": 0.5, "two_shot_efficiency": 0.5}
    p |= {"own_us": 4.0, "own_hop_us": 0.0, "two_shot_us": 1.0, "two_shot_hop_us": 0.0}
    menus = ALL_REDUCE | {"own_KiB": (8192, 8192, 8192), "one_shot_KiB": (8192, 512, 256)}
    t = own_time(use(menus=menus), np.array([131072.0, 1048576.0]), np.array([8.0, 8.0]), np.array([450e9, 450e9]), p)
    assert t == pytest.approx([4e-6 + 7 * 131072 / 225e9, 5e-6 + 1.75 * 1048576 / 225e9])


@pytest.mark.parametrize(
    ("gpu", "ranks", "bytes_", "own"),
    [
        ("h100", 8, MIB, True),
        ("h100", 8, 8 * MIB, False),
        ("gb200", 4, MIB, True),
        ("gb200", 8, MIB, False),
        ("l40s", 2, MIB, True),
        ("l40s", 4, MIB, False),
    ],
)
def test_own_kernels_end_at_their_size_at_the_node_and_at_two_ranks_on_pcie(gpu, ranks, bytes_, own):
    nccl = time([bytes_], [ranks], gpu=gpu).total[0]
    either = time([bytes_], [ranks], gpu=gpu, menus=ALL_REDUCE | {"own_KiB": (8192, 8192, 8192)}).total[0]
    assert (either != nccl) == own


def test_a_menu_by_ranks():
    menu = use(menus={"own_KiB": (1, 2, 3)})
    assert by_ranks(menu, "own_KiB", np.array([2.0, 4.0, 8.0])).tolist() == [1, 2, 3]
    assert by_ranks(menu, "symmetric_KiB", np.array([2.0])).tolist() == [0]


def test_the_host_hides_what_the_device_takes_and_a_copy_is_added():
    small, large = time([256.0, 2.0**30], 8, eager=1, host_us=100.0, nccl_host=1.0, copy_efficiency=1.0).total
    plain = time([2.0**30], 8).total[0]
    assert small == pytest.approx(100e-6, rel=0.01)
    assert large == pytest.approx(plain + 2 * 2.0**30 / load_gpu("h100").dram_bandwidth, rel=0.01)


def test_grace_is_the_slow_host():
    slow, fast = (time([256.0], 4, gpu=gpu, eager=1, host_us=100.0, slow_host=2.0).total[0] for gpu in ("gb200", "b200"))
    assert slow == pytest.approx(2 * fast, rel=0.01)


def test_pcie_slows_up_to_four_ranks_and_again_beyond():
    assert crowd(np.array([2.0, 4.0, 8.0]), {"crowding": 1.0, "far_crowding": 2.0}).tolist() == [1.0, 2.0, 8.0]


def test_ranks_beyond_the_domain_share_the_network():
    assert time([2.0**30], 16).floor == pytest.approx([2.0**30 / (8 * 50e9)])  # 8 network cards of 50 GB/s, less than 450 GB/s
    assert time([2.0**30], 16, gpu="gb200").floor == pytest.approx([2.0**30 / 900e9])  # within an NVL72
    with pytest.raises(PerfModelError, match="network"):
        time([MIB], 64, gpu="rtx-5090")


def measured(count=400):
    """Rows of an H100 whose times come from known parameters, with 2 % of noise."""
    rng = np.random.default_rng(1)
    column = {"bytes": 2 ** rng.integers(8, 30, count), "ranks": 2 ** rng.integers(1, 4, count), "eager": np.zeros(count, np.int64)}
    truth = time(column["bytes"].astype(float), column["ranks"].astype(float), menus=ALL_REDUCE | {"in_switch": (8,)}, fast_us=7.0)
    labels = {
        "gpu": Labels.of(["h100"] * count),
        "kernel": Labels.of(["nccl-all-reduce"] * count),
        "format": Labels.of(["fp16", "int8"] * (count // 2)),
        "source": Labels.of(["nccl 2.27 NCCL all_reduce"] * count),
    }
    noise = np.exp(0.02 * rng.standard_normal(count))
    return Measurements("collectives", "made", np.arange(count), labels, column, truth.total * noise)


def test_a_fit_of_few_rows_for_both_formats_finds_what_made_them():
    rows = measured()
    (fitted,) = calibrate_ops(rows, np.ones(len(rows), bool))
    assert fitted.fit.formats == ("fp16", "int8")
    assert fitted.rows == round(SHARE * 400**0.35)
    assert fitted.fit.parameters["fast_us"] == pytest.approx(7.0, rel=0.15)
    assert "crowding" not in fitted.fit.parameters  # no row of an NVLink GPU feels it
    held = predict_op(COLLECTIVES, load_gpu("h100"), "int8", fitted.fit, {name: c.astype(float) for name, c in rows.sizes.items()})
    assert np.median(np.abs(held[0] / rows.latency - 1)) < 0.03
    inside = (held[2] <= rows.latency) & (rows.latency <= held[3])
    assert 0.6 < inside.mean() < 0.99
    again = refitted_op(load_op_profile("nccl-all-reduce"), [fitted])
    assert again.find_fit("hopper", "int8") == fitted.fit
    assert again.find_fit("ampere", "int8") is not None


def test_the_draw_spreads_over_sizes_and_is_always_the_same():
    rows = measured()
    drawn = spread_draw(get_op("collectives"), rows, np.arange(len(rows)))
    assert len(set(drawn.tolist())) == len(drawn) == round(SHARE * 400**0.35)
    assert (drawn == spread_draw(get_op("collectives"), rows, np.arange(len(rows)))).all()
    assert np.bincount(rows.sizes["ranks"][drawn], minlength=9)[[2, 4, 8]].min() >= len(drawn) // 4


def test_an_interval_of_nine_rows_is_their_extremes():
    ratios = np.linspace(0.8, 1.2, 9)
    assert _interval(np.stack([ratios, ratios]), 0.5).low == pytest.approx(0.8)
    assert _interval(np.stack([ratios, ratios**2]), 1.0).high == pytest.approx(1.44)
