"""Each term of the layer beside the GEMM tiles, by hand, and each cause against its definition."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import perfmodel
from perfmodel.attribution import BOUND_OF, attribute
from perfmodel.causes import ON, Causes
from perfmodel.hardware import load_gpu
from perfmodel.moe_layer import OPS, layer_ops, layer_time
from perfmodel.ops.activation import routing_time, stage_time
from perfmodel.ops.fabric import Fabric, Wire
from perfmodel.ops.grouped_gemm import compute_time
from perfmodel.ops.moe_communication import moe_communication
from perfmodel.scenario import layer_rows, resolve
from perfmodel.workload.loads import CountLoad, EqualisedLoad

ONE = np.array([1.0])


def build(gpu="b200", fmt="nvfp4", kernel="trtllm-cutlass", routing="uniform", tokens=64, ep=1, tp=1, shared=0, **options):
    scenario = resolve(gpu, fmt, kernel, routing=routing, **options)
    sizes = {"hidden": 7168, "inter": 2048, "experts": 256, "topk": 8, "tokens": tokens, "ep": ep, "tp": tp, "shared_inter": shared}
    rows = layer_rows({name: np.array([value]) for name, value in sizes.items()})
    return scenario.layer(rows, scenario.profiles[0])[0]


def op(layer, name):
    return dict(zip(OPS, layer_ops(layer), strict=True))[name][0]


def test_routing_term_by_hand():
    machine = replace(build().machine, routing=7e-12, sort=0.5e-6, expert=10e-9)
    # 64 tokens x (256 + 24 x 8) x 7 ps = 0.2007 us; six doublings of 0.5 us; 32 local experts of 10 ns
    expected = 64 * 448 * 7e-12 + 6 * 0.5e-6 + 32 * 10e-9
    assert routing_time(64 * ONE, 256 * ONE, 8 * ONE, 32 * ONE, machine)[0] == pytest.approx(expected)
    assert routing_time(ONE, 256 * ONE, 8 * ONE, 32 * ONE, machine)[0] == pytest.approx(448 * 7e-12 + 32 * 10e-9)


def test_slots_count_wherever_the_expert_is():
    stage = build("h200", "bf16", "sglang-triton").machine.stages[-1]
    assert (stage.rows, stage.width) == ("slots", "hidden")
    moved = [op(build("h200", "bf16", "sglang-triton", tokens=4096, ep=ep, routing="balanced"), "activations") for ep in (1, 32)]
    local = [op(build("h200", "bf16", "trtllm-cutlass", tokens=4096, ep=ep, routing="balanced"), "activations") for ep in (1, 32)]
    assert moved[1] > 0.7 * moved[0]  # all slots of all tokens, on whatever rank their experts are
    assert local[1] < 0.6 * local[0]


def test_a_stage_of_some_formats_is_left_out_of_the_others():
    names = {form: [stage.name for stage in build("b200", form, "trtllm-gen").machine.stages] for form in ("fp8-block", "nvfp4")}
    assert "activation launched for every slot" in names["fp8-block"]
    assert "activation launched for every slot" not in names["nvfp4"]


def test_a_layer_without_a_gate_is_driven_by_the_stand_in():
    scenario = resolve("b200", "nvfp4", "trtllm-cutlass")
    sizes = {"hidden": 4096, "inter": 2688, "experts": 512, "topk": 22, "tokens": 8, "ep": 1, "tp": 1}
    for gated, profile in ((True, "trtllm-cutlass"), (False, "trtllm-cutlass-ungated")):
        rows = layer_rows({name: np.array([value]) for name, value in sizes.items()}, gated=gated)
        assert [one.id for one in scenario.profiles_for(rows)] == [profile]
    assert not any(one.ungated_only for one in resolve("b200", "nvfp4", "auto").profiles)


def test_stages_of_nvfp4_cutlass_by_hand():
    machine = replace(build().machine, activation_bandwidth=0.47, token_bandwidth=0.235)
    rows = {"tokens": 64 * ONE, "pairs": 512 * ONE}
    widths = {"hidden": 7168 * ONE, "inter": 2048 * ONE, "up": 4096 * ONE}
    bandwidth = 7.672e12 * 0.47
    # quantise input: one NVFP4 value (0.5625 B) a token and column
    assert stage_time("quantise", rows, widths, machine)[0] == pytest.approx(64 * 7168 * 0.5625 / (bandwidth / 2))
    moved = 512 * (7168 * 2 * 0.5625 + 4096 * 2 * 2 + 2048 * 2 * 0.5625 + 7168 * 2 * 2)
    assert stage_time("move", rows, widths, machine)[0] == pytest.approx(moved / bandwidth)


def test_sixteen_bit_activations_are_not_quantised():
    layer = build("h200", "bf16")
    assert layer.machine.stages[0].kind == "quantise"
    assert op(layer, "quantise") == 0


def test_l2_feed_by_hand():
    machine = replace(build("h200", "bf16").machine, l2_bandwidth=1e12, dequantise=0.0, tile_fixed=0.0, l2_efficiency=1.0)
    # a tile of 64 x 128 reads (64 + 128) x 1024 x 2 B = 393 KB; with all 132 SMs busy through 1/132 of 1 TB/s: 51.9 us
    assert compute_time(132 * ONE, 64, 128, 1024 * ONE, machine, ON)[0] == pytest.approx(192 * 1024 * 2 * 132 / 1e12)
    # two tiles alone share it by two, and then the tensor cores are the slower: 2 x 64 x 128 x 1024 FLOP at .65 x 989.4 / 132 TFLOPS
    mma = 2 * 64 * 128 * 1024 / (machine.peak * machine.compute_efficiency / 132)
    assert compute_time(2 * ONE, 64, 128, 1024 * ONE, machine, ON)[0] == pytest.approx(mma)


def test_dequantisation_adds_to_the_tile():
    machine = replace(build("h200", "bf16").machine, dequantise=10e-12)
    plain = replace(machine, dequantise=0.0)
    times = [compute_time(ONE, 64, 128, 1024 * ONE, m, ON)[0] for m in (machine, plain)]
    assert times[0] - times[1] == pytest.approx(128 * 1024 * 10e-12)


def test_native_formats_are_not_dequantised_and_others_are():
    assert build("b200", "mxfp4-w4a8", "generic-fused").machine.dequantise == 0
    assert build("h200", "mxfp4-w4a8", "generic-fused").machine.dequantise > 0


def test_communication_by_hand():
    wires = Fabric(Wire(400e9, 5e-6), Wire(40e9, 9e-6), 8)
    # EP 8: 100 touching tokens, 7/8 of them from elsewhere, 1000 columns; dispatch in 1 B, combine in bf16
    remote = 100 * 7 / 8 * 1000
    got = moe_communication(800 * ONE, 100 * ONE, 1000 * ONE, 8 * ONE, ONE, 1.0, wires)[0]
    assert got == pytest.approx(2 * 5e-6 + remote * (1 + 2) / 400e9)
    # TP 4: all-reduce of 800 tokens: 2 x 3/4 of 1.6 MB
    got = moe_communication(800 * ONE, 100 * ONE, 1000 * ONE, ONE, 4 * ONE, 1.0, wires)[0]
    assert got == pytest.approx(5e-6 + 1.5 * 800 * 1000 * 2 / 400e9)
    # EP 16 in domains of 8: 8 of 15 partners lie beyond the domain, over the slow wire
    remote = 100 * 15 / 16 * 1000
    got = moe_communication(1600 * ONE, 100 * ONE, 1000 * ONE, 16 * ONE, ONE, 1.0, wires)[0]
    assert got == pytest.approx(2 * 9e-6 + remote * 3 * 8 / 15 / 40e9)


def test_communication_is_what_include_adds():
    included, excluded = (build(ep=8, tokens=4096, comm=c) for c in ("include", "exclude"))
    assert layer_time(included)[0] - layer_time(excluded)[0] == pytest.approx(op(included, "communication"))


def test_shared_experts_are_two_gemms_and_two_launches():
    without, with_ = build(), build(shared=2048)
    assert with_.launch - without.launch == pytest.approx(2 * 1.3e-6)
    # 3 x 7168 x 2048 weights at 0.5625 B and 7.672 TB/s: 3.2 us and more for two GEMMs
    assert op(with_, "shared_experts") > 3 * 7168 * 2048 * 0.5625 / 7.672e12
    assert op(without, "shared_experts") == 0


def test_all_token_profiles_charge_the_whole_group():
    layer = build(ep=8, tokens=4096)
    assert layer.machine.all_tokens
    assert layer.stage_tokens[0] == 4096
    touching = build(kernel="generic-fused", ep=8, tokens=4096)
    assert touching.stage_tokens[0] == pytest.approx(touching.load.tokens[0])
    assert touching.stage_tokens[0] < 4096


def test_input_and_output_are_read_and_written_once():
    layer = build(tokens=100)
    assert layer.input_bytes[0] == layer.output_bytes[0] == 100 * 7168 * 2


def test_a_latent_width_shrinks_what_routed_experts_move():
    sizes = {"hidden": 4096, "width": 1024, "inter": 2048, "experts": 64, "topk": 4, "tokens": 100, "ep": 1, "tp": 1, "shared_inter": 512}
    scenario = resolve("b200", "nvfp4", "generic-fused")
    layer = scenario.layer(layer_rows({n: np.array([v]) for n, v in sizes.items()}), scenario.profiles[0])[0]
    assert layer.input_bytes[0] == 100 * (1024 + 4096) * 2


@pytest.mark.parametrize("cause", Causes._fields)
@pytest.mark.parametrize("where", [("b200", "nvfp4", "trtllm-cutlass"), ("h200", "mxfp4-w4a16", "generic-unfused")])
def test_what_a_cause_saves_is_the_time_without_it(cause, where):
    layer = build(*where, routing="powerlaw:1.2", ep=8, tokens=2048, shared=2048, comm="include")
    parts = attribute(layer)
    without = layer_time(layer, ON._replace(**{cause: False}))[0]
    assert parts.saves[cause][0] == pytest.approx(max(parts.latency[0] - without, 0.0))


def test_losses_are_the_steps_of_the_model_where_each_step_costs_time():
    layer = build(routing="powerlaw:1.2", ep=8, tokens=2048, comm="include")
    parts = attribute(layer)
    steps = [layer_time(layer, Causes(*[i < n for i in range(12)]))[0] for n in range(13)]
    for i, cause in enumerate(Causes._fields):
        if steps[i + 1] == min(steps[i + 1 :]) and steps[i] == min(steps[i:]):
            assert parts.losses[cause][0] == pytest.approx(steps[i + 1] - steps[i], abs=1e-15)


def test_skew_is_charged_to_imbalance():
    # 64 tokens: one expert with 57, seven with one each; equal shares are 8 each: one tile of 8 for each against 8 + 7 tiles
    real = CountLoad(np.array([[[57.0, 1, 1, 1, 1, 1, 1, 1]]]), 64 * ONE)
    assert real.tiles(8)[0] == 8 + 7
    assert EqualisedLoad(real).tiles(8)[0] == 8
    layer = build(kernel="generic-fused", routing="powerlaw:1.2", tokens=4096)
    assert attribute(layer).losses["imbalance"][0] > 0


def test_renaming_experts_changes_nothing(tmp_path):
    counts = np.random.default_rng(7).permutation(np.r_[np.full(16, 30), np.full(16, 2)])
    times = []
    for name, values in (("a", counts), ("b", np.sort(counts))):
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join(map(str, values)))
        times.append(perfmodel.gap("gpt-oss-20b", "b200", routing=f"counts:{path}", tokens=128)["rows"][0]["latency_us"])
    assert times[0] == pytest.approx(times[1], rel=1e-12)


def test_counts_are_read_again_when_the_file_changes(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text("\n".join(["4"] * 32))
    even = perfmodel.gap("gpt-oss-20b", "b200", routing=f"counts:{path}", tokens=4096)["rows"][0]["active_experts"]
    path.write_text("\n".join(["4"] * 8 + ["0"] * 24))
    assert perfmodel.gap("gpt-oss-20b", "b200", routing=f"counts:{path}", tokens=4096)["rows"][0]["active_experts"] < even


@pytest.mark.parametrize(("change", "bound", "options"), [
    ("memory.bandwidth_GBps=200", "weights", {"tokens": 64}),
    ("clock.tensor_peak_MHz=100", "compute", {"tokens": 4096}),
    (None, "launch", {"tokens": 1, "launch": "eager"}),
    ("links.nvlink.per_direction_GBps=1", "communication", {"tokens": 4096, "ep": 8, "comm": "include"}),
])  # fmt: skip
def test_the_bound_is_the_resource_that_was_made_scarce(change, bound, options):
    changes = [change] if change else []
    result = perfmodel.gap("deepseek-v3", "b200", format="nvfp4", kernel="generic-fused", changes=changes, **options)
    assert result["rows"][0]["bound"] == bound


def test_bounds_name_every_cause_once():
    named = [cause for causes in BOUND_OF.values() for cause in causes]
    assert sorted(named) == sorted(Causes._fields)


def test_the_busiest_of_two_random_ranks_against_sampling():
    rng = np.random.default_rng(5)
    loads = [
        np.bincount(rng.permuted(np.tile(np.arange(32), (64, 1)), axis=1)[:, :4].ravel() // 16, minlength=2).max() for _ in range(2000)
    ]
    layer = perfmodel.gap("layer:hidden=128,inter=128,experts=32,topk=4", "b200", format="nvfp4", tokens=64, ep=2, routing="uniform")
    excess = layer["rows"][0]["rank_imbalance"] - 1
    assert excess == pytest.approx(np.mean(loads) / 128 - 1, rel=0.12)


def test_a_power_law_at_one_token_is_near_random_routing():
    skewed, uniform = (
        perfmodel.gap("deepseek-v3", "b200", format="nvfp4", tokens=1, ep=8, routing=r)["rows"][0]["rank_imbalance"]
        for r in ("powerlaw:1.2", "uniform")
    )
    assert skewed < 1.6 * uniform


def test_zipf_depends_on_popularity_not_on_expert_numbers():
    ratio = perfmodel.gap("deepseek-v3", "b200", format="nvfp4", tokens=4096, ep=8, routing="zipf:1")["rows"][0]["rank_imbalance"]
    assert 1.2 < ratio < 2.5


def test_group_limited_needs_groups():
    with pytest.raises(perfmodel.PerfModelError, match="which groups"):
        perfmodel.gap("gpt-oss-20b", "b200", routing="group-limited")


def test_a_loaded_gpu_serves_like_its_id():
    spec = load_gpu("b200", ["memory.bandwidth_GBps=9000"])
    by_id = perfmodel.gap("gpt-oss-20b", "b200", tokens=64, changes=["memory.bandwidth_GBps=9000"])["rows"]
    assert perfmodel.gap("gpt-oss-20b", spec, tokens=64)["rows"] == by_id


@pytest.mark.parametrize("kernel", ["trtllm-gen", "generic-unfused"])
def test_more_sms_are_never_slower_for_small_layers(kernel):
    times = [
        perfmodel.gap("layer:hidden=234,inter=6,experts=2,topk=2", "b200", format="nvfp4", kernel=kernel, tokens=4, changes=c)["rows"][0][
            "latency_us"
        ]
        for c in ([], ["compute.sm_count=600"])
    ]
    assert times[1] <= times[0]


def test_steep_zipf_over_many_experts_is_solved():
    rows = perfmodel.gap("layer:hidden=64,inter=64,experts=512,topk=511", "b200", format="nvfp4", routing="zipf:10", tokens=[1, 100_000])[
        "rows"
    ]
    assert all(row["latency_us"] > 0 for row in rows)


@pytest.mark.parametrize("tokens", [64, 1100, 5253])
@pytest.mark.parametrize("kernel", ["ideal", "generic-fused", "generic-unfused"])
def test_more_sms_are_never_slower(kernel, tokens):
    times = [
        perfmodel.gap("deepseek-v3", "b300", format="fp8-block", kernel=kernel, tokens=tokens, ep=8, changes=[f"compute.sm_count={n}"])[
            "rows"
        ][0]
        for n in (100, 148, 200, 301, 445)
    ]
    latencies = [row["latency_us"] for row in times]
    assert all(b <= a * (1 + 1e-7) for a, b in itertools.pairwise(latencies))
