"""Element types: every code against published tables, rounding against ml_dtypes and against arithmetic written another way."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from perfmodel.errors import PerfModelError
from perfmodel.formats.elements import ELEMENT_MATH, get_element

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
ML_DTYPES = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
}
near_one, any_size = st.floats(-8, 8, width=32), st.floats(-(2.0**100), 2.0**100, width=32)
floats32 = hnp.arrays(np.float32, st.integers(1, 40), elements=near_one | any_size)


def minifloat(code: int, exponent_bits: int, mantissa_bits: int, bias: int) -> float:
    """What a code means, from the definition of a binary float without infinities."""
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    if exponent == 0:
        return sign * mantissa / (1 << mantissa_bits) * 2.0 ** (1 - bias)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


def test_e2m1_codes_are_the_published_table():
    np.testing.assert_array_equal(get_element("e2m1").values, [*E2M1, *(-v for v in E2M1)])


def test_e3m0_codes_are_zero_and_powers_of_two():
    magnitudes = [0, 0.25, 0.5, 1, 2, 4, 8, 16]
    np.testing.assert_array_equal(get_element("e3m0").values, [*magnitudes, *(-v for v in magnitudes)])


def test_nf4_codes_are_the_published_quantiles():
    table = [-1, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0,
             0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1]  # fmt: skip
    np.testing.assert_allclose(get_element("nf4").values, table, atol=5.1e-8, rtol=0)
    assert (get_element("nf4").values.astype(np.float32) == get_element("nf4").values).all()


@pytest.mark.parametrize(("name", "bits"), [("int4", 4), ("int8", 8)])
def test_integer_codes_are_twos_complement(name, bits):
    half = 1 << (bits - 1)
    np.testing.assert_array_equal(get_element(name).values, [*range(half), *range(-half, 0)])


@pytest.mark.parametrize(
    ("name", "layout", "special"),
    [("e2m1", (2, 1, 1), []), ("e4m3", (4, 3, 7), [0x7F, 0xFF]), ("e5m2", (5, 2, 15), [*range(0x7C, 0x80), *range(0xFC, 0x100)])],
)
def test_float_codes_follow_the_definition(name, layout, special):
    values = get_element(name).values
    for code, value in enumerate(values):
        if code in special:
            assert not np.isfinite(value)
        else:
            assert value == minifloat(code, *layout)


@pytest.mark.parametrize("name", ELEMENT_MATH)
def test_every_finite_code_survives_decode_and_encode(name):
    element = get_element(name)
    codes = np.flatnonzero(np.isfinite(element.values)).astype(np.uint16 if element.bits == 16 else np.uint8)
    back = element.encode(element.decode(codes))
    np.testing.assert_array_equal(back, codes)
    assert back.dtype == codes.dtype


@pytest.mark.parametrize(
    ("name", "largest", "smallest"),
    [
        ("e2m1", 6, 0.5),
        ("e3m0", 16, 0.25),
        ("nf4", 1, 0.07958029955625534),
        ("int4", 7, 1),
        ("int8", 127, 1),
        ("e4m3", 448, 2**-9),
        ("e5m2", 57344, 2**-16),
        ("bf16", (2 - 2**-7) * 2.0**127, 2.0**-133),
        ("fp16", 65504, 2**-24),
    ],
)
def test_range(name, largest, smallest):
    element = get_element(name)
    assert (element.max, element.min_positive) == (largest, smallest)
    np.testing.assert_array_equal(
        element.round([largest * 1.9, -largest * 3]), [largest, element.values[np.isfinite(element.values)].min()]
    )


@pytest.mark.parametrize(
    ("value", "rounded"), [(0.25, 0), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5, 4), (5.001, 6), (6.9, 6)]
)
def test_e2m1_midpoints_go_to_the_even_code(value, rounded):
    assert get_element("e2m1").round(value) == rounded
    assert get_element("e2m1").round(-value) == -rounded


def test_negative_zero_has_its_own_code():
    assert get_element("e2m1").encode([-0.0, 0.0, -0.1]).tolist() == [8, 0, 8]
    assert get_element("int4").encode([-0.0, -0.4]).tolist() == [0, 0]


@pytest.mark.parametrize("name", ML_DTYPES)
@given(values=floats32)
@settings(deadline=None, max_examples=60)
def test_rounding_agrees_with_ml_dtypes_on_float32(name, values):
    element = get_element(name)
    values = np.clip(values, -element.max, element.max).astype(np.float32)
    expected = values.astype(ML_DTYPES[name]).view(np.uint16 if element.bits == 16 else np.uint8)
    np.testing.assert_array_equal(element.encode(values), expected)


@pytest.mark.parametrize("name", ML_DTYPES)
def test_rounding_agrees_with_ml_dtypes_at_and_beside_every_midpoint(name):
    element = get_element(name)
    finite = np.unique(element.values[np.isfinite(element.values)])
    middle = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
    middle = middle[np.isin(middle.astype(np.float64) * 2, finite[1:] + finite[:-1])]  # what float32 holds exactly
    values = np.concatenate([middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))])
    np.testing.assert_array_equal(element.encode(values), values.astype(ML_DTYPES[name]).view(element.encode(0.0).dtype))


@pytest.mark.parametrize(("name", "middle", "up"), [("bf16", 1 + 2**-8, 1 + 2**-7), ("e4m3", 1 + 2**-4, 1.125), ("e2m1", 0.25, 0.5)])
def test_a_value_just_over_a_midpoint_is_rounded_once(name, middle, up):
    """ml_dtypes goes from float64 through float32, which lands on the midpoint and then on the even neighbour below."""
    over = np.array([np.nextafter(middle, 2)])
    assert get_element(name).round(over) == up
    assert over.astype(ML_DTYPES[name]).astype(np.float64) != up


@pytest.mark.parametrize(("name", "low", "high"), [("int4", -8, 7), ("int8", -128, 127)])
@given(values=hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-300, 300)))
@settings(deadline=None, max_examples=60)
def test_integers_round_half_to_even_and_saturate(name, low, high, values):
    np.testing.assert_array_equal(get_element(name).round(values), np.clip(np.rint(values), low, high))


@pytest.mark.parametrize("name", ["nf4", "e3m0", "e2m1"])
@given(values=hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-20, 20)))
@settings(deadline=None, max_examples=60)
def test_no_code_is_nearer_than_the_one_chosen(name, values):
    element = get_element(name)
    distance = np.abs(values[:, None] - element.values)
    np.testing.assert_allclose(np.abs(values - element.round(values)), distance.min(axis=1), rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ELEMENT_MATH)
@given(values=hnp.arrays(np.float64, st.integers(2, 40), elements=st.floats(-1e6, 1e6)))
@settings(deadline=None, max_examples=30)
def test_rounding_keeps_the_order(name, values):
    assert (np.diff(get_element(name).round(np.sort(values))) >= 0).all()


def test_e2m1_times_powers_of_two_is_exact_in_e4m3_over_15_binades():
    e2m1, e4m3 = get_element("e2m1").values, get_element("e4m3")
    exact = [k for k in range(-12, 10) if np.array_equal(e4m3.round(e2m1 * 2.0**k), e2m1 * 2.0**k)]
    assert exact == list(range(-8, 7))


def test_products_of_e2m1_and_e4m3_are_exact_in_bf16():
    e4m3 = get_element("e4m3").values
    products = np.outer(get_element("e2m1").values, e4m3[np.isfinite(e4m3)])
    np.testing.assert_array_equal(get_element("bf16").round(products), products)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(bad):
    with pytest.raises(PerfModelError, match="1 of 3 values to encode are NaN or infinite"):
        get_element("e2m1").encode([1.0, bad, 2.0])


@pytest.mark.parametrize("bad", [["a"], [1j], [None, {}]])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(PerfModelError, match="real numbers"):
        get_element("e4m3").encode(bad)


def test_wrong_codes_are_refused():
    with pytest.raises(PerfModelError, match=r"4 bits .*got 16"):
        get_element("e2m1").decode(np.array([3, 16], np.uint8))
    with pytest.raises(PerfModelError, match="unsigned"):
        get_element("e2m1").decode(np.array([-1]))


def test_bf16_and_smaller_inputs_are_taken():
    assert get_element("e2m1").encode(np.array([1.5, -3], ml_dtypes.bfloat16)).tolist() == [3, 13]
    assert get_element("int8").encode(np.array([5, -5])).tolist() == [5, 251]


def test_shape_is_kept():
    assert get_element("fp16").encode(np.zeros((2, 0, 3))).shape == (2, 0, 3)
    assert get_element("fp16").encode(1.0).shape == ()
