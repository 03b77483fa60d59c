"""`perfmodel validate runs`: our kernels apart from torch's, fitted rows apart from unseen ones, DRAM bytes against counters."""

import json
import os
import subprocess
import sys

import pytest
from runs_examples import a_run

from perfmodel.errors import PerfModelError
from perfmodel.profiles import load_profile
from perfmodel.validation.runs.fit import SHAPE, fit_runs, is_fitted
from perfmodel.validation.runs.predict import predict
from perfmodel.validation.runs.store import Store
from perfmodel.validation.runs.validate import dram_score, hold_runs, validate_runs


@pytest.fixture(scope="module")
def committed():
    return validate_runs()


def test_our_kernels_on_shapes_that_were_not_fitted(committed):
    summary = committed.summary()
    overall = summary["overall"]
    assert overall["scored"] >= 100
    assert overall["median_ape"] < 0.04
    assert overall["mape"] < 0.05
    assert set(overall["flagged_by"]) == {"no-profile"}  # mma.sync kernels of older GPUs
    assert summary["fitted"]["scored"] == summary["calibration"]["rows"] == 52
    assert summary["peers"]["scored"] == 61
    assert summary["by_kind"]["layer"]["scored"] == 62
    assert sum(f["n"] for f in summary["families"]) == overall["n"] + summary["peers"]["n"]


def test_dram_bytes(committed):
    found = committed.summary()["dram_bytes"]
    assert found["scored"] == 40
    assert found["median_ape"] < 0.02
    assert found["worst_ape"] < 0.06


def test_rows_hold_what_the_contract_says(committed):
    rows = list(committed.rows())
    assert len(rows) == 412
    for row in rows:
        if row["flag"] == "no-profile":
            assert row["predicted_us"] is row["interval_us"] is row["floor_us"] is None
        else:
            assert row["floor_us"] <= row["interval_us"][0] <= row["predicted_us"] <= row["interval_us"][1]
    assert sum(row["fitted"] for row in rows) == 83  # 31 of them of kernels without a profile


def test_a_row_faster_than_physics_is_flagged():
    found = hold_runs([a_run(us=1.0), a_run(1, us=105.0)]).summary()["overall"]
    assert (found["scored"], found["flagged_by"]) == (1, {"below-floor": 1})


def test_times_of_wrong_results_are_no_measurements():
    wrong = [a_run(1, rel_err=0.5), a_run(2, nan=3), a_run(3, rel_err=0.002, nan=0)]
    assert [run.wrong for run in wrong] == [True, True, False]
    assert hold_runs(wrong).summary()["overall"]["n"] == 1


def test_a_layer_that_quantises_its_hidden_state_may_be_off_by_its_steps():
    layer = {"kind": "layer", "topk": 2, "hidden": 2048, "inter": 768, "n": None, "k": None, "tokens_per_expert": None, "rel_err": 0.016}
    assert a_run(1, **layer, format="mxfp4-w4a16").wrong
    assert not a_run(1, **layer, format="mxfp4-w4a8").wrong


def test_kernels_and_tiles_without_a_profile():
    cases = [a_run(kernel=kernel, profile=profile, format=form, gpu=gpu).case for kernel, profile, form, gpu in (
        ("numba-wgmma-mxfp4-w4a16-n96", "numba-wgmma", "mxfp4-w4a16", "h200"),
        ("numba-wgmma-int4-w4a16-n64", "numba-wgmma", "int4-w4a16", "h200"),
        ("numba-mma-mxfp4-w4a16-n64", "numba-mma", "mxfp4-w4a16", "h200"),
        ("numba-wgmma-mxfp4-w4a16-n64", "numba-wgmma", "mxfp4-w4a16", "b200"),
        ("numba-wgmma-mxfp4-w4a16-n64", "numba-wgmma", "mxfp4-w4a16", None),
        ("numba-wgmma-mxfp4-w4a16-n64", "numba-wgmma", "mxfp4-w4a16", "h200"),
    )]  # fmt: skip
    assert [one is None for one in predict(cases)] == [True] * 5 + [False]


def test_score_of_bytes_by_hand():
    runs = [a_run(dram_read_bytes=90.0, dram_write_bytes=10.0), a_run(dram_read_bytes=200.0, dram_write_bytes=0.0)]
    found = dram_score(list(zip(runs, (110.0, 190.0), strict=True)))
    assert found == {"scored": 2, "median_ape": pytest.approx(0.075), "mape": pytest.approx(0.075), "worst_ape": pytest.approx(0.1),
                     "bias": pytest.approx(0.025)}  # fmt: skip
    assert dram_score([])["scored"] == 0


def test_a_store_counts_too_and_its_copies_of_committed_rows_do_not(tmp_path, committed):
    store = Store(tmp_path / "s.duckdb")
    store.add([*committed.runs, a_run(5)])
    assert len(validate_runs(store=store.path).runs) == len(committed.runs) + 1
    assert len(validate_runs(kernel="numba-decode").runs) == 78
    with pytest.raises(PerfModelError, match="no run has them"):
        validate_runs(gpu="b200")


def test_profiles_hold_what_the_runs_give():
    """The bundled numbers are those that the command finds, on one shape alone."""
    fits = fit_runs()
    assert {(f.profile, f.format) for f in fits} == {
        ("numba-decode", "mxfp4-w4a16"), ("numba-wgmma", "mxfp4-w4a16"), ("numba-wgmma", "mxfp4-w4a8"),
    }  # fmt: skip
    for fitted in fits:
        bundled = load_profile(fitted.profile).fit("hopper", fitted.format)
        assert bundled.provenance.rows == fitted.rows
        for name, value in fitted.fit.parameters:
            known = None if value is None else pytest.approx(value, rel=0.05)
            assert getattr(bundled.parameters, name) == known, name
    assert is_fitted(a_run(experts=SHAPE[0], n=SHAPE[1], k=SHAPE[2]))
    assert not is_fitted(a_run())
    assert not is_fitted(a_run(experts=SHAPE[0], n=SHAPE[1], k=SHAPE[2], hold_s=1.5))
    assert not is_fitted(a_run(experts=SHAPE[0], n=SHAPE[1], k=SHAPE[2], ours=False))


def run(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", *arguments], capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_command():
    data = json.loads(run("validate", "runs", "--json").stdout)
    assert data["overall"]["scored"] >= 60
    assert data["overall"]["median_ape"] <= 0.06
    assert data["dram_bytes"]["scored"] >= 10
    assert len(data["rows"]) == 412
    shown = run("validate", "runs").stdout
    assert "our kernels, rows not fitted: 206 of 268 scored" in shown
    assert run("validate", "tables", "--store", "x").returncode == 2
    assert run("validate", "runs", "--checks").returncode == 2
    assert run("validate", "runs", "--store", "missing.duckdb").returncode == 2
