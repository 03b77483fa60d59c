"""The catalogue of formats: bits, arithmetic types, execution, and what a user is told when a GPU lacks the units."""

import shutil
import sys
import time

import pytest

from perfmodel.errors import PerfModelError
from perfmodel.formats import Scheme, format, format_ids, get_format

HOPPER = ("fp16", "bf16", "tf32", "fp8", "int8")
AMPERE = ("fp16", "bf16", "tf32", "int8", "int4")
VOLTA = ("fp16",)
BLACKWELL = ("fp16", "bf16", "tf32", "fp8", "fp6", "fp4", "int8")

# id: (bits of weights, bits of activations, type on Blackwell, on Hopper, on Ampere, on Volta); None: does not run
EXPECTED = {
    "bf16": (16, 16, "bf16", "bf16", "bf16", None),
    "fp16": (16, 16, "fp16", "fp16", "fp16", "fp16"),
    "fp8": (8, 8, "fp8", "fp8", None, None),
    "fp8-block": (8 + 32 / 128**2, 8 + 32 / 128, "fp8", "fp8", None, None),
    "int8": (8, 8, "int8", "int8", "int8", None),
    "mxfp8": (8.25, 8.25, "fp8", "fp8", None, None),
    "nvfp4": (4.5, 4.5, "fp4", None, None, None),
    "mxfp4": (4.25, 4.25, "fp4", None, None, None),
    "mxfp4-w4a8": (4.25, 8.25, "fp8", "fp8", None, None),
    "mxfp4-w4a16": (4.25, 16, "bf16", "bf16", "bf16", "fp16"),
    "nvfp4-w4a16": (4.5, 16, "bf16", "bf16", "bf16", "fp16"),
    "int4-w4a16": (4.125, 16, "bf16", "bf16", "bf16", "fp16"),
    "nf4-w4a16": (4.5, 16, "bf16", "bf16", "bf16", "fp16"),
    "w4afp8-int4": (4.125, 8, "fp8", "fp8", None, None),
}


def test_the_catalogue_holds_every_format_of_the_interface():
    assert format_ids() == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_bits_with_scales_and_arithmetic_types(name):
    weights, activations, *types = EXPECTED[name]
    form = get_format(name)
    assert (form.weights.bits, form.activations.bits) == (weights, activations)
    assert form.weights.bits == form.weights.value_bits + form.weights.scale_bits
    for gpu_types, expected in zip((BLACKWELL, HOPPER, AMPERE, VOLTA), types, strict=True):
        if expected:
            assert form.math_type(gpu_types) == expected
        else:
            with pytest.raises(PerfModelError, match=rf"{name} needs {form.math[0]}.* units"):
                form.math_type(gpu_types)


@pytest.mark.parametrize(
    ("name", "gpu_types", "told"),
    [
        ("nvfp4", HOPPER, "The same weights run there as nvfp4-w4a16."),
        ("nvfp4", VOLTA, "The same weights run there as nvfp4-w4a16."),
        ("mxfp4", HOPPER, "The same weights run there as mxfp4-w4a8 or mxfp4-w4a16."),
        ("mxfp4", AMPERE, "The same weights run there as mxfp4-w4a16."),
        ("w4afp8-int4", AMPERE, "The same weights run there as int4-w4a16."),
        ("fp8", VOLTA, "Formats that run there: fp16, int4-w4a16, mxfp4-w4a16, nf4-w4a16, nvfp4-w4a16."),
        ("fp8", (), "No format of ours runs there."),
    ],
)
def test_a_gpu_without_the_units_is_told_what_runs(name, gpu_types, told):
    with pytest.raises(PerfModelError) as caught:
        get_format(name).math_type(gpu_types)
    assert str(caught.value).endswith(told)
    assert caught.value.exit_code == 2


def test_only_w4a16_and_w4a8_dequantise():
    assert {name for name in format_ids() if get_format(name).dequantises} == {
        "mxfp4-w4a8", "mxfp4-w4a16", "nvfp4-w4a16", "int4-w4a16", "nf4-w4a16", "w4afp8-int4",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "on_hopper", "on_blackwell"),
    [
        ("bf16", "native", "native"),
        ("fp8", "native", "native"),
        ("int8", "native", "native"),
        ("fp8-block", "rescaled", "rescaled"),
        ("mxfp8", "rescaled", "native"),
        ("mxfp4-w4a8", "dequantised", "native"),
        ("mxfp4-w4a16", "dequantised", "dequantised"),
        ("w4afp8-int4", "dequantised", "dequantised"),
    ],
)
def test_execution_by_architecture(name, on_hopper, on_blackwell):
    form = get_format(name)
    assert [form.execution(a) for a in ("hopper", "blackwell", "blackwell-rtx")] == [on_hopper, on_blackwell, on_blackwell]


def test_every_alternative_holds_the_same_weights():
    for name in format_ids():
        for other in get_format(name).instead:
            if name != "bf16":  # bf16 weights are converted to fp16 for want of better on Volta
                assert get_format(other).weights == get_format(name).weights, (name, other)


def test_an_unknown_format_suggests_the_nearest():
    with pytest.raises(PerfModelError, match=r"unknown format .*'nvfp5'.* Did you mean nvfp4"):
        get_format("nvfp5")


@pytest.mark.parametrize("name", ["", "../format", "nvfp4.yaml", "a" * 10_000, "\0"])
def test_strange_ids_are_only_unknown(name):
    with pytest.raises(PerfModelError, match="unknown format"):
        get_format(name)


@pytest.fixture
def own_catalogue(tmp_path, monkeypatch):
    """A copy of the catalogue to add files to, read afresh."""
    shutil.copytree(format.CATALOG, tmp_path / "catalog")
    monkeypatch.setattr(format, "CATALOG", tmp_path / "catalog")
    format._ids.cache_clear(), get_format.cache_clear()
    yield tmp_path / "catalog"
    format._ids.cache_clear(), get_format.cache_clear()


def test_adding_a_format_is_adding_a_file(own_catalogue):
    text = (own_catalogue / "int4-w4a16.yaml").read_text()
    (own_catalogue / "int4-g32-w4a16.yaml").write_text(text.replace("[1, 128]", "[1, 32]"))
    assert "int4-g32-w4a16" in format_ids()
    assert get_format("int4-g32-w4a16").weights.bits == 4 + 16 / 32


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("element: e2m1", "element: e2m2", "weights.element"),
        ("block: [1, 32]", "block: [1, 0]", "weights.block"),
        ("block: [1, 32], ", "", "`block` belongs to `per: group`"),
        (", scale: e8m0", "", "`scale` belongs to every scheme"),
        ("math: [fp4]", "math: []", "math"),
        ("math: [fp4]", "maths: [fp4]", "math"),
        ("per: group", "per: tensor", "`block` belongs"),
    ],
)
def test_a_broken_file_is_named_with_its_field(own_catalogue, old, new, told):
    file = own_catalogue / "mxfp4.yaml"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(PerfModelError) as caught:
        get_format("mxfp4")
    assert str(file) in str(caught.value)
    assert told in str(caught.value)


def test_zero_points_count_as_bits_and_belong_to_integers():
    assert Scheme(element="int4", per="group", block=(1, 128), scale="fp16", zero_point=True).bits == 4 + 20 / 128
    with pytest.raises(ValueError, match="integers in groups"):
        Scheme(element="e2m1", per="group", block=(1, 32), scale="fp32", zero_point=True)


def test_a_tensor_scale_needs_block_scales():
    with pytest.raises(ValueError, match="second scale"):
        Scheme(element="e4m3", per="tensor", scale="fp32", tensor_scale=True)


def test_one_format_loads_in_under_5_ms():
    if sys.gettrace():
        pytest.skip("a tracer, coverage say, slows the loader down")
    get_format("bf16")  # imports
    best = float("inf")
    for _ in range(5):
        get_format.cache_clear()
        start = time.process_time()
        get_format("nvfp4")
        best = min(best, time.process_time() - start)
    assert best < 5e-3
