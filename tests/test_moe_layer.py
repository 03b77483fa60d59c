"""Laws of the whole layer: floors, monotonicity, what each cause may do."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.causes import IDEAL, ON, Causes
from perfmodel.errors import PerfModelError
from perfmodel.hardware import gpu_ids, load_gpu
from perfmodel.latency import moe_latency
from perfmodel.moe_layer import layer_ops, layer_time
from perfmodel.profiles import load_profile, profile_ids
from perfmodel.scenario import default_format, layer_rows, resolve

SHAPES = st.fixed_dictionaries(
    {
        "hidden": st.integers(1, 64).map(lambda x: 128 * x),
        "inter": st.integers(1, 64).map(lambda x: 64 * x),
        "experts": st.sampled_from([8, 16, 64, 128, 256]),
        "topk": st.integers(1, 8),
        "tokens": st.integers(1, 40_000),
        "ep": st.sampled_from([1, 2, 8]),
        "tp": st.sampled_from([1, 2, 4]),
        "shared_inter": st.sampled_from([0, 1024]),
    }
)
COMBINATIONS = [
    ("b200", "nvfp4", k) for k in ("trtllm-cutlass", "trtllm-gen", "generic-fused", "generic-unfused", "ideal", "flashinfer-cutedsl")
] + [
    ("h200", "bf16", "trtllm-cutlass"),
    ("h200", "mxfp4-w4a16", "triton-kernels"),
    ("h100", "fp8-block", "deepgemm"),
    ("h100", "bf16", "sglang-triton"),
    ("a100-80gb", "int4-w4a16", "marlin"),
    ("v100", "fp16", "generic-fused"),
    ("rtx-pro-6000", "nvfp4", "generic-fused"),
]


def build(shape, gpu="b200", fmt="nvfp4", kernel="generic-fused", routing="uniform", **options):
    scenario = resolve(gpu, fmt, kernel, routing=routing, **options)
    rows = layer_rows({name: np.atleast_1d(np.asarray(v)) for name, v in shape.items()})
    return scenario.layer(rows, scenario.profiles[0])[0]


DEEPSEEK = {"hidden": 7168, "inter": 2048, "experts": 256, "topk": 8, "tokens": 64, "ep": 1, "tp": 1, "shared_inter": 2048}


def test_flops_and_bytes_of_deepseek_by_hand():
    layer = build(DEEPSEEK)
    # 64 tokens x (8 routed + 1 shared) x 3 projections x 7168 x 2048 x 2
    assert layer.flops[0] == pytest.approx(64 * 9 * 3 * 7168 * 2048 * 2)
    active = 256 * (1 - (1 - 8 / 256) ** 64)
    assert layer.weights[0] == pytest.approx((active + 1) * 3 * 7168 * 2048)
    assert layer.input_bytes[0] == 64 * 7168 * 2


def test_the_ideal_is_flops_over_the_peak_and_two_causes_make_the_floor():
    layer = build(DEEPSEEK)
    assert layer_time(layer, IDEAL)[0] == pytest.approx(layer.flops[0] / 9e15)
    with_traffic = IDEAL._replace(weights=True, activations=True)
    assert layer_time(layer, with_traffic)[0] == pytest.approx(layer.floor[0])
    assert layer.floor[0] == pytest.approx(layer.compulsory_bytes[0] / 7.672e12)


@settings(deadline=None, max_examples=120)
@given(
    SHAPES,
    st.sampled_from(COMBINATIONS),
    st.sampled_from(["balanced", "uniform", "powerlaw:1.2", "zipf:0.8"]),
    st.sampled_from(["eager", "graph", "persistent"]),
)
def test_never_under_the_floor_and_the_ops_sum_up(shape, combination, routing, launch):
    layer = build(shape, *combination, routing, launch=launch, comm="include" if shape["ep"] > 1 else "exclude")
    time = layer_time(layer, ON)
    assert np.isfinite(time).all()
    assert time[0] >= layer.floor[0] * (1 - 1e-12)
    assert np.sum(layer_ops(layer), axis=0) == pytest.approx(time)


@settings(deadline=None, max_examples=60)
@given(SHAPES, st.sampled_from(["ideal", "generic-fused", "generic-unfused", "trtllm-cutlass"]), st.sampled_from(["balanced", "uniform"]))
def test_more_tokens_are_never_faster(shape, kernel, routing):
    tokens = np.unique(np.rint(np.geomspace(1, 40_000, 60)))
    columns = {name: np.full(tokens.size, value) for name, value in shape.items()} | {"tokens": tokens}
    time = layer_time(build(columns, "b200", "nvfp4", kernel, routing))
    slack = 2e-3 if shape["ep"] == 1 or routing == "balanced" else 1e-2  # the busiest of random ranks is an approximation
    assert (np.diff(time) >= -slack * time[1:]).all()


@settings(deadline=None, max_examples=40)
@given(SHAPES, st.sampled_from(COMBINATIONS), st.sampled_from(["memory.bandwidth_GBps", "l2.bandwidth_GBps"]))
def test_a_faster_memory_is_never_slower(shape, combination, field):
    gpu, fmt, kernel = combination
    base = load_gpu(gpu)
    now = {"memory.bandwidth_GBps": base.dram_bandwidth, "l2.bandwidth_GBps": base.l2_bandwidth or 1e12}[field]
    base = load_gpu(gpu, [f"{field}={now / 1e9:.1f}"])
    faster = load_gpu(gpu, [f"{field}={1.5 * now / 1e9:.1f}"])
    times = [layer_time(build(shape, spec, fmt, kernel))[0] for spec in (base, faster)]
    assert times[1] <= times[0] * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(SHAPES)
def test_renaming_experts_changes_nothing(shape):
    from perfmodel.workload.loads import CountLoad

    counts = np.random.default_rng(0).integers(0, 50, (1, 1, 16)).astype(float)
    one, other = CountLoad(counts, np.array([50.0])), CountLoad(counts[..., ::-1], np.array([50.0]))
    assert one.tiles(16) == other.tiles(16)
    assert one.active == other.active
    assert one.pairs == other.pairs


def test_launch_modes_in_order():
    times = {mode: layer_time(build(DEEPSEEK, launch=mode))[0] for mode in ("eager", "graph", "pdl", "persistent")}
    assert times["eager"] > times["graph"] > times["pdl"] > times["persistent"]


def test_tensor_parallelism_divides_the_work():
    one, two = build(DEEPSEEK), build(DEEPSEEK | {"tp": 2})
    assert two.flops[0] == pytest.approx(one.flops[0] / 2)
    assert two.weights[0] == pytest.approx(one.weights[0] / 2)
    assert layer_time(two)[0] < layer_time(one)[0]


def test_communication_counts_only_when_asked_and_grows_beyond_the_domain():
    wide = DEEPSEEK | {"ep": 8, "tokens": 4096}
    without, within = (layer_time(build(wide, comm=c))[0] for c in ("exclude", "include"))
    assert within > without
    beyond = build(wide | {"ep": 32}, comm="include")
    assert layer_ops(beyond)[-1][0] > 0


def test_the_sustained_clock_slows_long_tensor_work_where_it_is_known():
    busy = DEEPSEEK | {"tokens": 65536}
    burst, held = (layer_time(build(busy, "h200", "bf16", "trtllm-cutlass", clock=c))[0] for c in ("burst", "sustained"))
    assert 1.05 < held / burst < 1.23  # 1830 / 1500 MHz on the tensor work alone
    with pytest.raises(PerfModelError, match="sustained"):
        build(busy, "b200", clock="sustained")


def test_each_cause_has_a_name_of_its_own():
    from perfmodel.causes import NAMES

    assert tuple(NAMES) == Causes._fields
    assert len(set(NAMES.values())) == len(NAMES)


@pytest.mark.parametrize("gpu", gpu_ids())
def test_every_gpu_has_a_default_format_that_runs_for_every_kind_of_weights(gpu):
    spec = load_gpu(gpu)
    for stored in (None, "bf16", "fp16", "fp8", "fp8-block", "nvfp4", "mxfp4", "int4-w4a16"):
        chosen = default_format(stored, spec)
        time = moe_latency(spec, hidden=2048, inter=1024, experts=64, topk=4, tokens=[1, 4096], format=chosen)
        assert (time > 0).all()


def test_every_profile_runs_somewhere_and_refuses_elsewhere():
    for name in profile_ids():
        profile = load_profile(name)
        for fit in profile.fits:
            assert profile.supports(fit.architectures[0], fit.formats[0])
    with pytest.raises(PerfModelError, match="Kernels that run it"):
        resolve("a100-80gb", "int4-w4a16", "deepgemm")
    with pytest.raises(PerfModelError, match="Did you mean"):
        resolve("b200", "nvfp4", "trtlm-gen")


def test_auto_never_takes_what_nobody_measured_where_something_is():
    chosen = resolve("b200", "nvfp4").profiles
    assert {"trtllm-cutlass", "trtllm-gen"} <= {p.id for p in chosen}
    assert all(p.kind == "measured" and p.fit("blackwell", "nvfp4").provenance.status == "measured" for p in chosen)
    assert [p.id for p in resolve("gb10", "mxfp4").profiles] == ["generic-fused"]


@pytest.mark.parametrize(
    ("stored", "gpu", "want"),
    [
        ("mxfp4-w4a16", "b200", "mxfp4"),
        ("mxfp4-w4a16", "h200", "mxfp4-w4a16"),
        ("mxfp4", "h200", "mxfp4-w4a16"),
        ("nvfp4", "h200", "nvfp4-w4a16"),
        ("fp8-block", "a100-80gb", "bf16"),
        ("fp8-block", "h100", "fp8-block"),
        ("int4-w4a16", "h100", "int4-w4a16"),
        ("w4afp8-int4", "h100", "w4afp8-int4"),
        (None, "v100", "fp16"),
    ],
)
def test_the_default_format_is_what_the_weights_allow_and_the_gpu_multiplies(stored, gpu, want):
    assert default_format(stored, load_gpu(gpu)) == want


class TestWarmCaches:
    """A layer that is repeated at once finds in L2 what fits there."""

    SMALL: ClassVar = {"hidden": 1024, "inter": 512, "experts": 8, "topk": 2, "tokens": 8, "ep": 1, "tp": 1, "shared_inter": 0}

    @settings(max_examples=40, deadline=None)
    @given(SHAPES)
    def test_never_slower_than_cold_nor_under_its_own_floor(self, shape):
        warm, cold = (build(shape, "h100", "bf16", "sglang-triton", caches=caches) for caches in ("warm", "cold"))
        assert (layer_time(warm) <= layer_time(cold) * (1 + 1e-12)).all()
        assert (warm.floor <= cold.floor).all()
        assert (layer_time(warm) >= warm.floor * (1 - 1e-9)).all()

    def test_a_footprint_of_half_of_l2_costs_no_weights(self):
        layer = build(self.SMALL, "h100", "bf16", "sglang-triton", routing="balanced", caches="warm")
        every = 8 * 3 * 1024 * 512 * 2  # 25.2 MB; states of 16 pairs add 0.1 MB: half of 50 MiB
        assert layer.weight_bytes[0] == every
        assert layer.from_dram[0] == 0
        assert layer.floor[0] == layer.flops[0] / layer.machine.peak  # nothing must come from DRAM

    def test_between_half_and_one_and_a_fifth_of_l2_a_share_comes(self):
        layer = build(self.SMALL | {"hidden": 1536}, "h100", "bf16", "sglang-triton", routing="balanced", caches="warm")
        footprint = 8 * 3 * 1536 * 512 * 2 + 8 * 1536 * 2 + 16 * 1536 * 4
        assert layer.from_dram[0] == pytest.approx((footprint / load_gpu("h100").l2_capacity - 0.5) / 0.7)
        assert layer.compulsory_bytes[0] == 0

    def test_weights_far_beyond_l2_are_as_cold(self):
        warm, cold = (build(DEEPSEEK, "h100", "bf16", "sglang-triton", caches=caches) for caches in ("warm", "cold"))
        assert warm.from_dram[0] == 1
        assert layer_time(warm) == layer_time(cold)

    def test_other_words_are_refused(self):
        with pytest.raises(PerfModelError, match="no such choice"):
            resolve("h100", "bf16", caches="hot")
