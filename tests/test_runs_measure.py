"""`perfmodel measure` without a GPU: suites, predictions first, going on where it stopped, counters of a stand-in for `ncu`."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from runs_examples import ABOUT, POINTS, FakeRunner

from perfmodel.cli import main
from perfmodel.errors import PerfModelError
from perfmodel.kernels.tiles import Tile
from perfmodel.validation.runs import measure as measuring
from perfmodel.validation.runs.counters import counted
from perfmodel.validation.runs.measure import active_experts, measure, plan, unpredicted
from perfmodel.validation.runs.points import GemmPoint, LayerPoint, find_point, runnable, suite_points
from perfmodel.validation.runs.predict import predict, why_not
from perfmodel.validation.runs.store import Store


@pytest.fixture(scope="module")
def planned():
    return plan(POINTS, "h200")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs.duckdb")


def go(planned, runner, store, **options):
    return measure(planned, runner, store, **({"suite": "quick", "commit": "abc"} | options))


class TestSuites:
    @pytest.mark.parametrize("name", ["quick", "full"])
    def test_what_a_suite_holds(self, name):
        points = suite_points(name)
        layers = [p for p in points if isinstance(p, LayerPoint)]
        assert len({p.name for p in points}) == len(points) >= 60
        assert {p.tokens for p in layers} >= {1, 4096}
        assert {p.format for p in points} == {"mxfp4-w4a16", "nvfp4-w4a16", "mxfp4-w4a8", "bf16", "fp8"}
        assert {p.routing for p in layers} >= {"balanced", "zipf:1"}
        assert len({(p.experts, p.hidden, p.inter) for p in layers}) == 3
        assert all(p.hidden % 32 == 0 and p.inter % 32 == 0 for p in layers)

    def test_points_are_found_by_name(self):
        point = suite_points("quick")[3]
        assert find_point("quick", point.name) == point
        with pytest.raises(PerfModelError, match="no such point"):
            find_point("quick", "gemm")
        with pytest.raises(PerfModelError, match=r"no such suite.*Did you mean quick"):
            suite_points("quik")

    def test_other_gpus_run_less(self):
        forms = {p.format for p in runnable(suite_points("quick"), "sm_80")}
        assert forms == {"mxfp4-w4a16", "nvfp4-w4a16"}
        assert runnable(POINTS, "sm_90a") == POINTS

    def test_a_layer_asks_for_its_two_gemms(self):
        first, second = POINTS[2].problems
        assert (first.experts, first.n, first.k, first.tokens) == (32, 5760, 2880, 64.0)
        assert (second.n, second.k) == (2880, 2880)
        assert replace(POINTS[2], tokens=1).problems[0].experts == 4


class TestPlan:
    def test_every_point_is_predicted(self, planned):
        assert [len(one.tiles) for one in planned] == [1, 0, 2, 2]
        for one in planned:
            assert one.predicted.floor <= one.predicted.low <= one.predicted.latency <= one.predicted.high
        assert planned[0].tiles == (Tile("wgmma", 64),)
        assert planned[0].dram_bytes > 16 * 4096 * 7168 * 4.25 / 8
        assert planned[2].dram_bytes is None

    def test_the_gap_predicts_the_same_layer(self):
        from perfmodel import moe_latency

        point = LayerPoint("mxfp4-w4a16", 32, 4, 2880, 2880, 512, "uniform")
        (found,) = predict([replace(point.case("h200", (Tile("wgmma", 64), Tile("wgmma", 128))))])
        sizes = {"hidden": 2880, "inter": 2880, "experts": 32, "topk": 4, "tokens": 512}
        assert found.latency == pytest.approx(float(moe_latency("h200", format="mxfp4-w4a16", kernel="numba-wgmma", **sizes)))

    def test_eight_bit_activations_are_quantised_first(self):
        point = GemmPoint("ours", "mxfp4-w4a8", 16, 4096, 7168, 512)
        tile = (Tile("wgmma", 256),)
        (short,) = predict([point.case("h200", tile)])
        (longer,) = predict([replace(point, hold_s=1.5).case("h200", tile)])
        assert longer.latency > 1.15 * short.latency  # the clock falls from 1,830 to 1,500 MHz under long work
        from perfmodel.latency import predict_grouped_gemm

        alone = predict_grouped_gemm(
            "h200", "numba-wgmma", "mxfp4-w4a8", experts=16, n=4096, k=7168, tokens_per_expert=512, tile=256
        ).latency[0]
        assert short.latency - alone == pytest.approx(16 * 512 * 7168 * 3 / (4.8e12 * 0.8) + 1.3e-6)

    def test_an_unknown_gpu_has_no_predictions(self):
        (one,) = plan(POINTS[:1], None)
        assert (one.predicted, one.dram_bytes, one.tiles) == (None, None, (Tile("wgmma", 64),))

    def test_experts_with_tokens(self):
        assert active_experts("balanced", 128, 8, 4) == 32
        assert active_experts("uniform", 128, 8, 1) == pytest.approx(8)
        assert 8 < active_experts("zipf:1", 128, 8, 4) < 32


class TestMeasuring:
    def test_rows_hold_prediction_and_measurement(self, planned, store):
        outcome = go(planned, FakeRunner(), store)
        runs = store.runs()
        assert len(outcome.measured) == len(runs) == len(POINTS)
        by_point = {run.point: run for run in runs}
        gemm = by_point[POINTS[0].name]
        assert (gemm.us, gemm.kernel, gemm.profile, gemm.ours, gemm.gpu) == (
            100,
            "numba-wgmma-mxfp4-w4a16-n64",
            "numba-wgmma",
            True,
            "h200",
        )
        assert gemm.predicted_us == pytest.approx(planned[0].predicted.latency * 1e6)
        assert (gemm.tokens, gemm.tokens_per_expert, gemm.flop) == (1024, 64, 2 * 1024 * 4096 * 7168)
        layer = by_point[POINTS[3].name]
        assert (layer.routing, layer.topk, layer.flop) == ("zipf:1", 4, 6 * 4096 * 4 * 2880 * 2880)
        assert json.loads(layer.versions) == ABOUT["versions"]
        assert {run.commit for run in runs} == {"abc"}
        assert not by_point[POINTS[1].name].ours

    def test_it_goes_on_where_it_was_stopped(self, planned, store):
        with pytest.raises(KeyboardInterrupt):
            go(planned, FakeRunner(stop=POINTS[2].name), store)
        assert len(store.runs()) == 2
        runner = FakeRunner()
        outcome = go(planned, runner, store)
        assert runner.seen == [point.name for point in POINTS[2:]]
        assert (outcome.there, len(outcome.measured), len(store.runs())) == (2, 2, 4)

    def test_again_and_another_commit_measure_anew(self, planned, store):
        go(planned, FakeRunner(), store)
        for options in ({"again": True}, {"commit": "def"}, {"suite": "full"}):
            assert len(go(planned, FakeRunner(), store, **options).measured) == len(POINTS)
        assert len(store.runs()) == 4 * len(POINTS)

    def test_a_point_that_fails_is_passed_over(self, planned, store):
        heard = []
        outcome = go(planned, FakeRunner(fail=[POINTS[1].name]), store, heard=lambda point, verdict, run, why: heard.append((verdict, why)))
        assert [verdict for verdict, _ in heard] == ["measured", "failed", "measured", "measured"]
        assert outcome.failed == [(POINTS[1].name, "CUDA out of memory")]

    def test_three_failures_in_a_row_end_it(self, planned, store):
        runner = FakeRunner(fail=[point.name for point in POINTS])
        with pytest.raises(PerfModelError, match="3 points failed one after the other"):
            go(planned, runner, store)
        assert len(runner.seen) == 3

    def test_counters_lie_beside_the_expected_bytes(self, planned, store):
        counters = counted({"dram__bytes_read.sum": 2.6e8, "dram__bytes_write.sum": 2e6})
        go(planned[:1], FakeRunner(counters=counters), store, counters=True)
        (run,) = store.runs()
        assert (run.us, run.hold_s, run.point) == (None, None, f"counters of {POINTS[0].name}")
        assert run.dram_bytes == 2.62e8
        assert run.predicted_dram_bytes == planned[0].dram_bytes
        assert go(planned[:1], FakeRunner(), store, counters=True).there == 1
        assert len(go(planned[:1], FakeRunner(), store).measured) == 1  # counters are no time

    def test_the_commit(self, monkeypatch):
        answers = {"rev-parse": "0123456789ab", "status": ""}
        monkeypatch.setattr(measuring, "_git", lambda folder, command, *rest: answers[command])
        assert measuring.commit_of_checkout() == "0123456789ab"
        answers["status"] = " M a.py"
        assert measuring.commit_of_checkout() == "0123456789ab+changes"
        answers["rev-parse"] = None
        assert measuring.commit_of_checkout().startswith("perfmodel ")


class TestCommand:
    def run(self, *arguments, cwd=None):
        done = subprocess.run(
            [sys.executable, "-m", "perfmodel", *arguments],
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**os.environ, "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": ""},
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def test_without_a_gpu(self, tmp_path):
        for extra in ([], ["--ncu"]):
            done = self.run("measure", "--suite", "quick", *extra, cwd=tmp_path)
            assert done.returncode == 3
            assert "running kernels needs" in done.stderr
        assert list(tmp_path.iterdir()) == []

    def test_a_dry_run_predicts(self, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(["measure", "--suite", "quick", "--dry-run", "--only", "layer ours mxfp4-w4a16 experts=32", "--json"])
        assert stopped.value.code == 0
        shown = json.loads(capsys.readouterr().out)
        assert len(shown["points"]) == 10
        assert all(0 < p["interval_us"][0] < p["predicted_us"] < p["interval_us"][1] for p in shown["points"])

    def test_points_without_a_prediction_say_why(self, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(["measure", "--dry-run", "--gpu", "b200", "--json"])
        out, err = capsys.readouterr()
        shown = json.loads(out)
        assert stopped.value.code == 0
        silent = [point for point in shown["points"] if point["predicted_us"] is None]
        assert sum(shown["without_prediction"].values()) == len(silent) > 0
        assert "points have no prediction: numba-mma in mxfp4-w4a16: no such kernel profile" in err
        assert why_not(POINTS[0].case(None, ())) == "the GPU is not in the catalogue"
        assert unpredicted(plan(POINTS, "h200"), "h200") == {}

    @pytest.mark.parametrize(
        ("arguments", "problem"),
        [
            (["--dry-run", "--gpu", "v100"], "no kernel of ours runs on compute capability 7.0"),
            (["--suite", "long"], "no such suite"),
            (["--only", "nothing of it", "--dry-run"], "no point holds it"),
            (["--gpu", "h200"], "goes with --dry-run"),
            (["--dry-run", "--gpu", "h2000"], "no such GPU"),
        ],
    )
    def test_bad_input(self, arguments, problem, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(["measure", *arguments])
        assert stopped.value.code == 2
        assert problem in capsys.readouterr().err

    def test_import_list_export(self, tmp_path):
        from perfmodel.validation.runs.files import committed

        store = ["--store", str(tmp_path / "s.duckdb")]
        files = list(map(str, committed()))
        first, second = (json.loads(self.run("runs", "import", *files, *store, "--json").stdout)["files"] for _ in range(2))
        assert [f["new"] for f in first] == [f["rows"] for f in first]
        assert {f["new"] for f in second} == {0}
        assert sum(r["rows"] for r in json.loads(self.run("runs", "list", *store, "--json").stdout)["runs"]) == 452
        out = tmp_path / "out.parquet"
        assert self.run("runs", "export", str(out), *store).returncode == 0
        assert json.loads(self.run("runs", "import", str(out), *store, "--json").stdout)["files"][0]["new"] == 0
        assert "must end in" in self.run("runs", "export", "x.txt", *store).stderr
        assert "no such run" in self.run("runs", "export", str(out), "--run", "x", *store).stderr
