"""The grouped GEMM against hand-computed tiles, waves and bytes, and its laws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.causes import IDEAL, ON
from perfmodel.formats import get_format
from perfmodel.hardware import load_gpu
from perfmodel.latency import predict_grouped_gemm
from perfmodel.ops.grouped_gemm import compute_time, memory_time, smooth_maximum
from perfmodel.ops.machine import build_machine
from perfmodel.ops.tile_rules import half_of_mean, marlin, sglang_triton, vllm_triton
from perfmodel.profiles import load_profile


@pytest.fixture(scope="module")
def machine():
    return build_machine(load_gpu("h200"), get_format("bf16"), load_profile("torch-grouped-mm"))


def test_tiles_take_whole_waves(machine):
    one = compute_time(np.array([1.0]), 128, 256, np.array([7168.0]), machine, ON)
    assert compute_time(np.array([132.0]), 128, 256, np.array([7168.0]), machine, ON) == pytest.approx(one)
    assert compute_time(np.array([133.0]), 128, 256, np.array([7168.0]), machine, ON) == pytest.approx(2 * one)


def test_ideal_tile_time_by_hand(machine):
    # 132 tiles of 128 x 256 x 7168 on 132 SMs at 989.4 TFLOPS: 2 x 128 x 256 x 7168 x 132 / 989.4e12 = 62.67 us
    time = compute_time(np.array([132.0]), 128, 256, np.array([7168.0]), machine, IDEAL)[0]
    assert time == pytest.approx(62.67e-6, rel=1e-3)


def test_memory_time_by_hand(machine):
    # 16 experts of 4096 x 7168 bf16 weights through 4800 GB/s: 939.5 MB / 4.8 TB/s = 195.7 us
    weights = np.array([16 * 4096 * 7168.0])
    assert memory_time(weights, np.array([512.0]), 256, np.array([7168.0]), machine, IDEAL)[0] == pytest.approx(195.74e-6, rel=1e-3)


def test_few_tiles_cannot_saturate_memory(machine):
    weights = np.array([4096 * 7168.0])
    few, many = (memory_time(weights, np.array([t]), 256, np.array([7168.0]), machine, ON)[0] for t in (4.0, 400.0))
    # 4 SMs with 128 KiB in flight over 348 ns: 1.5 TB/s
    assert few == pytest.approx(weights[0] * 2 / (4 * 128 * 1024 / 348e-9), rel=0.02)
    assert many < few / 2


@given(st.floats(0, 1e3), st.floats(1e-9, 1e3), st.floats(1, 64))
def test_smooth_maximum_lies_between_the_maximum_and_the_sum(a, b, p):
    value = smooth_maximum(np.array([a]), np.array([b]), p)[0]
    assert max(a, b) <= value * (1 + 1e-12)
    assert value <= (a + b) * (1 + 1e-12)


def test_rules_by_hand():
    menu = (8, 16, 32, 64, 128, 256)
    column = lambda *v: np.array(v, float)  # noqa: E731
    # mean 4 -> 4 -> 2 -> the smallest tile; mean 100 -> 128 -> 64; mean 1000 -> 1024 -> 512 -> the largest
    assert half_of_mean(column(4, 100, 1000), column(1, 1, 1), column(1, 1, 1), menu).tolist() == [8, 64, 256]
    assert marlin(column(7, 7.2, 14, 100), column(1, 1, 1, 1), column(1, 1, 1, 1), (8, 16, 32, 48, 64)).tolist() == [8, 16, 16, 64]
    assert sglang_triton(column(1, 1), column(64, 64), column(64, 65), (16, 64)).tolist() == [16, 64]
    tokens = column(32, 33, 96, 97, 512, 513)
    assert vllm_triton(tokens, tokens, tokens, (16, 32, 64, 128)).tolist() == [16, 32, 32, 64, 64, 128]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["torch-grouped-mm", "ideal", "generic-fused", "generic-unfused", "vllm-triton"]),
    st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(1, 3000),
)  # fmt: skip
def test_never_under_the_floor_and_inside_its_interval(kernel, experts, n, k, tokens):
    p = predict_grouped_gemm("h200", kernel, "bf16", experts=experts, n=128 * n, k=128 * k, tokens_per_expert=tokens)
    assert p.latency[0] >= p.floor[0] * (1 - 1e-12)
    assert p.low[0] <= p.latency[0] <= p.high[0]


def test_twice_the_bytes_take_twice_the_time_when_memory_bound(machine):
    lean = replace(machine, gemm_latency=0.0, tile_fixed=0.0)
    weights = np.array([1e9, 2e9])
    one, two = memory_time(weights, np.array([1e4, 1e4]), 256, np.array([7168.0, 7168.0]), lean, ON)
    assert two == pytest.approx(2 * one)


def test_conversion_overlaps_as_far_as_the_kernel_lets_it(machine):
    machine = replace(machine, l2_bandwidth=None, tile_fixed=0.0, dequantise=10e-12)
    apart, partly, fully = (
        compute_time(np.array([132.0]), 64, 128, np.array([1000.0]), replace(machine, dequantise_overlap=q), ON)[0]
        for q in (1.0, 2.0, 64.0)
    )
    mma, conversion = 2 * 64 * 128 * 1000 / machine.sm_flops(ON), 128 * 1000 * 10e-12
    assert apart == pytest.approx(mma + conversion)
    assert partly == pytest.approx((mma**2 + conversion**2) ** 0.5)
    assert fully == pytest.approx(max(mma, conversion), rel=0.01)
