"""Capacity planning: values by hand, and laws that hold whatever the engine's parameters are."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import perfmodel
from perfmodel.hardware import load_gpu
from perfmodel.planning.advice import LAUNCHES
from perfmodel.planning.batches import front, thin
from perfmodel.planning.candidates import build, parallels
from perfmodel.planning.power import at_peak
from perfmodel.planning.prices import FILE as PRICES
from perfmodel.planning.prices import load_prices
from perfmodel.serving.engine import NAMES, Engine, load_calibration
from perfmodel.serving.formats import formats_of
from perfmodel.serving.parallel import allowed
from perfmodel.serving.step import decode
from perfmodel.workload import load_model

LLAMA = {"isl": 1000, "osl": 200, "gpus": 8, "format": "bf16"}
DEEPSEEK = {"isl": 4000, "osl": 500, "gpus": 32, "ttft_ms": 2000.0, "tpot_ms": 30.0}


@pytest.fixture(scope="module")
def deepseek():
    return perfmodel.plan("deepseek-v3", "h200", **DEEPSEEK)


@pytest.fixture(scope="module")
def llama():
    return perfmodel.plan("llama-3.1-8b", "h100", **LLAMA)


def everything(result):
    return [*result.plans, *result.pareto]


# Values by hand


def test_memory_by_hand(llama):
    """8.03 billion weights of 2 bytes; 32 layers x 8 heads x 128 x keys and values x 2 bytes for each token of a sequence."""
    for plan in everything(llama):
        if plan.mode == "aggregated" and plan.tp == 1:
            assert plan.memory_GB.weights == pytest.approx(16.06, rel=0.002)
            per_token = 32 * 8 * 128 * 2 * 2
            assert plan.memory_GB.cache == pytest.approx(plan.batch * 1200 * per_token / 1e9, rel=1e-9)
            assert plan.memory_GB_per_gpu == pytest.approx(plan.memory_GB.weights + plan.memory_GB.cache + plan.memory_GB.workspace)
    assert any(plan.tp == 1 and plan.mode == "aggregated" for plan in llama.plans)


def test_experts_of_deepseek_by_hand(deepseek):
    """671 billion weights in FP8 with a scale for 128 x 128, on tp x dp GPUs: experts split over all, attention over tp but for the
    projections down to latents, 61 layers of 7,168 x (1,536 + 512 + 64)."""
    plan = next(p for p in everything(deepseek) if p.mode == "aggregated" and p.tp == 8 and p.dp == p.pp == 1)
    assert plan.memory_GB.weights == pytest.approx((672 + 7 * 61 * 7168 * 2112 / 1e9) / 8, rel=0.004)


def test_gpus_for_a_rate_by_hand():
    """The instances that serve 100 requests a second are the rate over that of one, rounded up."""
    for plan in perfmodel.plan("llama-3.1-8b", "h100", **(LLAMA | {"gpus": None}), rate=100.0).plans:
        sets = plan.instances
        one = plan.most_requests_per_s / sets
        assert sets == math.ceil(100 / one - 1e-9)
        assert plan.gpus % sets == 0
        assert plan.requests_per_s == 100
        assert plan.tokens_per_s_per_gpu == pytest.approx(100 * 200 / plan.gpus)


def test_cost_by_hand(tmp_path):
    """At 3.6 an hour, a GPU costs a thousandth a second: a million tokens cost 1000 / (tokens a second and GPU)."""
    own = tmp_path / "prices.yaml"
    own.write_text(PRICES.read_text().replace("currency: USD", "currency: EUR").replace("h100: {value: 3.49", "h100: {value: 3.6"))
    result = perfmodel.plan("llama-3.1-8b", "h100", **LLAMA, prices=str(own))
    assert result.currency == "EUR"
    for plan in result.plans:
        assert plan.cost_per_million_tokens == pytest.approx(1000 / plan.tokens_per_s_per_gpu)
        assert plan.cost_per_hour == pytest.approx(3.6 * plan.gpus)


def test_figures_of_a_plan_agree(deepseek):
    for plan in everything(deepseek):
        assert plan.latency_ms == pytest.approx(plan.ttft_ms + 499 * plan.tpot_ms)
        assert plan.tokens_per_s_per_user == pytest.approx(1e3 / plan.tpot_ms)
        served = plan.concurrency / plan.latency_ms * 1e3
        assert plan.requests_per_s == pytest.approx(served, rel=0.51 / plan.concurrency)
        assert plan.tokens_per_s_per_gpu == pytest.approx(plan.requests_per_s * 500 / plan.gpus)
        assert sum(plan.step.values()) == pytest.approx(1)
        assert plan.power_kW == pytest.approx(plan.gpus * (plan.watts_per_gpu + 430) * 1.25 / 1e3)
        for name in ("ttft_ms", "tpot_ms", "tokens_per_s_per_gpu"):
            low, high = getattr(plan.interval, name)
            assert low <= getattr(plan, name) <= high
        if plan.mode == "disaggregated":
            assert plan.gpus == plan.prefill.gpus + plan.decode.gpus
            assert (plan.tp, plan.dp) == (plan.decode.tp, plan.decode.dp)
        else:
            assert plan.gpus == plan.instances * plan.tp * plan.pp * plan.dp


def test_a_concurrency_is_shared_out():
    result = perfmodel.plan("llama-3.1-8b", "h100", **LLAMA, concurrency=100)
    for plan in everything(result):
        assert plan.concurrency == 100
        assert plan.gpus <= 8
        if plan.mode == "aggregated":
            assert plan.batch == math.ceil(100 / plan.instances)


def test_a_huge_concurrency_takes_more_instances():
    plan = perfmodel.plan("llama-3.1-8b", "h100", isl=1000, osl=200, concurrency=10**6, mode="aggregated").plans[0]
    assert plan.concurrency == 10**6
    assert plan.gpus > 100


def test_a_gpu_named_twice_is_one():
    result = perfmodel.plan("llama-3.1-8b", ["h100", "h100"], **LLAMA)
    assert result.searched == perfmodel.plan("llama-3.1-8b", "h100", **LLAMA).searched


# Laws


def test_plans_keep_the_limits_best_first(deepseek):
    assert all(plan.ttft_ms <= 2000 and plan.tpot_ms <= 30 and plan.gpus <= 32 for plan in deepseek.plans)
    tokens = [plan.tokens_per_s_per_gpu for plan in deepseek.plans]
    assert tokens == sorted(tokens, reverse=True)
    assert {plan.mode for plan in deepseek.plans} == {"aggregated", "disaggregated"}


def test_fronts_are_not_dominated(deepseek):
    points = [(plan.tokens_per_s_per_user, plan.tokens_per_s_per_gpu) for plan in deepseek.pareto]
    assert len(points) >= 5
    assert not any(a != b and a[0] >= b[0] and a[1] >= b[1] for a in points for b in points)


def test_no_plan_is_above_the_front(deepseek):
    for plan in deepseek.plans:
        assert any(
            p.tokens_per_s_per_user >= plan.tokens_per_s_per_user and p.tokens_per_s_per_gpu >= plan.tokens_per_s_per_gpu
            for p in deepseek.pareto
        )


def test_the_same_question_has_the_same_answer(deepseek):
    assert perfmodel.plan("deepseek-v3", "h200", **DEEPSEEK).model_dump_json() == deepseek.model_dump_json()


def test_a_full_search_tries_thousands():
    result = perfmodel.plan("deepseek-v3", ["b200", "h200", "gb300"], **(DEEPSEEK | {"gpus": 64}))
    assert result.searched > 3000


@pytest.mark.parametrize("change", ["memory.bandwidth_GBps=9600", "links.nvlink.per_direction_GBps=900", "memory.capacity_GB=300"])
def test_better_hardware_never_serves_less(deepseek, change):
    better = perfmodel.plan("deepseek-v3", "h200", **DEEPSEEK, changes=change)
    assert better.plans[0].tokens_per_s_per_gpu >= deepseek.plans[0].tokens_per_s_per_gpu * (1 - 1e-9)
    assert min(p.tpot_ms for p in better.pareto) <= min(p.tpot_ms for p in deepseek.pareto) * (1 + 1e-9)


def test_twice_the_bandwidth_serves_more_and_the_plan_says_so(deepseek):
    best = deepseek.plans[0]
    faster = perfmodel.plan("deepseek-v3", "h200", **DEEPSEEK, changes="memory.bandwidth_GBps=9600").plans[0]
    told = next(help_.gain for help_ in best.helps if help_.change == "twice the DRAM bandwidth")
    assert faster.tokens_per_s_per_gpu > best.tokens_per_s_per_gpu
    assert faster.tokens_per_s_per_gpu / best.tokens_per_s_per_gpu - 1 > 0.9 * told  # other ways to share the model may gain more


@pytest.mark.parametrize(("name", "values"), [("tpot_ms", (15.0, 30.0, 60.0)), ("ttft_ms", (700.0, 2000.0, 9000.0)), ("gpus", (8, 16, 32))])
def test_a_tighter_limit_never_gives_a_better_plan(name, values):
    asked = DEEPSEEK | {"mode": "aggregated"}
    best = [perfmodel.plan("deepseek-v3", "h200", **(asked | {name: value})).plans[0].tokens_per_s_per_gpu for value in values]
    assert best == sorted(best)


def test_more_gpus_never_give_a_worse_plan():
    options = {"isl": 2000, "osl": 500, "mode": "disaggregated", "ttft_ms": 600.0}
    found = [perfmodel.plan("qwen3-30b-a3b", "h100", gpus=gpus, **options).plans[0].tokens_per_s_per_gpu for gpus in (4, 8, 16, 32, 128)]
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(found)), found


def test_two_gpus_are_enough_for_two_instances():
    best = perfmodel.plan("qwen3-30b-a3b", "h100", gpus=2, mode="disaggregated").plans[0]
    assert best.gpus == 2
    assert best.prefill is not None


def test_what_a_limit_costs_is_what_the_search_without_it_finds(deepseek):
    effect = next(effect for effect in deepseek.limits if effect.limit == "tpot_ms")
    without = perfmodel.plan("deepseek-v3", "h200", **(DEEPSEEK | {"tpot_ms": None}))
    assert without.plans[0].tokens_per_s_per_gpu == pytest.approx(effect.without)
    assert effect.gain == pytest.approx(effect.without / deepseek.plans[0].tokens_per_s_per_gpu - 1)


def test_budget_power_and_latency_are_kept():
    limits = {"budget": 30.0, "power_kW": 7.0, "latency_ms": 9000.0}
    for plan in perfmodel.plan("llama-3.1-70b", "h100", isl=1000, osl=200, gpus=16, **limits).plans:
        assert plan.cost_per_hour <= 30
        assert plan.power_kW <= 7
        assert plan.latency_ms <= 9000


def test_a_prefix_cache_never_hurts(llama):
    half = perfmodel.plan("llama-3.1-8b", "h100", **LLAMA, prefix_cache=0.5)
    assert half.plans[0].tokens_per_s_per_gpu > llama.plans[0].tokens_per_s_per_gpu


def test_watts_lie_between_idle_and_tdp(deepseek, llama):
    for plan in everything(deepseek) + everything(llama):
        assert 0.15 * 700 <= plan.watts_per_gpu <= 700


def test_at_the_peaks_an_engine_makes_no_difference():
    """70.6 billion weights in FP4 with scales, 4.5 bits each but for the head, once through the DRAM; 2 FLOP each."""
    model, gpu = load_model("llama-3.1-70b"), load_gpu("b200")
    table = build(model, [(gpu, formats_of(model, "nvfp4"), 1)], 2000.0, [[1.0] * 4])
    once = decode(np.ones(1), np.zeros(1))
    for engine in (Engine(), replace(load_calibration().engine_of(), fp4=0.3, dequantised=0.3, bandwidth=0.3, tensor_fp4=0.3, tile=50.0)):
        memory, tensor = at_peak(table.take([0]), replace(engine, pass_bytes=0.0), once)
        head = model.vocab * model.hidden
        others = model.params_total - 2 * head
        assert memory[0] == pytest.approx((others * 4.5 / 8 + head * 2) / gpu.dram_bandwidth, rel=1e-3)
        assert tensor[0] == pytest.approx(2 * (others / gpu.peak_flops("fp4") + head / gpu.peak_flops("bf16")), rel=1e-3)


def test_half_the_launch_time_is_half_of_all_of_it():
    times = {name for name in NAMES if name.endswith("_us")}
    assert times - set(LAUNCHES) == {"collective_us", "hop_us", "dispatch_us", "first_us", "transfer_us"}


def test_every_gpu_appears_and_what_does_not_fit_is_told():
    result = perfmodel.plan("deepseek-v3", ["b200", "h200", "l40s"], isl=1000, osl=200, gpus=8)
    assert {plan.gpu for plan in result.plans} == {"b200", "h200"} == {plan.gpu for plan in result.pareto}
    assert any(note.startswith("l40s: ") for note in result.notes)


@pytest.mark.parametrize(
    "name", ["gpt-oss-20b", "qwen3-30b-a3b", "qwen3.5-397b-a17b", "nemotron-3-nano", "deepseek-v3.2", "gemma-4-26b-a4b"]
)
def test_models_of_every_kind_have_plans(name):
    result = perfmodel.plan(name, "b200", isl=500, osl=100, gpus=16)
    assert result.plans[0].tokens_per_s_per_gpu > 0
    assert all(np.isfinite([plan.ttft_ms, plan.tpot_ms, plan.watts_per_gpu]).all() for plan in everything(result))


def test_only_what_engines_run_is_tried():
    model, gpu = load_model("deepseek-v3"), load_gpu("h200")
    found = list(parallels(model, gpu, 64))
    assert len(found) == len(set(found)) > 20
    for way in found:
        assert allowed(way, model)
        assert way.gpus <= 64
        assert way.tp <= 8
        assert way.ep in (1, way.ranks)
        assert way.pp == 1 or way.ranks >= 8
    assert {way.pp for way in parallels(load_model("llama-3.1-8b"), load_gpu("gh200"), 4)} == {1, 2, 4}


def test_a_box_without_links_is_planned_for_alone():
    result = perfmodel.plan("qwen3-8b", "gb10", gpus=4, isl=500, osl=100)
    assert {(plan.tp, plan.pp, plan.dp) for plan in result.plans} == {(1, 1, 1)}


def test_front_and_thin():
    a, b = np.array([1.0, 2.0, 3.0, 3.0, 0.5]), np.array([5.0, 4.0, 1.0, 2.0, 4.9])
    assert front(a, b).tolist() == [3, 1, 0]
    assert thin(np.arange(10), 3).tolist() == [0, 4, 9]


def test_a_backend_has_its_own_engine():
    figures = {perfmodel.plan("deepseek-v3", "h200", **DEEPSEEK, backend=name).plans[0].tpot_ms for name in ("trtllm", "sglang", "vllm")}
    assert all(0 < tpot <= 30 for tpot in figures)


def test_prices_are_of_the_catalogue_and_have_a_source():
    from perfmodel.hardware.catalog import gpu_ids

    prices = load_prices()
    assert set(prices.gpu_hour) <= set(gpu_ids())  # a new GPU may come without: adding one is adding a file
    assert len(prices.gpu_hour) > 15
    assert all(price.source and price.status in ("datasheet", "derived", "estimated") for price in prices.gpu_hour.values())
