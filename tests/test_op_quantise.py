"""Quantisation of activations: times by hand and laws."""

import numpy as np
import pytest

from perfmodel.hardware import load_gpu
from perfmodel.ops.catalog import OPS, predict_op
from perfmodel.ops.op import Use
from perfmodel.ops.quantise import PARAMETERS, quantise_time
from perfmodel.profiles.op_profile import load_op_profile

H200 = load_gpu("h200")  # 4.8 TB/s, 60 MiB of L2 at 9.85 TB/s
IDEAL = {"fixed_us": 2.0, "depth_ps": 0.0, "row_ns": 0.0, "bandwidth_efficiency": 1.0, "l2_efficiency": 1.0, "l2_share": 1.0}


def us(m, k, whole=1, **parameters):
    """Microseconds of one quantisation to fp8."""
    sizes = {"m": np.array([float(m)]), "k": np.array([float(k)]), "whole": np.array([float(whole)])}
    return float(quantise_time(Use(H200, "fp8", {}), sizes, IDEAL | parameters).total[0]) * 1e6


def test_ideal_parameters_are_all_there_are():
    assert set(IDEAL) == set(PARAMETERS)
    assert OPS["quantise"].sizes == ("m", "k", "whole")


def test_large_matrices_go_to_dram_and_back():
    assert us(32768, 65536) == pytest.approx(2.0 + 32768 * 65536 * 3 / 4.8e12 * 1e6, rel=1e-3)


def test_small_ones_stay_in_l2():
    assert us(1024, 4096) == pytest.approx(2.0 + 1024 * 4096 * 3 / 9.85e12 * 1e6, rel=0.01)


def test_rows_and_their_depth_by_hand():
    assert us(32768, 32, row_ns=2.0) == pytest.approx(2.0 + 32768 * 2e-3, rel=1e-3)
    assert us(1, 65536, depth_ps=100.0) == pytest.approx(2.0 + 65536 * 1e-4, rel=1e-3)


def test_time_grows_with_either_size():
    for m, k in ((1, 1024), (512, 512), (8192, 16384)):
        now = us(m, k, row_ns=0.2, depth_ps=10.0)
        assert us(2 * m, k, row_ns=0.2, depth_ps=10.0) > now < us(m, 2 * k, row_ns=0.2, depth_ps=10.0)


def test_the_floor_is_what_l2_cannot_hold_and_a_difference_has_none():
    sizes = {"m": np.array([32768.0]), "k": np.array([8192.0]), "whole": np.array([1.0])}
    use = Use(H200, "fp8", {})
    beyond = 32768 * 8192 * 3 - 60 * 2**20
    assert quantise_time(use, sizes, IDEAL).floor[0] == pytest.approx(beyond / 4.8e12)
    assert quantise_time(use, sizes | {"whole": np.array([0.0])}, IDEAL).floor[0] == 0
    assert us(32768, 8192, bandwidth_efficiency=4.0) == pytest.approx(beyond / 4.8e12 * 1e6, rel=1e-6)


def test_a_kernel_that_adds_nothing_is_predicted_as_nothing():
    fit = load_op_profile("quantise-compute-sglang").find_fit("hopper", "fp8")
    sizes = {"m": np.array([1.0, 32768.0]), "k": np.array([32.0, 65536.0]), "whole": np.zeros(2)}
    assert not predict_op(OPS["quantise"], H200, "fp8", fit, sizes).any()


def test_l2_of_a_kernel_is_never_slower_than_the_dram_behind_it():
    from_dram = 2.0 + 1024 * 4096 * 3 / 4.8e12 * 1e6
    assert us(1024, 4096, l2_efficiency=0.05) == pytest.approx(from_dram, rel=0.01)
    assert us(1024, 4096, whole=0, l2_efficiency=0.05) > 2 * from_dram  # a difference of two kernels
