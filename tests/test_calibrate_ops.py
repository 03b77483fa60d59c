"""Fits of ops: parameters that made the rows come back, few rows are drawn, and what says nothing stays out of the file."""

import numpy as np
import pytest

from perfmodel.hardware import load_gpu
from perfmodel.ops.gemm import GEMM
from perfmodel.ops.op import Parameter, Use
from perfmodel.profiles.op_profile import OpFit, OpProfile, load_op_profile
from perfmodel.profiles.profile import Interval, Provenance
from perfmodel.validation.calibrate import Family, families
from perfmodel.validation.calibrate_ops import MOST_ROWS, MOST_SHARE, MOST_SHARE_APART, calibrate_ops, fit_op_family, refitted_op
from perfmodel.validation.fitting import hashed_share, solve
from perfmodel.validation.measurements import Labels, Measurements
from perfmodel.validation.predicting import hold
from perfmodel.validation.predicting_ops import predict_ops_by
from perfmodel.validation.silicon import used

TRUTH = {"fixed_us": 4.0, "bandwidth_efficiency": 0.7, "l2_efficiency": 0.5, "tile_fixed_us": 2.0, "overlap_exponent": 3.0}
MENUS = {"tile_m": (128,), "tile_n": (128,)}


def made_rows(count=6000, noise=0.02, kernel="gemm-torch"):
    """bf16 GEMMs on H200 by known parameters, with a little noise."""
    rng = np.random.default_rng(1)
    sizes = {
        name: np.exp2(rng.integers(low, high, count)).astype(np.int64) for name, low, high in (("m", 0, 14), ("n", 7, 15), ("k", 7, 15))
    }
    sizes |= {"copies": np.full(count, 6), "eager": np.zeros(count, np.int64)}
    sizes["n"] += 32 * rng.integers(0, 30, count)
    time = GEMM.time(
        Use(load_gpu("h200"), "bf16", MENUS), {name: column.astype(float) for name, column in sizes.items()}, GEMM.complete(TRUTH)
    )
    labels = {
        name: Labels.of([text] * count) for name, text in (("gpu", "h200"), ("kernel", kernel), ("format", "bf16"), ("source", "made"))
    }
    return Measurements("gemm", "made", np.arange(count), labels, sizes, time.total * np.exp(rng.normal(0, noise, count)))


def base(**parameters):
    fit = OpFit(
        architectures=("hopper",), formats=("bf16",), menus=MENUS, parameters=parameters, interval=Interval(low=0.5, high=2.0),
        provenance=Provenance(status="estimated", source="a test", date="2026-01-01"),
    )  # fmt: skip
    return OpProfile(id="made", op="gemm", name="made", summary="made", fits=(fit,))


@pytest.fixture(scope="module")
def fitted():
    rows = made_rows()
    share = hashed_share([rows.sizes["n"], rows.sizes["k"]])
    return fit_op_family(rows, np.arange(len(rows)), share, Family("made", "hopper", "bf16"), base())


def test_parameters_come_back(fitted):
    for name in ("fixed_us", "tile_fixed_us", "l2_efficiency"):  # bandwidth trades with overlap, wave rounding and depth
        assert fitted.fit.parameters[name] == pytest.approx(TRUTH[name], rel=0.1), name


def test_few_rows_are_drawn(fitted):
    assert 40 < fitted.rows <= (MOST_SHARE + MOST_SHARE_APART) * 6000 + 1
    assert fitted.fit.provenance.rows == fitted.rows < MOST_ROWS


def test_what_says_nothing_stays_out(fitted):
    # L2 feeds a tile more slowly than tensor cores multiply it, whatever their efficiency
    assert not {"compute_efficiency", "row_ns", "quantise_bandwidth", "host_us", "unaligned_us", "split_us"} & set(fitted.fit.parameters)


def test_intervals_are_as_wide_as_the_noise(fitted):
    assert fitted.fit.interval.high == pytest.approx(np.exp(1.28 * 0.02), abs=0.025)
    assert fitted.fit.interval.low == pytest.approx(np.exp(-1.28 * 0.02), abs=0.025)


def test_too_few_rows_or_no_fit_to_start_from_give_none():
    rows = made_rows(30)
    share = hashed_share([rows.sizes["n"], rows.sizes["k"]])
    assert fit_op_family(rows, np.arange(30), share, Family("made", "hopper", "bf16"), base()) is None
    assert fit_op_family(rows, np.arange(30), share, Family("made", "hopper", "fp8"), base()) is None


def test_a_fit_replaces_that_of_its_architecture_and_format_only(fitted):
    before = base()
    other = before.fits[0].model_copy(update={"architectures": ("hopper", "ada")})
    after = refitted_op(before.model_copy(update={"fits": (other,)}), [fitted])
    assert after.find_fit("hopper", "bf16") == fitted.fit
    assert after.find_fit("ada", "bf16").parameters == {}


def test_a_fit_that_others_keep_stays_one_so_that_its_rows_count_once(fitted):
    shared = {"architectures": ("hopper", "ada", "ampere"), "formats": ("bf16", "fp8")}
    before = base().model_copy(update={"fits": (base().fits[0].model_copy(update=shared),)})
    after = refitted_op(before, [fitted])
    assert [(fit.architectures, fit.formats) for fit in after.fits[1:]] == [(("hopper",), ("fp8",)), (("ada", "ampere"), ("bf16", "fp8"))]


def test_a_fit_in_parts_was_drawn_from_rows_once(monkeypatch):
    source = Provenance(status="measured", source="a test", date="2026-01-01", rows=77)
    whole = base(fixed_us=2.0).fits[0].model_copy(update={"provenance": source})
    parts = tuple(whole.model_copy(update={"architectures": (name,)}) for name in ("hopper", "ampere"))
    split = base().model_copy(update={"id": "gemm-torch", "fits": parts})
    monkeypatch.setattr(used, "load_op_profile", lambda name: split)
    rows = made_rows(100)
    rows.labels["gpu"] = Labels.of(["h200", "a100-80gb"] * 50)
    assert used.rows_used(rows, np.ones(100, bool)) == (77, 100)


def test_rows_of_a_family_are_found_by_its_profile():
    rows = made_rows(3000)
    usable = np.ones(len(rows), bool)
    assert list(families(rows, usable)) == [Family("gemm-torch", "hopper", "bf16")]
    fits = calibrate_ops(rows, usable)
    assert [one.family.kernel for one in fits] == ["gemm-torch"]
    assert fits[0].fit.menus == load_op_profile("gemm-torch").find_fit("hopper", "bf16").menus
    held = hold(rows, predict_ops_by(fits))
    assert np.median(np.abs(held.predicted / held.measured - 1)) < 0.1


def test_a_kernel_without_a_profile_is_not_fitted():
    assert calibrate_ops(made_rows(300, kernel="unheard-of"), np.ones(300, bool)) == []


def test_an_unknown_expected_at_one_is_found_as_well():
    x = np.linspace(1, 50, 200)
    found, errors = solve(lambda p: 1e-6 * (x + p["a"]), 1e-6 * (x + 7.0), {"a": Parameter(1.0, 1.0, 0.01, 100.0)})
    assert found["a"] == pytest.approx(7.0, rel=0.02)
    assert errors["a"] < 0.1
