"""Arrivals, lengths, traces, the table of step times, seeds, and what is refused."""

import importlib.util
import json

import numpy as np
import pytest

from perfmodel.errors import PerfModelError
from perfmodel.hardware import load_gpu
from perfmodel.serving.engine import load_calibration
from perfmodel.serving.parallel import Parallel
from perfmodel.serving.step import Batch, decode, rates_of
from perfmodel.serving.work import work_of
from perfmodel.simulation.arrivals import arrival_times
from perfmodel.simulation.deploy import plausible
from perfmodel.simulation.lengths import draw_lengths
from perfmodel.simulation.run import simulate
from perfmodel.simulation.table import Deployment, Speculation, decode_table, grid, interpolate_decode, interpolate_mixed, mixed_table
from perfmodel.simulation.traces import read_trace
from perfmodel.workload import load_model

BASE = {"gpus": 2, "isl": 1000, "osl": 200, "rate": 8.0, "requests": 200}


def call(**options):
    model, gpu = options.pop("model", "qwen3-30b-a3b"), options.pop("gpu", "h100")
    return simulate(model, gpu, **{k: v for k, v in {**BASE, **options}.items() if v is not None})


class TestMachineCode:
    @pytest.fixture
    def home(self, tmp_path, monkeypatch):
        monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
        monkeypatch.setattr("numba.config.CACHE_DIR", "")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return tmp_path

    def add_one(self, home):
        """A kept function in a module of its own, called once."""
        module = home / "package" / "adding.py"
        module.parent.mkdir(exist_ok=True)
        module.write_text("from perfmodel.simulation.compiled import kept\n\n\n@kept\ndef add_one(x: int) -> int:\n    return x + 1\n")
        spec = importlib.util.spec_from_file_location("adding", module)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        assert loaded.add_one(1) == 2
        return loaded.add_one, list(module.parent.rglob("*.nb[ci]"))

    def test_is_kept_in_the_users_cache_and_not_beside_the_sources(self, home):
        _, beside = self.add_one(home)
        assert not beside
        assert len(list((home / "cache" / "perfmodel" / "simulation").rglob("*.nbc"))) == 1
        again, _ = self.add_one(home)
        assert sum(again.stats.cache_hits.values()) == 1

    def test_without_a_writable_home_nothing_is_kept(self, home):
        (home / "cache").write_text("a file in the way")
        _, beside = self.add_one(home)
        assert not beside
        assert (home / "cache").read_text() == "a file in the way"

    def test_the_users_folder_for_numba_counts(self, home, monkeypatch):
        monkeypatch.setattr("numba.config.CACHE_DIR", str(home / "own"))
        self.add_one(home)
        assert list((home / "own").rglob("*.nbc"))
        assert not (home / "cache").exists()


@pytest.mark.parametrize(("kind", "cv"), [("poisson", 1.0), ("gamma:3", 3.0), ("gamma:0.5", 0.5), ("constant", 0.0)])
def test_arrivals_have_their_rate_and_variation(kind, cv, rng):
    gaps = np.diff(arrival_times(kind, 5.0, 200_000, rng), prepend=0.0)
    assert gaps.mean() == pytest.approx(0.2, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03, abs=1e-9)


def test_lengths(rng):
    assert set(draw_lengths("fixed", 100, 9, rng)) == {100.0}
    uniform = draw_lengths("uniform:0.8", 1000, 100_000, rng)
    assert (uniform.min(), uniform.max()) == (800, 1000)
    assert uniform.mean() == pytest.approx(900, rel=0.01)
    spread = draw_lengths("lognormal:0.5", 1000, 100_000, rng)
    assert spread.mean() == pytest.approx(1000, rel=0.01)
    assert spread.std() == pytest.approx(500, rel=0.03)
    assert (draw_lengths("lognormal:3", 1, 1000, rng) >= 1).all()


CASES = [
    ("qwen3-30b-a3b", "h100", "bf16", Parallel(tp=2), Speculation()), ("gpt-oss-120b", "b200", "mxfp4", Parallel(), Speculation()),
    ("deepseek-v3", "h200", "fp8-block", Parallel(dp=8, ep=8), Speculation()),
    ("deepseek-v3", "b200", "nvfp4", Parallel(tp=8), Speculation(2, 0.7)),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpu", "form", "parallel", "speculation"), CASES)
def test_interpolation_is_within_2_percent(model, gpu, form, parallel, speculation, rng):
    spec, device = load_model(model), load_gpu(gpu)
    d = Deployment(work_of(spec, parallel, form), rates_of(device, form), load_calibration().engine, speculation)
    points = grid(1024, 100, 30_000, 16_384)
    n, context, prompt, seen = (np.exp(rng.uniform(0, np.log(top), 400)) for top in (1024, 300, 16_384, 28_000))
    context = context * 100
    table = decode_table(d, points)
    exact = d.seconds(decode(n, context))
    near = [interpolate_decode(points.sequences, points.context, table, *at) for at in zip(n, context, strict=True)]
    assert np.abs(near / exact - 1).max() < 0.02
    axes, table = (points.sequences, points.context, points.prompt, points.seen), mixed_table(d, points)
    exact = d.seconds(Batch(n, context, prompt, seen - prompt / 2))
    near = [interpolate_mixed(axes, table, at) for at in zip(n, context, prompt, seen, strict=True)]
    assert np.abs(near / exact - 1).max() < 0.02


def test_same_seed_same_result_and_another_one_another():
    one, same, other = (call(seed=seed, lengths="lognormal:0.5", arrivals="gamma:2") for seed in (1, 1, 2))
    assert one == same
    assert one["ttft_ms"] != other["ttft_ms"]


def test_lengths_stay_when_arrivals_change():
    one, other = call(lengths="lognormal:0.5"), call(lengths="lognormal:0.5", arrivals="gamma:2", rate=1.0)
    assert (one["isl_mean"], one["osl_mean"]) == (other["isl_mean"], other["osl_mean"])


def test_curve_of_rates():
    result = call(rate=None, rates=[2.0, 8.0])
    assert [row["rate"] for row in result["curve"]] == [2.0, 8.0]
    assert result["curve"][1]["ttft_ms"] == result["ttft_ms"] == call()["ttft_ms"]


@pytest.mark.parametrize(
    ("model", "gpu", "form", "gpus", "wanted"),
    [
        ("qwen3-30b-a3b", "h100", "bf16", 2, Parallel(tp=2)),
        ("qwen3-30b-a3b", "h100", "bf16", 16, Parallel(tp=4)),  # 4 key-value heads, but 8 ranks may share them: see below
        ("deepseek-v3", "h100", "fp8-block", 16, Parallel(tp=8, pp=2)),
        ("deepseek-v3", "h200", "fp8-block", 16, Parallel(tp=8)),
    ],
)
def test_default_split(model, gpu, form, gpus, wanted):
    found = plausible(load_model(model), load_gpu(gpu), form, gpus)
    assert found.pp == wanted.pp
    assert found.tp >= wanted.tp
    assert gpus % found.gpus == 0


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,x\n45,GPT-4,1087,230,1317,x\n118,ChatGPT,417,0,417,x\n"
)
MOONCAKE = "timestamp,input_length,output_length\n0,6758,500\n3052,7322,490\n"


@pytest.mark.parametrize(
    ("text", "arrival", "prompt", "output", "skipped"),
    [
        (AZURE, [0, 0.052], [4808, 3180], [10, 8], 0),
        (BURST, [0, 40], [472, 1087], [18, 230], 1),
        (MOONCAKE, [0, 3.052], [6758, 7322], [500, 490], 0),
        ("\ufeff" + AZURE.replace("\n", "\r\n") + "\r\n", [0, 0.052], [4808, 3180], [10, 8], 0),
    ],
)
def test_public_forms_of_traces(tmp_path, text, arrival, prompt, output, skipped):
    (tmp_path / "t.csv").write_text(text, newline="")
    trace = read_trace(str(tmp_path / "t.csv"), 1000)
    assert trace.arrival == pytest.approx(arrival, abs=1e-6)
    assert (trace.prompt.tolist(), trace.output.tolist(), trace.skipped) == (prompt, output, skipped)


def test_json_lines_of_mooncake(tmp_path):
    rows = [{"timestamp": 1000 * i, "input_length": 100 + i, "output_length": 5, "hash_ids": [1, 2]} for i in range(3)]
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    trace = read_trace(str(tmp_path / "t.jsonl"), 2)
    assert (trace.arrival.tolist(), trace.prompt.tolist()) == ([0, 1], [100, 101])


def test_trace_is_served_at_its_rate_or_another(tmp_path):
    (tmp_path / "t.csv").write_text("timestamp,input_length,output_length\n" + "".join(f"{100 * i},500,20\n" for i in range(101)))
    load = {"trace": str(tmp_path / "t.csv"), "isl": None, "osl": None, "rate": None, "requests": None}
    assert call(**load)["completed"] == 101
    slow, fast = (call(**{**load, "rate": rate}) for rate in (1.0, 50.0))
    assert slow["seconds"] == pytest.approx(100, rel=0.02)
    assert fast["seconds"] < 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["holds no requests"]),
        ("a,b\n1,2\n", ["header", "Azure"]),
        (AZURE + "2023-11-16 18:17:05,x,3\n", [":4", "contexttokens", "'x'"]),
        (AZURE + "2023-11-16 18:17:05,-4,3\n", [":4", "'-4'"]),
        (AZURE + "2023-11-16 18:17:05,1.5,3\n", [":4", "'1.5'"]),
        (AZURE + "2023-11-16 18:17:05,1e999,3\n", [":4"]),
        (AZURE + "yesterday,5,3\n", [":4", "timestamp", "yesterday"]),
        (AZURE + "nan,5,3\n", [":4", "timestamp"]),
        (AZURE + "2023-11-16,5\n", [":4", "number of values"]),
        (AZURE + "2023-11-16 18:17:05,99999999999,3\n", [":4"]),
        (AZURE.splitlines()[0] + "\n2023-11-16,0,0\n", ["no request with"]),
    ],
)
def test_broken_traces_are_explained(tmp_path, text, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(PerfModelError) as error:
        call(trace=str(tmp_path / "t.csv"), isl=None, osl=None, rate=None)
    assert all(word in str(error.value) for word in [*words, "t.csv"])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"rate": None}, "rate"),
        ({"rate": 0.0}, "rate"),
        ({"rate": -1.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"concurrency": 4}, "concurrency"),
        ({"rate": None, "concurrency": 0}, "concurrency"),
        ({"isl": None}, "isl"),
        ({"osl": 0}, "osl"),
        ({"requests": 0}, "requests"),
        ({"requests": 10**9}, "requests"),
        ({"seed": -1}, "seed"),
        ({"gpus": 0}, "gpus"),
        ({"gpus": 3, "tp": 2}, "gpus"),
        ({"arrivals": "poison"}, "arrivals"),
        ({"arrivals": "gamma"}, "arrivals"),
        ({"arrivals": "gamma:-1"}, "arrivals"),
        ({"arrivals": "poisson:2"}, "arrivals"),
        ({"lengths": "uniform"}, "lengths"),
        ({"lengths": "uniform:2"}, "lengths"),
        ({"lengths": "lognormal:x"}, "lengths"),
        ({"lengths": ""}, "lengths"),
        ({"speculative": "2"}, "speculative"),
        ({"speculative": "1.5:0.5"}, "speculative"),
        ({"speculative": "2:1.5"}, "speculative"),
        ({"prefix_cache": 1.5}, "prefix_cache"),
        ({"chunk": 0}, "chunk"),
        ({"mode": "both"}, "mode"),
        ({"mode": "disaggregated"}, "prefill_gpus"),
        ({"mode": "disaggregated", "prefill_gpus": 2}, "prefill_gpus"),
        ({"prefill_gpus": 1}, "prefill_gpus"),
        ({"tp": 3, "gpus": 3}, "tp"),
        ({"isl": 2**24}, "isl"),
        ({"trace": "missing.csv", "isl": None, "osl": None}, "missing.csv"),
        ({"trace": "x.csv"}, "isl"),
        ({"model": "layer:hidden=64,inter=64,experts=4,topk=2"}, "MODEL"),
        ({"model": "deepseek-v3", "gpus": 1}, "gpus"),
        ({"rates": [1.0]}, "rates"),
        ({"rate": 1e-9}, "rate"),
        ({"rates": [1.0, -1.0], "rate": None}, "rate"),
        ({"gpus": 2**20, "tp": 1, "requests": 2000}, "gpus"),
        ({"wrong": 1}, "wrong"),
        ({"backend": "tgi"}, "backend"),
        ({"format": "bf17"}, "bf17"),
    ],
)
def test_bad_input_names_the_field(options, field):
    with pytest.raises(PerfModelError) as error:
        call(**options)
    assert field in str(error.value)
