"""Block schemes: blocks computed by hand, all granularities, E8M0 rules, two-level scales, fixpoints and error bounds."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from perfmodel.errors import PerfModelError
from perfmodel.formats import Scheme, format_ids, get_format
from perfmodel.formats.blocks import Encoded, block_max, decode, encode
from perfmodel.formats.elements import get_element
from perfmodel.formats.scales import RULES, decode_scales, encode_e8m0, encode_scales

MXFP4 = get_format("mxfp4").weights
NVFP4 = get_format("nvfp4").weights
INT4 = get_format("int4-w4a16").weights
FP8_BLOCK = get_format("fp8-block").weights


def group(element, length, scale, rows=1):
    return Scheme(element=element, per="group", block=(rows, length), scale=scale)


def one_block(*values, length):
    return np.array([[*values, *[0.0] * (length - len(values))]])


@pytest.mark.parametrize(
    ("amax", "floor", "ceil", "even", "rceil"),
    [  # exponents of the scale for E2M1, whose largest value is 6 = 1.5 * 4
        (4, 0, 0, 0, 0),
        (4.001, 0, 1, 0, 0),
        (6, 0, 1, 0, 0),
        (6.9, 0, 1, 0, 1),
        (7, 0, 1, 1, 1),
        (8, 1, 1, 1, 1),
        (3.4, -1, 0, -1, 0),
        (3.5, -1, 0, 0, 0),
        (2.0**-126, -127, -127, -127, -127),
        (2.0**-140, -127, -127, -127, -127),
        (0, -127, -127, -127, -127),
        (7 * 2.0**126, 126, 127, 127, 127),
    ],
)
def test_e8m0_rules_on_e2m1(amax, floor, ceil, even, rceil):
    codes = [int(encode_e8m0(np.array([float(amax)]), get_element("e2m1"), rule)[0]) - 127 for rule in RULES]
    assert codes == [floor, ceil, even, rceil]


@pytest.mark.parametrize(("amax", "exponents"), [(448, [0, 1, 0, 0]), (449, [0, 1, 0, 1]), (495, [0, 1, 0, 1]), (496, [0, 1, 1, 1])])
def test_e8m0_rules_on_e4m3(amax, exponents):
    """The largest value is 448 = 1.75 * 256; a mantissa of 1.9375 rounds up to 2 at three bits."""
    assert [int(encode_e8m0(np.array([float(amax)]), get_element("e4m3"), rule)[0]) - 127 for rule in RULES] == exponents


def test_e8m0_values():
    np.testing.assert_array_equal(decode_scales(np.array([0, 127, 128, 254], np.uint8), "e8m0"), [2.0**-127, 1, 2, 2.0**127])
    assert np.isnan(decode_scales(np.array([255], np.uint8), "e8m0")).all()


def test_mxfp4_block_by_hand():
    encoded = encode(one_block(5.0, -7.9, 0.25, 0.3, 2.5, length=32), MXFP4)
    assert encoded.scales.tolist() == [[127]]  # 2**(floor(log2 7.9) - 2) = 1
    assert encoded.codes[0, :5].tolist() == [6, 15, 0, 1, 4]  # 5 -> 4 (tie), -7.9 -> -6, .25 -> 0 (tie), .3 -> .5, 2.5 -> 2 (tie)
    np.testing.assert_array_equal(decode(encoded)[0, :5], [4, -6, 0, 0.5, 2])


def test_nvfp4_two_levels_by_hand():
    values = np.array([[2688.0] + [0.0] * 15 + [6.0, 3.1] + [0.0] * 14 + [-42.0, 7.0] + [0.0] * 14])
    encoded = encode(values, NVFP4)
    assert encoded.tensor_scale == 1  # 2688 = 6 * 448
    np.testing.assert_array_equal(decode_scales(encoded.scales, "e4m3"), [[448, 1, 7]])
    np.testing.assert_array_equal(decode(encoded)[0, [0, 16, 17, 32, 33]], [2688, 6, 3, -42, 7])
    np.testing.assert_array_equal(decode(encode(values / 2**20, NVFP4)), decode(encoded) / 2**20)


def test_int4_group_by_hand():
    encoded = encode(one_block(14.0, -13.2, 3.0, 5.0, length=128), INT4)
    assert encoded.scales.astype(float).tolist() == [[2]]
    assert encoded.codes[0, :4].tolist() == [7, 16 - 7, 2, 2]  # 1.5 -> 2 and 2.5 -> 2: ties to even
    np.testing.assert_array_equal(decode(encoded)[0, :4], [14, -14, 4, 4])


def test_nf4_block_by_hand():
    encoded = encode(one_block(-8.0, 8 * 0.44, 0.0, length=64), get_format("nf4-w4a16").weights)
    assert encoded.scales.tolist() == [[8]]
    assert encoded.codes[0, :3].tolist() == [0, 12, 7]


@pytest.mark.parametrize(
    ("scheme", "scales"),
    [
        (Scheme(element="e4m3", per="tensor", scale="fp32"), [[4.0]]),
        (Scheme(element="e4m3", per="channel", scale="fp32"), [[1.0], [4.0]]),
        (Scheme(element="e4m3", per="token", scale="fp32"), [[1.0], [4.0]]),
        (group("e4m3", 2, "fp32"), [[1.0, 0.5], [2.0, 4.0]]),
        (group("e4m3", 2, "fp32", rows=2), [[2.0, 4.0]]),
    ],
)
def test_granularity_decides_what_shares_a_scale(scheme, scales):
    values = 448 * np.array([[-1.0, 0.5, 0.5, 0.25], [2.0, 1.0, 4.0, -2.0]])
    encoded = encode(values, scheme)
    assert encoded.scales.tolist() == scales
    np.testing.assert_array_equal(decode(encoded), values)


def test_ragged_rows_of_128x128_blocks():
    values = np.ones((130, 256))
    values[128:, 128:] = 3.0
    encoded = encode(values, FP8_BLOCK)
    np.testing.assert_allclose(encoded.scales * 448, [[1, 1], [1, 3]], rtol=1e-7)
    np.testing.assert_allclose(decode(encoded), values, rtol=1e-7)


def test_leading_axes_are_matrices_of_their_own():
    values = np.random.default_rng(1).standard_normal((3, 2, 4, 32)) * np.exp2(np.arange(6.0)).reshape(3, 2, 1, 1)
    for scheme in (NVFP4, MXFP4, get_format("fp8").weights):
        together = encode(values, scheme)
        for i, j in itertools.product(range(3), range(2)):
            alone = encode(values[i, j], scheme)
            np.testing.assert_array_equal(together.codes[i, j], alone.codes)
            np.testing.assert_array_equal(together.scales[i, j], alone.scales)
            if scheme.tensor_scale:
                assert together.tensor_scale[i, j] == alone.tensor_scale


def test_one_row_without_rows_axis():
    row = np.linspace(-3, 3, 64)
    for name in format_ids():
        scheme = get_format(name).weights
        if scheme.block is None or 64 % scheme.block[1] == 0:
            flat, matrix = encode(row, scheme), encode(row[None], scheme)
            assert flat.codes.shape == (64,)
            np.testing.assert_array_equal(decode(flat), decode(matrix)[0])


@pytest.mark.parametrize("name", format_ids())
def test_stored_bits_are_the_bits_of_the_catalogue(name):
    """Counting the arrays gives the figure of the catalogue, plus at most the scales that it spreads to nothing."""
    for scheme in (get_format(name).weights, get_format(name).activations):
        encoded = encode(np.ones((256, 1024)), scheme)
        assert scheme.bits <= encoded.bits <= scheme.bits + 32 / 1024
        if scheme.per in ("none", "group"):
            assert encoded.bits == pytest.approx(scheme.bits, abs=32 / (256 * 1024) + 1e-12)


@pytest.mark.parametrize("name", format_ids())
@pytest.mark.parametrize("scale", [0.0, 1e-44, 2.0**-130, 1e-30, 1.0, 1e30])
def test_zero_tiny_and_large_blocks(name, scale):
    """Zeros stay zeros beside any block; no scale is zero, infinite or NaN; tiny weights lose accuracy, never their bound."""
    scheme = get_format(name).weights
    values = np.zeros((128, 256))
    values[:, 128:] = scale * np.random.default_rng(0).uniform(-1, 1, (128, 128))
    if scheme.element == "fp16" and scale > 1:
        values = values / 1e30
    decoded = decode(encode(values, scheme))
    assert np.isfinite(decoded).all()
    assert (decoded[:, :128] == 0).all()
    assert np.abs(decoded - values).max() <= np.abs(values).max() * (1 + 1e-12)


def test_subnormal_scales_do_not_vanish():
    encoded = encode(np.full((1, 32), 2.0**-149 * 3), group("e2m1", 32, "fp32"))
    assert (encoded.scales > 0).all()
    tiny = encode(one_block(*[1e-9] * 4, length=128), group("int4", 128, "fp16"))
    assert tiny.scales.astype(float) == 2.0**-24
    blocks = np.array([[1.0] * 16 + [1e-6] * 16])  # the second block's E4M3 scale would round to zero
    assert encode(blocks, NVFP4).scales.tolist() == [[0x7E, 0x01]]


ASYMMETRIC = Scheme(element="int4", per="group", block=(1, 16), scale="fp32", zero_point=True)
SCHEMES = {
    "int4/16 fp16": group("int4", 16, "fp16"),
    "int4/16 bf16": group("int4", 16, "bf16"),
    "int8 channel": Scheme(element="int8", per="channel", scale="fp32"),
    "nf4/16": group("nf4", 16, "fp32"),
    "e2m1/16": group("e2m1", 16, "fp32"),
    "e3m0/16": group("e3m0", 16, "fp32"),
    "e4m3 tensor": Scheme(element="e4m3", per="tensor", scale="fp32"),
    "e5m2 2x16": group("e5m2", 16, "fp32", rows=2),
    "nvfp4": NVFP4,
    "mxfp4": MXFP4,
    "mxfp8": get_format("mxfp8").weights,
    "bf16": Scheme(element="bf16"),
}
magnitudes = st.just(0.0) | st.floats(1, 1000) | st.floats(-1000, -1)
matrices = hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.just(32)), elements=magnitudes)


@pytest.mark.parametrize("name", SCHEMES)
@given(values=matrices, rule=st.sampled_from(RULES))
@settings(deadline=None, max_examples=40)
def test_stored_values_are_a_fixpoint(name, values, rule):
    """What has been stored once is stored again without any change. (NVFP4 with E4M3 scales in its normal range: see the magnitudes.)"""
    once = decode(encode(values, SCHEMES[name], rule=rule))
    np.testing.assert_array_equal(decode(encode(once, SCHEMES[name], rule=rule)), once)


@pytest.mark.parametrize("name", [n for n in SCHEMES if n != "bf16"])
@given(values=matrices, rule=st.sampled_from(RULES))
@settings(deadline=None, max_examples=40)
def test_error_of_each_block_is_bounded(name, values, rule):
    """Half the widest step of the element times the scale; by the floor and even rules also what saturates above the largest value."""
    scheme = SCHEMES[name]
    element = get_element(scheme.element)
    finite = np.unique(element.values[np.isfinite(element.values)])
    encoded = encode(values, scheme, rule=rule)
    scale = decode_scales(encoded.scales, scheme.scale) * (encoded.tensor_scale if scheme.tensor_scale else 1)
    over = np.maximum(block_max(np.abs(values), scheme) - element.max * scale, 0)
    bound = np.maximum(np.diff(finite).max() / 2 * scale, over) * (1 + 1e-12)
    assert (block_max(np.abs(values - decode(encoded)), scheme) <= bound).all()
    if scheme.scale == "e8m0":
        least = {"floor": 2 ** np.floor(np.log2(element.max)) / element.max * 2, "even": 2.0}.get(rule, 1.0)
        assert (over <= (least - 1) * element.max * scale + 1e-12).all()


@given(values=matrices)
@settings(deadline=None, max_examples=30)
def test_signs_and_powers_of_two_pass_through(values):
    for scheme in (MXFP4, NVFP4, INT4.model_copy(update={"block": (1, 32)})):
        stored = decode(encode(values, scheme))
        np.testing.assert_array_equal(decode(encode(-values, scheme)), -stored)
        np.testing.assert_array_equal(decode(encode(values * 2.0**-20, scheme)), stored * 2.0**-20)


@pytest.mark.parametrize(
    ("values", "scheme", "told"),
    [
        (np.ones((2, 33)), MXFP4, "K must be a multiple of the block of 32 .got 33"),
        (np.ones((2, 8)), NVFP4, "K must be a multiple of the block of 16"),
        (np.array([[np.nan] * 32]), MXFP4, "32 of 32 values to encode are NaN or infinite"),
        (np.array([[np.inf] * 16]), NVFP4, "NaN or infinite"),
        (np.ones((0, 32)), MXFP4, "nothing to encode"),
        (1.0, MXFP4, "nothing to encode"),
        (np.full((1, 32), 1e40), MXFP4, "too large for an E8M0 scale"),
        (np.full((1, 16), 1e300), NVFP4, "too large for a scale in fp32"),
        (np.full((1, 32), 1e6), group("int4", 32, "fp16"), "too large for a scale in fp16"),
        (np.full((1, 32), 1e300), group("int4", 32, "fp32"), "too large for a scale in fp32"),
    ],
)
def test_what_cannot_be_stored_is_refused(values, scheme, told):
    with pytest.raises(PerfModelError, match=told):
        encode(values, scheme)


def test_an_unknown_rule_is_named():
    with pytest.raises(PerfModelError, match=r"'flor'.*Did you mean floor"):
        encode(np.ones((1, 32)), MXFP4, rule="flor")


def test_scales_that_do_not_fit_are_refused():
    encoded = encode(np.ones((2, 64)), MXFP4)
    for scales in (encoded.scales[:1], encoded.scales[:, :1], None):
        with pytest.raises(PerfModelError, match=r"scales: codes \(2, 64\) need the shape \(2, 2\)"):
            decode(Encoded(MXFP4, encoded.codes, scales))
    with pytest.raises(PerfModelError, match="tensor_scale: the scheme needs none"):
        decode(Encoded(MXFP4, encoded.codes, encoded.scales, np.array(1.0)))
    for tensor_scale in (None, np.ones(3)):
        with pytest.raises(PerfModelError, match=r"tensor_scale: the scheme needs one scale for each matrix, \(\)"):
            decode(Encoded(NVFP4, encoded.codes, np.zeros((2, 4), np.uint8), tensor_scale))
    with pytest.raises(PerfModelError, match="zeros: codes"):
        decode(Encoded(ASYMMETRIC, encoded.codes, np.ones((2, 4), np.float32)))


def test_zero_points_by_hand():
    """From -3 to 12 in 15 steps of 1: the lowest code, -8, means -3, so zero is code -5."""
    encoded = encode(one_block(-3.0, 12.0, 4.4, length=16), ASYMMETRIC)
    assert (encoded.scales.tolist(), encoded.zeros.tolist()) == ([[1.0]], [[16 - 5]])
    np.testing.assert_allclose(decode(encoded)[0, :4], [-3, 12, 4, 0], rtol=0, atol=0)
    positive = encode(np.linspace(1, 15, 16), ASYMMETRIC)
    assert (positive.codes.shape, positive.zeros.tolist()) == ((16,), [8])  # zero is the lowest code, -8
    assert positive.bits == ASYMMETRIC.bits == 4 + 36 / 16


@given(values=matrices)
@settings(deadline=None, max_examples=40)
def test_zero_points_keep_zero_exact_and_halve_the_step_of_one_sided_blocks(values):
    for matrix in (values, np.abs(values)):
        encoded = encode(matrix, ASYMMETRIC)
        error = np.abs(matrix - decode(encoded))
        span = np.maximum(block_max(matrix, ASYMMETRIC), 0) + np.maximum(block_max(-matrix, ASYMMETRIC), 0)
        assert (block_max(error, ASYMMETRIC) <= span / 15 / 2 * (1 + 1e-5)).all()
        assert (error[matrix == 0] == 0).all()


def test_scales_of_a_zero_block_are_one():
    element = get_element("int4")
    for kind in ("fp32", "fp16", "bf16"):
        assert encode_scales(np.zeros(1), kind, element).astype(float) == 1
    assert encode_scales(np.zeros(1), "e4m3", element) == 0x38
