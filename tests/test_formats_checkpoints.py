"""Checkpoint layouts and the scale swizzle: bytes by hand, decoding written another way, identities, shape checks."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from perfmodel.errors import PerfModelError
from perfmodel.formats import Scheme, get_format
from perfmodel.formats import checkpoints as layouts
from perfmodel.formats.blocks import Encoded, decode, encode
from perfmodel.formats.packing import pack_int4_words, pack_nibbles, unpack_int4_words, unpack_nibbles
from perfmodel.formats.swizzle import swizzle_scales, unswizzle_scales

MXFP4, NVFP4, INT4 = (get_format(name).weights for name in ("mxfp4", "nvfp4", "int4-w4a16"))
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
nibbles = hnp.arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 5).map(lambda n: 8 * n)), elements=st.integers(0, 15))


def weights(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def test_the_low_nibble_is_the_even_element():
    assert pack_nibbles(np.array([[1, 2, 15, 0]], np.uint8)).tolist() == [[0x21, 0x0F]]


def test_int4_words_by_hand():
    """Values -8 .. -1 are stored as 0 .. 7, the first in the lowest bits; 0 .. 7 as 8 .. 15, which sets the sign of the word."""
    codes = encode(np.arange(-8.0, 8.0)[None], Scheme(element="int4", per="group", block=(1, 16), scale="fp32"))
    words = pack_int4_words(np.array([[*range(8, 16), *range(8)]], np.uint8))
    assert words.tolist() == [[0x76543210, np.int32(np.uint32(0xFEDCBA98).view(np.int32))]]
    assert words.dtype == np.int32
    assert codes.codes.dtype == np.uint8


@given(codes=nibbles)
@settings(deadline=None, max_examples=50)
def test_packing_and_unpacking_are_inverse(codes):
    np.testing.assert_array_equal(unpack_nibbles(pack_nibbles(codes)), codes)
    np.testing.assert_array_equal(unpack_int4_words(pack_int4_words(codes)), codes)
    values = np.where(codes < 8, codes.astype(int), codes.astype(int) - 16)
    word = sum((values[:, i::8] + 8).astype(np.int64) << (4 * i) for i in range(8))
    np.testing.assert_array_equal(pack_int4_words(codes).view(np.uint32), word)


def test_compressed_tensors_nvfp4():
    values = weights(4, 64)
    tensors = layouts.pack_compressed_tensors_nvfp4(encode(values, NVFP4))
    assert {n: (t.shape, t.dtype.name) for n, t in tensors.items()} == {
        "weight_packed": ((4, 32), "uint8"), "weight_scale": ((4, 4), "uint8"), "weight_global_scale": ((1,), "float32"),
    }  # fmt: skip
    assert tensors["weight_global_scale"][0] == pytest.approx(448 * 6 / np.abs(values).max(), rel=1e-6)
    scale = tensors["weight_scale"].view(ml_dtypes.float8_e4m3fn).astype(float) / tensors["weight_global_scale"].astype(float)
    decoded = decode(layouts.unpack_compressed_tensors_nvfp4(tensors))
    for n in range(4):
        for k in range(64):
            nibble = tensors["weight_packed"][n, k // 2] >> (4 * (k % 2)) & 15
            assert decoded[n, k] == pytest.approx(E2M1[nibble] * scale[n, k // 16], rel=1e-12)


def test_compressed_tensors_mxfp4():
    tensors = layouts.pack_compressed_tensors_mxfp4(encode(weights(4, 64), MXFP4))
    assert {n: (t.shape, t.dtype.name) for n, t in tensors.items()} == {
        "weight_packed": ((4, 32), "uint8"),
        "weight_scale": ((4, 2), "uint8"),
    }
    decoded = decode(layouts.unpack_compressed_tensors_mxfp4(tensors))
    for n in range(4):
        for k in range(64):
            nibble = tensors["weight_packed"][n, k // 2] >> (4 * (k % 2)) & 15
            assert decoded[n, k] == E2M1[nibble] * 2.0 ** (int(tensors["weight_scale"][n, k // 32]) - 127)


def test_modelopt_nvfp4_multiplies_by_the_second_scale():
    values = weights(4, 64)
    tensors = layouts.pack_modelopt_nvfp4(encode(values, NVFP4))
    assert {n: (t.shape, t.dtype.name) for n, t in tensors.items()} == {
        "weight": ((4, 32), "uint8"), "weight_scale": ((4, 4), "uint8"), "weight_scale_2": ((), "float32"),
    }  # fmt: skip
    assert tensors["weight_scale_2"] == np.float32(np.abs(values).max() / (6 * 448))
    other = layouts.pack_compressed_tensors_nvfp4(encode(values, NVFP4))
    np.testing.assert_array_equal(tensors["weight"], other["weight_packed"])
    np.testing.assert_array_equal(
        decode(layouts.unpack_modelopt_nvfp4({**tensors, "input_scale": np.float32(1)})), decode(encode(values, NVFP4))
    )


def test_modelopt_sets_zero_scales_to_one():
    """A foreign file's zero scale makes its block zero whatever the codes; as a scale of one, the codes must say so."""
    codes = np.full((1, 32), 7, np.uint8)
    foreign = Encoded(NVFP4, codes, np.array([[0, 0x38]], np.uint8), np.array(1.0))
    tensors = layouts.pack_modelopt_nvfp4(foreign)
    assert tensors["weight_scale"].tolist() == [[0x38, 0x38]]
    np.testing.assert_array_equal(decode(layouts.unpack_modelopt_nvfp4(tensors)), decode(foreign))


def test_gpt_oss_blocks_and_interleaved_rows():
    gate, up = weights(2, 3, 64, seed=1), weights(2, 3, 64, seed=2)
    both = layouts.interleave_gate_up(gate, up)
    np.testing.assert_array_equal(both[:, 4], gate[:, 2])
    np.testing.assert_array_equal(both[:, 5], up[:, 2])
    tensors = layouts.pack_gpt_oss(encode(both, MXFP4))
    assert {n: (t.shape, t.dtype.name) for n, t in tensors.items()} == {"blocks": ((2, 6, 2, 16), "uint8"), "scales": ((2, 6, 2), "uint8")}
    encoded = layouts.unpack_gpt_oss(tensors)
    decoded = decode(encoded)
    for e, r, k in np.ndindex(2, 6, 64):
        nibble = tensors["blocks"][e, r, k // 32, k % 32 // 2] >> (4 * (k % 2)) & 15
        assert decoded[e, r, k] == E2M1[nibble] * 2.0 ** (int(tensors["scales"][e, r, k // 32]) - 127)
    gate_back, up_back = layouts.split_gate_up(decoded)
    np.testing.assert_array_equal(gate_back, decode(encode(gate, MXFP4)))
    np.testing.assert_array_equal(up_back, decode(encode(up, MXFP4)))


def test_int4_pack_quantized():
    encoded = encode(weights(4, 256), INT4)
    tensors = layouts.pack_int4(encoded)
    assert {n: (t.shape, t.dtype.name) for n, t in tensors.items()} == {
        "weight_packed": ((4, 32), "int32"), "weight_scale": ((4, 2), "bfloat16"), "weight_shape": ((2,), "int64"),
    }  # fmt: skip
    decoded = decode(layouts.unpack_int4(tensors))
    np.testing.assert_array_equal(decoded, decode(encoded))
    words = tensors["weight_packed"].view(np.uint32)
    for n, k in np.ndindex(4, 256):
        value = int(words[n, k // 8] >> np.uint32(4 * (k % 8)) & np.uint32(15)) - 8
        assert decoded[n, k] == value * float(tensors["weight_scale"][n, k // 128])


def test_int4_zero_points_are_packed_along_rows():
    scheme = INT4.model_copy(update={"zero_point": True})
    encoded = encode(np.abs(weights(11, 256)) + np.arange(11)[:, None] - 5, scheme)
    tensors = layouts.pack_int4(encoded)
    assert (tensors["weight_zero_point"].shape, tensors["weight_zero_point"].dtype) == ((2, 2), np.int32)
    words = tensors["weight_zero_point"].view(np.uint32)
    for n, g in np.ndindex(11, 2):
        assert int(words[n // 8, g] >> np.uint32(4 * (n % 8)) & np.uint32(15)) == int(encoded.zeros[n, g]) ^ 8
    np.testing.assert_array_equal(decode(layouts.unpack_int4(tensors)), decode(encoded))


PAIRS = {
    "compressed-tensors nvfp4": (layouts.pack_compressed_tensors_nvfp4, layouts.unpack_compressed_tensors_nvfp4, NVFP4),
    "compressed-tensors mxfp4": (layouts.pack_compressed_tensors_mxfp4, layouts.unpack_compressed_tensors_mxfp4, MXFP4),
    "modelopt": (layouts.pack_modelopt_nvfp4, layouts.unpack_modelopt_nvfp4, NVFP4),
    "gpt-oss": (layouts.pack_gpt_oss, layouts.unpack_gpt_oss, MXFP4),
    "int4": (layouts.pack_int4, layouts.unpack_int4, INT4),
    "int4 asymmetric": (layouts.pack_int4, layouts.unpack_int4, INT4.model_copy(update={"zero_point": True})),
}


@pytest.mark.parametrize("name", PAIRS)
@given(seed=st.integers(0, 2**32), exponent=st.integers(-60, 60))
@settings(deadline=None, max_examples=25)
def test_layouts_round_trip(name, seed, exponent):
    """Unpacking what was packed gives the codes and scales; packing that again gives the same bytes."""
    pack, unpack, scheme = PAIRS[name]
    encoded = encode(weights(3, 256, seed=seed) * 2.0**exponent, scheme)
    tensors = pack(encoded)
    back = unpack(tensors)
    np.testing.assert_array_equal(back.codes, encoded.codes)
    np.testing.assert_array_equal(back.scales, encoded.scales)
    if encoded.tensor_scale is not None:
        np.testing.assert_allclose(back.tensor_scale, encoded.tensor_scale, rtol=2**-24)
    again = pack(back)
    assert all(np.array_equal(again[n], tensors[n]) and again[n].dtype == tensors[n].dtype for n in tensors)


@pytest.mark.parametrize("name", [n for n in PAIRS if not n.startswith("int4")])
def test_layouts_take_stacked_experts(name):
    pack, unpack, scheme = PAIRS[name]
    stacked = encode(weights(3, 4, 64) * np.array([1.0, 8, 64]).reshape(3, 1, 1), scheme)
    np.testing.assert_allclose(decode(unpack(pack(stacked))), decode(stacked), rtol=1e-6)


def test_scales_in_types_of_ml_dtypes_are_taken_as_bytes():
    tensors = layouts.pack_compressed_tensors_nvfp4(encode(weights(2, 32), NVFP4))
    typed = {**tensors, "weight_scale": tensors["weight_scale"].view(ml_dtypes.float8_e4m3fn)}
    np.testing.assert_array_equal(layouts.unpack_compressed_tensors_nvfp4(typed).scales, tensors["weight_scale"])


def bad(**changes):
    """Tensors of each layout with some replaced, or dropped where None."""

    def apply(tensors):
        return {name: tensor for name, tensor in {**tensors, **changes}.items() if tensor is not None}

    return apply


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("compressed-tensors nvfp4", bad(weight_packed=None), "weight_packed: tensor is missing"),
        ("compressed-tensors nvfp4", bad(weight_scale=None), "weight_scale: tensor is missing"),
        ("compressed-tensors nvfp4", bad(weight_packed=np.zeros((3, 128), np.float32)), "weight_packed: tensor has the wrong type"),
        ("compressed-tensors nvfp4", bad(weight_packed=np.zeros((3, 128), np.uint16)), "packed nibbles must be uint8"),
        (
            "compressed-tensors nvfp4",
            bad(weight_scale=np.zeros((3, 8), np.uint8)),
            r"weight_scale: must hold one byte a scale, shape \(3, 16\)",
        ),
        ("compressed-tensors nvfp4", bad(weight_scale=np.zeros((3, 16), np.float32)), "weight_scale: must hold one byte a scale"),
        ("compressed-tensors nvfp4", bad(weight_packed=np.zeros((3, 12), np.uint8)), "24 weights a row are no multiple of the block of 16"),
        ("compressed-tensors nvfp4", bad(weight_global_scale=np.zeros(1, np.float32)), "weight_global_scale: must be positive and finite"),
        (
            "compressed-tensors nvfp4",
            bad(weight_global_scale=np.ones(2, np.float32)),
            "weight_global_scale: must hold one scale for each matrix",
        ),
        (
            "compressed-tensors mxfp4",
            bad(weight_scale=np.zeros((3, 16), np.uint8)),
            r"weight_scale: must hold one byte a scale, shape \(3, 8\)",
        ),
        ("modelopt", bad(weight_scale_2=np.array(np.nan, np.float32)), "weight_scale_2: must be positive and finite"),
        ("gpt-oss", bad(blocks=np.zeros((3, 8, 8), np.uint8)), r"blocks: must be \[E, rows, K/32, 16\]"),
        ("gpt-oss", bad(scales=np.zeros((3, 9), np.uint8)), "scales: must hold one byte a scale"),
        ("int4", bad(weight_shape=np.array([3, 255])), r"weight_shape: disagrees with weight_packed, which holds \(3, 256\)"),
        ("int4", bad(weight_scale=np.ones((3, 3), np.float16)), r"weight_scale: must be \[N, K/group\] for weights \(3, 256\)"),
        ("int4", bad(weight_scale=np.ones((3, 2))), "weight_scale: must be float16, bfloat16 or float32"),
        ("int4", bad(weight_packed=np.zeros((3, 32), np.int64)), "packed INT4 weights must be int32"),
        ("int4", bad(weight_g_idx=np.zeros(256, np.int32)), "weight_g_idx: reordered INT4 is not read"),
        ("int4", bad(weight_zero_point=np.zeros((3, 2), np.int32)), r"weight_zero_point: must have the shape \(1, 2\)"),
        ("int4", bad(weight_zero_point=np.zeros((1, 2), np.int8)), "packed INT4 weights must be int32"),
    ],
)
def test_tensors_that_do_not_fit_are_named(name, change, told):
    pack, unpack, scheme = PAIRS[name]
    tensors = pack(encode(weights(3, 256), scheme))
    with pytest.raises(PerfModelError, match=told):
        unpack(change(tensors))


@pytest.mark.parametrize("name", PAIRS)
def test_a_layout_refuses_another_scheme(name):
    pack, _, scheme = PAIRS[name]
    other = MXFP4 if scheme == NVFP4 else NVFP4
    with pytest.raises(PerfModelError, match="holds"):
        pack(encode(weights(3, 256), other))


def test_other_refusals():
    with pytest.raises(PerfModelError, match="one matrix a module"):
        layouts.pack_int4(encode(weights(2, 3, 256), INT4))
    with pytest.raises(PerfModelError, match="one shape"):
        layouts.interleave_gate_up(np.ones((2, 4)), np.ones((3, 4)))
    with pytest.raises(PerfModelError, match="must alternate"):
        layouts.split_gate_up(np.ones((3, 4)))
    with pytest.raises(PerfModelError, match="too small for this layout's FP32 divisor"):
        layouts.pack_compressed_tensors_nvfp4(encode(weights(1, 32) * 1e-44, NVFP4))
    with pytest.raises(PerfModelError, match="K must be a multiple of 8"):
        pack_int4_words(np.zeros((1, 4), np.uint8))
    with pytest.raises(PerfModelError, match="uint8 under 16"):
        pack_nibbles(np.array([[16, 1]], np.uint8))


@given(rows=st.integers(1, 300), columns=st.integers(1, 20), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=30)
def test_swizzle_follows_the_formula(rows, columns, seed):
    scales = np.random.default_rng(seed).integers(0, 256, (rows, columns), np.uint8)
    swizzled = swizzle_scales(scales)
    across = -(-columns // 4)
    expected = np.zeros(-(-rows // 128) * across * 512, np.uint8)
    for r in range(rows):
        for c in range(columns):
            tile, row, column = (r // 128) * across + c // 4, r % 128, c % 4
            expected[tile * 512 + (row % 32) * 16 + (row // 32) * 4 + column] = scales[r, c]
    np.testing.assert_array_equal(swizzled, expected)
    np.testing.assert_array_equal(unswizzle_scales(swizzled, rows, columns), scales)


def test_swizzle_of_stacked_experts():
    scales = np.random.default_rng(0).integers(0, 256, (2, 3, 130, 5), np.uint8)
    swizzled = swizzle_scales(scales)
    assert swizzled.shape == (2, 3, 2 * 2 * 512)
    np.testing.assert_array_equal(swizzled[1, 2], swizzle_scales(scales[1, 2]))
    np.testing.assert_array_equal(unswizzle_scales(swizzled, 130, 5), scales)


def test_swizzle_refuses_what_does_not_fit():
    with pytest.raises(PerfModelError, match="must be uint8"):
        swizzle_scales(np.ones((2, 4)))
    with pytest.raises(PerfModelError, match="rows and columns"):
        swizzle_scales(np.ones((0, 4), np.uint8))
    with pytest.raises(PerfModelError, match="fill 2 x 1 tiles of 512 B"):
        unswizzle_scales(np.zeros(512, np.uint8), 129, 4)
