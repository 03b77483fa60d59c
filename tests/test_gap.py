import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel
from perfmodel.causes import NAMES
from perfmodel.errors import PerfModelError
from perfmodel.scenario import resolve

TOKENS = [1, 2, 8, 32, 128, 512, 2048, 8192, 16384]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["gpt-oss-20b", "deepseek-v3", "qwen3-30b-a3b", "layer:hidden=1000,inter=333,experts=12,topk=5,gated=false"]),
    st.sampled_from([("b200", "nvfp4"), ("h200", "mxfp4-w4a16"), ("b300", "mxfp4-w4a8"), ("a100-80gb", "bf16"), ("rtx-5090", "nvfp4")]),
    st.sampled_from(["auto", "generic-fused", "generic-unfused", "ideal"]),
    st.sampled_from(["balanced", "uniform", "powerlaw:1.2", "zipf:1", "active:8"]),
    st.lists(st.integers(1, 100_000), min_size=1, max_size=4),
    st.sampled_from(["graph", "eager", "persistent"]),
)
def test_losses_add_up_and_none_is_negative(model, where, kernel, routing, tokens, launch):
    gpu, fmt = where
    result = perfmodel.gap(model, gpu, format=fmt, kernel=kernel, routing=routing, tokens=tokens, launch=launch)
    for row in result["rows"]:
        total = row["ideal_us"] + sum(x["us"] for x in row["losses"])
        assert total == pytest.approx(row["latency_us"], rel=1e-9)
        assert all(x["us"] >= -1e-9 and x["saves_us"] >= 0 and x["why"] and x["cure"] for x in row["losses"])
        assert sum(op["us"] for op in row["ops"]) == pytest.approx(row["latency_us"], rel=1e-9)
        assert row["interval_us"][0] <= row["latency_us"] <= row["interval_us"][1]
        assert row["floor_us"] <= row["latency_us"]
        assert 0 < row["tflops"] <= result["peak_tflops"]


def test_causes_come_in_the_order_of_the_contract():
    row = perfmodel.gap("gpt-oss-20b", "b200", tokens=64)["rows"][0]
    assert [x["cause"] for x in row["losses"]] == list(NAMES.values())


def test_what_one_cause_saves_is_the_latency_without_it():
    graph = perfmodel.gap("gpt-oss-20b", "b200", format="nvfp4", kernel="trtllm-gen", tokens=64)["rows"][0]
    launch = next(x for x in graph["losses"] if x["cause"] == "launch and sync")
    assert launch["us"] == pytest.approx(launch["saves_us"])  # nothing overlaps it


def test_small_batches_wait_for_weights_and_large_ones_for_tensor_cores():
    rows = perfmodel.gap("deepseek-v3", "b200", format="nvfp4", kernel="trtllm-gen", tokens=[64, 16384 * 4])["rows"]
    assert [row["bound"] for row in rows] == ["weights", "compute"]
    assert rows[0]["arithmetic_intensity"] < rows[0]["ridge"] < rows[1]["arithmetic_intensity"]


def test_against_another_peak_adds_a_cause_and_keeps_the_sum():
    result = perfmodel.gap("gpt-oss-20b", "h200", format="mxfp4-w4a16", tokens=[64, 4096], against=9000)
    assert result["peak_tflops"] == 9000
    for row in result["rows"]:
        assert row["losses"][0]["cause"] == "format not native"
        assert row["losses"][0]["us"] == pytest.approx(row["flops"] / 989.4e12 * 1e6 - row["ideal_us"])
        assert row["ideal_us"] + sum(x["us"] for x in row["losses"]) == pytest.approx(row["latency_us"], rel=1e-9)
    with pytest.raises(PerfModelError, match="989"):
        perfmodel.gap("gpt-oss-20b", "h200", format="mxfp4-w4a16", against=500)


def test_scales_of_nvfp4_are_an_eighth_of_the_values():
    moved = perfmodel.gap("deepseek-v3", "b200", format="nvfp4", tokens=64)["rows"][0]["dram_bytes"]
    assert moved["scales"] == pytest.approx(moved["weights"] / 8)


def test_group_limited_models_route_by_their_own_groups():
    assert perfmodel.gap("deepseek-v3", "b200", tokens=1)["routing"] == "group-limited:8/4"
    assert perfmodel.gap("gpt-oss-20b", "b200", tokens=1)["routing"] == "uniform"


def test_rows_keep_the_order_of_the_tokens_when_kernels_differ():
    rows = perfmodel.gap("deepseek-v3", "b200", format="nvfp4", tokens=[8192, 1, 512])["rows"]
    assert [row["tokens"] for row in rows] == [8192, 1, 512]
    assert all(row["kernel"] != "auto" for row in rows)


def test_auto_is_the_fastest_of_the_measured():
    measured = [profile.id for profile in resolve("b200", "nvfp4", "auto").profiles]
    assert {"trtllm-cutlass", "trtllm-gen"} < set(measured)
    auto, *others = (perfmodel.gap("deepseek-v3", "b200", format="nvfp4", kernel=k, tokens=TOKENS)["rows"] for k in ("auto", *measured))
    for row, *each in zip(auto, *others, strict=True):
        assert row["latency_us"] == min(one["latency_us"] for one in each)


@pytest.mark.parametrize(
    ("model", "gpu", "options"),
    [
        ("gpt-oss-20b", "b20", {}),
        ("gpt-os-20b", "b200", {}),
        ("gpt-oss-20b", "a100-80gb", {"format": "nvfp4"}),
        ("gpt-oss-20b", "b200", {"tokens": 0}),
        ("gpt-oss-20b", "b200", {"tokens": []}),
        ("gpt-oss-20b", "b200", {"tokens": [1.5]}),
        ("gpt-oss-20b", "b200", {"tokens": [True]}),
        ("gpt-oss-20b", "b200", {"ep": 7}),
        ("gpt-oss-20b", "b200", {"ep": 0}),
        ("gpt-oss-20b", "b200", {"ep": -8}),
        ("gpt-oss-20b", "b200", {"tp": 7}),
        ("gpt-oss-20b", "b200", {"launch": "grph"}),
        ("gpt-oss-20b", "a100-80gb", {"launch": "pdl"}),
        ("gpt-oss-20b", "b200", {"comm": "yes"}),
        ("gpt-oss-20b", "b200", {"against": float("nan")}),
        ("gpt-oss-20b", "b200", {"redundant": 8}),
        ("gpt-oss-20b", "b200", {"placement": "best"}),
        ("layer:hidden=1024", "b200", {}),
        ("layer:hidden=1024,inter=512,experts=4,topk=8", "b200", {}),
        ("layer:", "b200", {}),
        ("gpt-oss-20b", "b200", {"changes": ["memory.bandwith_GBps=1"]}),
        ("gpt-oss-20b", "b200", {"tokens": 2**31}),
    ],
)
def test_bad_calls_name_the_field(model, gpu, options):
    with pytest.raises(PerfModelError) as error:
        perfmodel.gap(model, gpu, **options)
    assert len(str(error.value)) < 1500


def test_what_ifs_change_the_answer_and_say_what_they_rescaled():
    base = perfmodel.gap("deepseek-v3", "b200", format="nvfp4", kernel="generic-fused", tokens=64)
    more = perfmodel.gap("deepseek-v3", "b200", format="nvfp4", kernel="generic-fused", tokens=64, changes=["memory.bandwidth_GBps=16000"])
    assert more["rows"][0]["latency_us"] < base["rows"][0]["latency_us"]
    half = perfmodel.gap("deepseek-v3", "b200", format="nvfp4", tokens=64, changes=["compute.sm_count=74"])
    assert half["peak_tflops"] == pytest.approx(4500, rel=0.03)
    assert half["notes"]


def test_published_regimes_of_the_b200_table():
    # SGLang rows of the published table (Hugging Face, apsys/blackwell-nvfp4-comparison). Nothing is fitted to it.
    result = perfmodel.gap(
        "layer:hidden=2880,inter=7680,experts=32,topk=4",
        "b200",
        format="nvfp4",
        kernel="generic-unfused",
        launch="eager",
        tokens=[1, 128, 4096],
    )
    for row, measured in zip(result["rows"], [206.9, 433.0, 1722.9], strict=True):
        assert row["latency_us"] == pytest.approx(measured, rel=0.35)


def test_latency_rises_with_tokens_for_the_cited_cases():
    for kernel in ("trtllm-gen", "trtllm-cutlass"):
        rows = perfmodel.gap("gpt-oss-20b", "b200", format="nvfp4", kernel=kernel, tokens=TOKENS)["rows"]
        assert all(a["latency_us"] <= b["latency_us"] * 1.0001 for a, b in itertools.pairwise(rows))
