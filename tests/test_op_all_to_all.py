"""Dispatch and combine of expert parallelism: traffic worked out by hand, laws, and the loader on small files."""

import numpy as np
import pytest

from perfmodel.errors import PerfModelError
from perfmodel.hardware import load_gpu
from perfmodel.ops.all_to_all import ALL_TO_ALL, PARAMETERS, all_to_all_time, destinations
from perfmodel.ops.catalog import op_profiles, predict_op
from perfmodel.ops.op import Use
from perfmodel.validation.silicon import all_to_all, parts
from perfmodel.validation.silicon.validate import validate_silicon

EXPECTED = {name: one.expected for name, one in PARAMETERS.items()}
ONCE, EACH = {}, {"each": (1,)}


def sizes(tokens, ranks=8, *, topk=8, sms=0, hidden=7168):
    tokens = np.atleast_1d(np.asarray(tokens, float))
    more = {"hidden": hidden, "topk": topk, "experts": 256, "ranks": ranks, "sms": sms}
    return {"tokens": tokens} | {name: np.full_like(tokens, value) for name, value in more.items()}


def time(tokens, ranks=8, *, gpu="h100", form="fp8", menus=ONCE, topk=8, sms=0, **changed):
    return all_to_all_time(Use(load_gpu(gpu), form, menus), sizes(tokens, ranks, topk=topk, sms=sms), EXPECTED | changed)


def test_a_token_goes_once_to_each_rank_that_has_one_of_its_experts_or_once_for_each_expert():
    topk, ranks = np.array([1.0, 2.0]), np.array([8.0, 8.0])
    assert destinations(topk, ranks, ranks - 1, each=False) == pytest.approx([7 / 8, 7 * (1 - (7 / 8) ** 2)])
    assert destinations(topk, ranks, ranks - 1, each=True) == pytest.approx([7 / 8, 14 / 8])


def test_the_floor_is_the_traffic_over_the_link():
    assert time(1000, topk=1).floor == pytest.approx([1000 * 7168 * 7 / 8 / 450e9])
    assert time(1000, topk=1, form="bf16").floor == pytest.approx([1000 * 2 * 7168 * 7 / 8 / 450e9])


def test_few_sms_send_at_their_own_rate():
    many = {"local_GBps": 1e4, "token_us": 0.001, "overlap_exponent": 6.0, "sm_GBps": 10.0}
    t = time(1e6, topk=1, sms=4, **many).total  # 40 GB/s
    assert t == pytest.approx([1e6 * 7168 * 7 / 8 / 40e9], rel=0.03)
    assert time(1e6, topk=1, sms=8, **many).total < 0.55 * t


def test_few_tokens_take_the_start():
    start = 20 + 0.5 * 7 + 0.02 * 256 + 0.3 * 7  # us: fixed, 7 x 1024 values, 256 experts, 7 other ranks
    assert time(1).total == pytest.approx([start * 1e-6], rel=0.05)
    assert time(1, gpu="gb200", grace_factor=2.0).total == pytest.approx([(start + 20) * 1e-6], rel=0.05)


@pytest.mark.parametrize("menus", [ONCE, EACH])
def test_laws(menus):
    tokens = np.arange(1, 20000)
    t = time(tokens, menus=menus).total
    assert (np.diff(t) > 0).all()
    assert (t >= time(tokens, menus=menus).floor).all()
    assert (time(tokens, gpu="b200", menus=menus).total <= t).all()
    assert (time(tokens, menus=menus, form="bf16").total >= t).all()


def test_beyond_the_domain_a_token_crosses_the_network_once_for_each_node():
    assert time(1000, 16, topk=1).floor == pytest.approx([1000 * 7168 / 2 / 50e9])  # half of the tokens to the other node, 50 GB/s
    assert time(1000, 16, gpu="gb200", topk=1).floor == pytest.approx([1000 * 7168 * 15 / 16 / 900e9])
    with pytest.raises(PerfModelError, match="network"):
        time(1000, 64, gpu="rtx-5090")


def test_routing_that_reaches_few_nodes_spares_the_network():
    few = time(1e6, 64, menus={"node_groups": (4,)}).floor
    assert few == pytest.approx([1e6 * 7168 * 4 * (1 - 0.75**8) * 7 / 8 / 50e9])  # of 8 nodes it reaches 4, and 1 in 8 is its own
    assert few < time(1e6, 64).floor


def test_no_bundled_prediction_is_under_the_floor():
    for profile in op_profiles(ALL_TO_ALL):
        for fit in profile.fits:
            gpu = load_gpu({"hopper": "h100", "blackwell": "gb200"}[fit.architectures[0]])
            predicted, floor, low, high = predict_op(ALL_TO_ALL, gpu, fit.formats[0], fit, sizes(2.0 ** np.arange(18)))
            assert (predicted >= floor).all()
            assert (low >= floor).all()
            assert (high > predicted).all()


def write(folder, gpu, framework, version, name, columns):
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    path = folder / gpu / "comm" / framework / version / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """One file of each of the three tables."""
    shape = {"hidden_size": [7168, 7168], "num_experts": [256, 256]}
    moe = {"comm_backend": ["trtllm_deepep_ht", "deepep_ll"], "phase": ["combine", "dispatch"], "comm_dtype": ["nvfp4", "default"]}
    moe |= shape | {"topk": [8, 8], "ep_size": [8, 4], "num_tokens": [16, 32], "sms": [0, 0], "latency": [60.0, 70.0]}
    write(tmp_path, "b200_sxm", "trtllm", "1.3.0", "moe_a2a_perf", moe)
    deepep = shape | {"node_num": [1, 2], "num_token": [1, 2], "num_topk": [8, 8]}
    normal = {f"{phase}_sms": [20, 8] for phase in ("dispatch", "combine")} | {"dispatch_transmit_us": [30.0, 40.0]}
    write(tmp_path, "h100_sxm", "sglang", "0.5.12", "wideep_deepep_normal_perf", deepep | normal | {"combine_transmit_us": [50.0, 60.0]})
    low = {"dispatch_avg_t_us": [13.0, 14.0], "combine_avg_t_us": [15.0, 16.0]}
    write(tmp_path, "gb200", "sglang", "0.5.12", "wideep_deepep_ll_perf", deepep | low)
    monkeypatch.setattr(parts, "data_folder", lambda: tmp_path)
    return tmp_path


def test_rows_are_told_in_our_words_and_a_row_of_both_phases_counts_twice(data):
    rows = all_to_all.read_all_to_all()
    label = {name: [column[i] for i in range(len(rows))] for name, column in rows.labels.items()}
    assert label["kernel"] == [
        *("deepep-ht-trtllm-combine", "deepep-ll-vllm-dispatch"),
        *("deepep-normal-dispatch", "deepep-internode-dispatch", "deepep-normal-combine", "deepep-internode-combine"),
        *("deepep-ll-dispatch", "deepep-ll-dispatch", "deepep-ll-combine", "deepep-ll-combine"),
    ]
    assert label["format"] == ["bf16", "fp8", "fp8", "fp8", "bf16", "bf16", "fp8", "fp8", "bf16", "bf16"]
    assert rows.sizes["ranks"].tolist() == [8, 4, 8, 16, 8, 16, 4, 8, 4, 8]
    assert rows.sizes["sms"].tolist() == [0, 0, 20, 8, 20, 8, 0, 0, 0, 0]
    assert rows.latency[[0, 2, 5, 9]] == pytest.approx([60e-6, 30e-6, 60e-6, 16e-6])


def test_all_rows_are_scored(data):
    held = validate_silicon("a2a").held
    assert [held.flags[i] for i in range(10)] == [""] * 10
    assert abs(held.predicted / held.measured - 1).max() < 1.5
