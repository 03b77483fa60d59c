"""Capacity planning that is asked for what is not there, does not fit, or cannot be kept: said in words."""

import pytest

import perfmodel
from perfmodel.errors import PerfModelError
from perfmodel.planning.prices import FILE as PRICES

LLAMA = {"isl": 1000, "osl": 200, "gpus": 8, "format": "bf16"}
DEEPSEEK = {"isl": 4000, "osl": 500, "gpus": 32, "ttft_ms": 2000.0, "tpot_ms": 30.0}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tpot_ms": -1.0}, "tpot_ms"),
        ({"isl": 0}, "isl"),
        ({"osl": 1.5}, "osl"),
        ({"gpus": 0}, "gpus"),
        ({"prefix_cache": 1.0}, "prefix_cache"),
        ({"rate": 1.0, "concurrency": 5}, "exclude each other"),
        ({"mode": "both"}, "mode"),
        ({"format": "fp5"}, "fp5"),
        ({"kv_format": "fp5"}, "fp5"),
        ({"backend": "tgi"}, "backend"),
        ({"tpot": 30.0}, "tpot_ms"),
        ({"changes": "memory.bandwith_GBps=1"}, "bandwidth_GBps"),
        ({"prices": "no-such-file.yaml"}, "no-such-file.yaml"),
        ({"prices": ""}, "cannot read"),
        ({"ttft_ms": float("nan")}, "ttft_ms"),
    ],
)
def test_bad_options_are_named(options, said):
    with pytest.raises(PerfModelError, match=said):
        perfmodel.plan("llama-3.1-8b", "h100", **options)


def test_what_does_not_fit_says_how_much_is_missing():
    with pytest.raises(PerfModelError, match=r"67\d GB of weights, 1 x 48 GB on l40s"):
        perfmodel.plan("deepseek-v3", "l40s", gpus=1)


def test_the_nearest_miss_is_named():
    with pytest.raises(PerfModelError, match=r"the best TPOT is [\d.]+ ms with tp 8 on 8 h200.*the limit is 0.01"):
        perfmodel.plan("deepseek-v3", "h200", **(DEEPSEEK | {"gpus": 8, "tpot_ms": 0.01}))
    with pytest.raises(PerfModelError, match="the best cost is"):
        perfmodel.plan("deepseek-v3", "h200", **DEEPSEEK, budget=1.0)
    with pytest.raises(PerfModelError, match="each can be kept alone"):
        perfmodel.plan("llama-3.1-70b", "h100", **(LLAMA | {"tpot_ms": 15.0, "budget": 15.0}))


def test_a_gpu_without_the_units_names_what_runs():
    with pytest.raises(PerfModelError, match="nvfp4"):
        perfmodel.plan("deepseek-v3", "h200", format="nvfp4")


@pytest.mark.parametrize("gpu", [5, None, [5], []])
def test_what_is_no_gpu_is_refused(gpu):
    with pytest.raises(PerfModelError, match="gpu"):
        perfmodel.plan("llama-3.1-8b", gpu)


def test_prices_may_be_a_path():
    assert perfmodel.plan("llama-3.1-8b", "h100", **LLAMA, prices=PRICES).plans[0].cost_per_hour


def test_a_layer_alone_is_refused():
    with pytest.raises(PerfModelError, match="no whole model"):
        perfmodel.plan("layer:hidden=7168,inter=2048,experts=256,topk=8", "h200")


def test_disaggregation_needs_two_instances():
    with pytest.raises(PerfModelError, match="gpus"):
        perfmodel.plan("deepseek-v3", "h200", gpus=8, mode="disaggregated")


def test_a_gpu_of_ones_own_without_a_price(tmp_path):
    own = tmp_path / "mine.yaml"
    text = PRICES.parents[2].joinpath("gpu_specs", "h200.yaml").read_text()
    own.write_text(text.replace("id: h200", "id: mine"))
    result = perfmodel.plan("llama-3.1-8b", str(own), **LLAMA)
    assert result.plans[0].gpu == "mine"
    assert result.plans[0].cost_per_hour is None
    with pytest.raises(PerfModelError, match="have no price"):
        perfmodel.plan("llama-3.1-8b", str(own), **LLAMA, budget=100.0)
