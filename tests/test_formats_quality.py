"""The error of schemes: theory where there is one, known orderings, analytic worst cases, golden figures."""

import math

import numpy as np
import pytest

from perfmodel.formats import Scheme, get_format
from perfmodel.formats.quality import DISTRIBUTIONS, measure, sample, typical_quality


def group(element, length, scale="fp32"):
    return Scheme(element=element, per="group", block=(1, length), scale=scale)


def sqnr(scheme, distribution="gaussian", rule="floor"):
    return typical_quality(scheme, distribution, rule).sqnr_db


def test_error_by_hand():
    """Scale 1; errors 0, .25 and .4 on values 6, .25 and 2.6."""
    values = np.array([[6.0, 0.25, 2.6] + [0.0] * 29])
    quality = measure(values, group("e2m1", 32))
    assert quality.sqnr_db == pytest.approx(10 * math.log10((36 + 0.0625 + 6.76) / (0.0625 + 0.16)))
    assert quality.max_error == pytest.approx(0.4 / 6)


def test_no_error_is_infinitely_good():
    assert measure(np.full((1, 32), 3.0), group("e2m1", 32)).sqnr_db == math.inf
    assert measure(np.zeros((1, 32)), group("e2m1", 32)).max_error == 0


def test_int8_has_the_noise_of_a_uniform_quantiser():
    """A step of amax / 127 makes noise of step**2 / 12."""
    values = sample("gaussian")
    step = np.abs(values).max(axis=1, keepdims=True) / 127
    expected = 10 * math.log10(np.sum(values**2) / np.sum(np.broadcast_to(step**2 / 12, values.shape)))
    assert sqnr(get_format("int8").weights) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(("element", "mantissa_bits"), [("bf16", 7), ("fp16", 10)])
def test_floats_without_scales_have_the_noise_of_their_mantissa(element, mantissa_bits):
    """Within a binade, values between 1 and 2 have noise 4**-m / 12."""
    uniform = np.random.default_rng(0).uniform(1, 2, (16, 4096))
    expected = 10 * math.log10(7 / 3 * 12 * 4**mantissa_bits)
    assert measure(uniform, Scheme(element=element)).sqnr_db == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_smaller_blocks_and_better_scales_have_less_error(distribution):
    nvfp4, mxfp4 = get_format("nvfp4").weights, get_format("mxfp4").weights
    assert sqnr(nvfp4, distribution) > sqnr(mxfp4, distribution) + 1.5
    for element in ("e2m1", "int4", "nf4"):
        blocks = [sqnr(group(element, length), distribution) for length in (16, 32, 64, 128, 256)]
        assert blocks == sorted(blocks, reverse=True)
    assert sqnr(group("e2m1", 32), distribution) > sqnr(mxfp4, distribution)
    assert sqnr(group("e2m1", 16), distribution) > sqnr(nvfp4, distribution)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_more_bits_have_less_error(distribution):
    names = ("nvfp4", "mxfp8", "bf16", "fp16")
    figures = [sqnr(get_format(name).weights, distribution) for name in names]
    assert figures == sorted(figures)


def test_fp4_kinds_at_the_same_block():
    """NF4 is made for Gaussian weights; integers suffer from heavy tails, floats hardly; powers of two alone are coarse."""
    gaussian = {element: sqnr(group(element, 64)) for element in ("e2m1", "e3m0", "nf4", "int4")}
    heavy = {element: sqnr(group(element, 64), "student_t") for element in gaussian}
    assert max(gaussian, key=gaussian.get) == "nf4"
    assert min(gaussian, key=gaussian.get) == "e3m0"
    lost = {element: gaussian[element] - heavy[element] for element in gaussian}
    assert max(lost, key=lost.get) == "int4"
    assert lost["int4"] > 3
    assert lost["e2m1"] < 1


def test_ceil_wastes_a_binade_that_even_and_rceil_use():
    mxfp4 = get_format("mxfp4").weights
    figures = {rule: sqnr(mxfp4, rule=rule) for rule in ("floor", "ceil", "even", "rceil")}
    assert min(figures, key=figures.get) == "ceil"
    assert max(figures, key=figures.get) == "even"


@pytest.mark.parametrize(
    ("scheme", "worst"),
    [
        (group("e2m1", 32), 1 / 6),  # 5 between 4 and 6
        (group("e2m1", 32, "e8m0"), 1 / 4),  # just under 8, saturated at 6
        (group("e3m0", 32), 1 / 4),  # 12 between 8 and 16
        (group("int4", 32), 1 / 14),
        (group("int8", 32), 1 / 254),
        (group("e4m3", 32), 16 / 448),  # between 416 and 448
        (group("nf4", 32), (1 - 0.6961928) / 2),  # between -1 and -.6961928
    ],
)
def test_largest_error_comes_near_its_analytic_limit(scheme, worst):
    found = max(typical_quality(scheme, distribution).max_error for distribution in DISTRIBUTIONS)
    assert 0.98 * worst < found <= worst * (1 + 1e-6)


def test_the_sample_is_what_it_says():
    for distribution, kurtosis in (("gaussian", (2.5, 3.5)), ("student_t", (6, 1000))):
        values = sample(distribution)
        standard = values / values.std(axis=1, keepdims=True)
        assert kurtosis[0] < np.mean(standard**4) < kurtosis[1]
        np.testing.assert_array_equal(values, sample.__wrapped__(distribution))


@pytest.mark.parametrize(
    ("name", "gaussian", "student_t"),
    [("nvfp4", 20.46, 20.75), ("mxfp4", 18.70, 17.67), ("int4-w4a16", 18.63, 14.27), ("nf4-w4a16", 20.74, 19.08), ("mxfp8", 30.41, 30.02)],
)
def test_golden_figures(name, gaussian, student_t):
    weights = get_format(name).weights
    assert sqnr(weights) == pytest.approx(gaussian, abs=0.01)
    assert sqnr(weights, "student_t") == pytest.approx(student_t, abs=0.01)
