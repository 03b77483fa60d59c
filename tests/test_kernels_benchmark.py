"""The benchmark without a GPU: what is run, what is derived from times, what is written, what the commands refuse."""

import csv
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfmodel.cli import main
from perfmodel.errors import MissingRequirementError, PerfModelError
from perfmodel.kernels import clocks, timing
from perfmodel.kernels.benchmark import contenders, device, single, suite
from perfmodel.kernels.benchmark.contenders import Shape
from perfmodel.kernels.tiles import Tile
from perfmodel.report.kernels import bench_csv, bench_writer

QUICK = suite.get_suite("quick")
ROW = {
    "kernel": "numba-x", "ours": True, "math": "bf16", "format": "mxfp4-w4a16", "experts": 16, "n": 4096, "k": 7168,
    "tokens_per_expert": 1, "us": 64.0, "tflops": 14.7, "weight_TBps": 3.9, "rel_err": 1.7e-3, "nan": 0, "sm_MHz": 1980, "power_W": 600.0,
    "hold_s": 0.07, "us_low": 63.0, "us_high": 65.0, "burst_us": 64.5,
}  # fmt: skip
RESULT = {
    "device": "a GPU",
    "ceilings": {"bf16_tflops": 800.0, "fp8_tflops": None, "read_TBps": 4.0, "copy_TBps": 4.3},
    "rows": [ROW, ROW | {"kernel": "torch-x", "math": "fp8", "rel_err": None, "nan": 3}],
    "layer": {"rel_err": 3e-3, "us": 120.0, "experts": 32, "tokens": 512, "format": "mxfp4-w4a16"},
    "provenance": {"driver": "580.1", "date": "2026-11-29T00:00:00+00:00"},
}


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["kernels", *arguments])
    return stopped.value.code


class TestSuites:
    def test_quick_is_the_contract(self):
        assert QUICK.shapes == (Shape(16, 4096, 7168),)
        assert QUICK.tokens == (1, 16, 64, 128, 512, 2048)
        assert set(QUICK.formats) == {"mxfp4-w4a16", "nvfp4-w4a16", "mxfp4-w4a8"}

    @pytest.mark.parametrize("tokens", QUICK.tokens)
    def test_one_tile_each_and_w4a8_from_512(self, tokens):
        counts = {form: len(suite.tiles_to_try(QUICK, form, tokens, "sm_90a")) for form in QUICK.formats}
        assert counts == {"mxfp4-w4a16": 1, "nvfp4-w4a16": 1, "mxfp4-w4a8": int(tokens >= 512)}

    def test_all_tiles_that_waste_no_more_than_half(self):
        every = suite.narrow(QUICK, all_tiles=True)
        assert suite.tiles_to_try(every, "mxfp4-w4a16", 1, "sm_90a") == [
            *(Tile(kind, columns) for kind in ("decode", "mma") for columns in (8, 16)),
            Tile("wgmma", 16),
        ]
        assert suite.tiles_to_try(every, "mxfp4-w4a16", 64, "sm_80") == [
            *(Tile("mma", n) for n in (8, 16, 32, 64, 128)),
        ]
        assert {tile.columns for tile in suite.tiles_to_try(every, "mxfp4-w4a16", 2048, "sm_90a")} == {64, 128, 256}

    def test_what_is_compiled_is_what_is_run(self):
        names = {variant.name for variant in suite.needed(suite.narrow(QUICK, tokens="512"), "sm_90a")}
        assert {"numba-wgmma-mxfp4-w4a16-n256", "numba-wgmma-nvfp4-w4a16-n256", "numba-wgmma-mxfp4-w4a8-n256"} <= names
        assert {"numba-quantise-e4m3", "numba-read-x4", "numba-wgmma-mxfp4-w4a16-n64-swiglu", "numba-route-renormalised"} <= names
        assert "numba-mma-mxfp4-w4a16-n8" not in names

    def test_narrowed(self):
        found = suite.narrow(QUICK, shape="n=256, experts=2,k=512", tokens="1, 64", formats=["nvfp4-w4a16"], hold_s=1.5)
        assert found.shapes == (Shape(2, 256, 512),)
        assert (found.tokens, found.formats, found.hold_s, found.all_tiles) == ((1, 64), ("nvfp4-w4a16",), (1.5,), False)
        assert suite.narrow(QUICK) == QUICK

    def test_copies_are_larger_than_l2(self, monkeypatch):
        monkeypatch.setattr(suite, "l2_bytes", lambda: 60_000_000)
        assert [suite.copies_for(size) for size in (249_561_088, 100_000_000, 1_000_000)] == [2, 3, 240]

    def test_stored_bytes(self):
        shape = Shape(16, 4096, 7168)
        assert contenders.stored_bytes(shape, "mxfp4-w4a16") == 249_561_088
        assert contenders.stored_bytes(shape, "nvfp4-w4a16") == 16 * 4096 * 7168 * 4.5 / 8


class TestTiming:
    def test_one_timing_of_all_turns(self):
        turns = [
            timing._Turn(9.0, [float(us) for us in range(20, 0, -1)], clocks.State(1900, 500.0)),
            timing._Turn(8.0, [30.0, 31.0, 32.0], clocks.State(1980, 600.0)),
        ]
        found = timing.summarise(turns, 0.07)
        assert found == timing.Timing(20.75, 3.0, 30.0, 8.0, 0.07, 1980, 600.0)  # medians 10.5 and 31; 2 of 23 left out at either end

    def test_a_machine_without_nvml(self, monkeypatch):
        monkeypatch.setattr(clocks, "_library", lambda: None)
        assert clocks.Sensor("GPU-x").read() == clocks.State(None, None)
        assert clocks.driver_version() is None

    def test_nvml_that_does_not_know_the_gpu(self, monkeypatch):
        nvml = SimpleNamespace(nvmlDeviceGetHandleByUUID=lambda *_: 6)
        monkeypatch.setattr(clocks, "_library", lambda: nvml)
        assert clocks.Sensor("GPU-x").read() == clocks.State(None, None)

    def test_a_reading(self, monkeypatch):
        def clock(handle, kind, out):
            assert kind == 1
            out._obj.value = 1755
            return 0

        def power(handle, out):
            out._obj.value = 412_500
            return 0

        nvml = SimpleNamespace(nvmlDeviceGetHandleByUUID=lambda *_: 0, nvmlDeviceGetClockInfo=clock, nvmlDeviceGetPowerUsage=power)
        monkeypatch.setattr(clocks, "_library", lambda: nvml)
        assert clocks.Sensor("GPU-x").read() == clocks.State(1755, 412.5)


class TestErrors:
    """Of outputs against float64, over experts with tokens and without."""

    @pytest.fixture
    def problem(self):
        torch = pytest.importorskip("torch", reason="needs the extra `gpu`")
        bounds = (0, 2, 2, 3)
        return contenders.Problem(Shape(3, 2, 8), torch.zeros(3, 8), torch.tensor(bounds), bounds)

    def contender(self, out, expected):
        import torch

        out, expected = torch.tensor(out), torch.tensor(expected, dtype=torch.float64)
        rows = (expected[:2], expected[2:2], expected[2:])
        return contenders.Contender("x", True, "bf16", "bf16", 1.0, (), lambda: out, lambda expert: rows[expert])

    def test_frobenius(self, problem):
        out, expected = [[1.0, 0.0], [2.0, 2.0], [0.0, 3.0]], [[1.0, 0.0], [2.0, 2.0], [0.0, 4.0]]
        assert contenders.errors(problem, self.contender(out, expected)) == (0.2, 0)  # sqrt(1 / 25)

    def test_nan_is_counted_and_spreads(self, problem):
        error, nan = contenders.errors(problem, self.contender([[1.0, 0.0], [float("nan"), 2.0], [0.0, 4.0]], [[1.0, 0.0]] * 3))
        assert error != error
        assert nan == 1


class TestRun:
    def test_a_task(self):
        task = single.make_task("experts=2, n=256,k=512,tokens=8", None, None)
        assert task == single.Task(Shape(2, 256, 512), 8, "mxfp4-w4a16", None)
        assert single.make_task("experts=2,n=256,k=512,tokens=8", None, "numba-wgmma-nvfp4-w4a16-n64").format == "nvfp4-w4a16"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--shape", "experts=2,n=256,k=256,token=8"], "Did you mean tokens"),
            (["--shape", "experts=2,n=256"], "k, tokens missing"),
            (["--shape", "experts=0,n=256,k=256,tokens=8"], "experts must be a whole number from 1"),
            (["--shape", "experts=2,n=2.5,k=256,tokens=8"], "n must be a whole number"),
            (["--shape", "experts=2,n=256,k=256,tokens=8", "--format", "mxfp4"], "Did you mean"),
            (["--shape", "experts=2,n=256,k=256,tokens=8", "--kernel", "numba-mma-mxfp4"], "no such kernel"),
            (["--shape", "experts=2,n=256,k=256,tokens=8", "--kernel", "numba-gather"], "is no grouped GEMM"),
            (["--shape", "experts=2,n=1,k=1,tokens=8", "--format", "nf4-w4a16", "--kernel", "numba-wgmma-mxfp4-w4a16-n64"], "takes mxfp4"),
        ],
    )
    def test_bad_input(self, capsys, arguments, message):
        assert run("run", *arguments) == 2
        assert message in capsys.readouterr().err

    def test_a_kernel_of_another_epilogue(self):
        task = single.make_task("experts=2,n=256,k=256,tokens=8", None, "numba-wgmma-mxfp4-w4a16-n64-swiglu")
        with pytest.raises(PerfModelError, match="is no plain grouped GEMM for sm_90a"):
            single._tile(task, "sm_90a")

    def test_tiles(self):
        task = single.make_task("experts=2,n=256,k=256,tokens=100", None, "numba-mma-mxfp4-w4a16-n16")
        assert single._tile(task, "sm_90a") == Tile("mma", 16)
        assert single._tile(single.make_task("experts=2,n=256,k=256,tokens=100", None, None), "sm_90a") == Tile("wgmma", 128)

    def test_without_torch(self, monkeypatch, capsys):
        monkeypatch.setattr(device, "find_spec", lambda name: None)
        assert run("run", "--shape", "experts=2,n=256,k=256,tokens=8") == 3
        assert "perfmodel[gpu]" in capsys.readouterr().err
        assert run("bench") == 3

    def test_without_a_gpu(self, monkeypatch):
        monkeypatch.setattr(device, "find_spec", lambda name: name)
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False)))
        with pytest.raises(MissingRequirementError, match="needs an NVIDIA GPU"):
            device.require_gpu()

    @pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 1)])
    def test_what_is_printed(self, monkeypatch, capsys, ok, code):
        row = {"kernel": "numba-x", "us": 12.34, "tflops": 5.0, "rel_err": 1.7e-3, "nan": 0, "tolerance": 2e-3, "ok": ok}
        monkeypatch.setattr(single, "run", lambda task: row)
        assert run("run", "--shape", "experts=2,n=256,k=256,tokens=8") == code
        assert "12.3 us" in (printed := capsys.readouterr().out)
        assert "error 1.7e-03 of at most 2e-03" in printed
        assert run("run", "--shape", "experts=2,n=256,k=256,tokens=8", "--json") == code
        assert json.loads(capsys.readouterr().out) == row


class TestBench:
    @pytest.fixture(autouse=True)
    def measured(self, monkeypatch):
        def measure(chosen, *, jobs, note):
            note("working")
            return RESULT | {"suite": (chosen.tokens, chosen.all_tiles, jobs)}

        monkeypatch.setattr(suite, "run", measure)

    def test_json(self, capsys):
        assert run("bench", "--suite", "quick", "--tokens", "1,64", "--all-tiles", "--jobs", "3", "--json") == 0
        printed = capsys.readouterr()
        assert json.loads(printed.out)["suite"] == [[1, 64], True, 3]
        assert printed.err == "working\n"

    def test_table(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "200")
        assert run("bench") == 0
        lines = capsys.readouterr().out.splitlines()
        ours = next(line for line in lines if "numba-x" in line).split()
        assert ours[-7:] == ["64.00", "15", "0.02", "3.90", "0.97", "1.7e-03", "1980"]
        assert next(line for line in lines if "torch-x" in line).split()[-5:] == ["-", "3.90", "0.97", "NaN", "1980"]
        assert "120.0 us" in lines[-1]

    @pytest.mark.parametrize("name", ["raw.json", "raw.csv"])
    def test_files(self, tmp_path, name):
        assert run("bench", "--json", "--out", str(tmp_path / name)) == 0
        text = (tmp_path / name).read_text()
        if name == "raw.json":
            assert json.loads(text)["provenance"] == RESULT["provenance"]
            return
        comments = dict(line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("#"))
        assert {key: json.loads(value) for key, value in comments.items()} == {key: RESULT[key] for key in comments}
        assert set(comments) == {"provenance", "ceilings", "layer"}
        rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
        assert [float(row["us"]) for row in rows] == [64.0, 64.0]
        assert rows[1]["rel_err"] == ""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--suite", "quik"], "Did you mean quick"),
            (["--shape", "experts=2,n=256,k=256,tokens=1"], "no such size"),
            (["--tokens", "1,x"], "must be a whole number from 1"),
            (["--tokens", "0"], "must be a whole number from 1"),
            (["--format", "mxfp5-w4a16"], "Did you mean"),
            (["--out", "rows.txt"], "must end in .json or .csv"),
            (["--out", "no/such/folder/rows.csv"], "the folder is not there"),
        ],
    )
    def test_bad_input_is_found_before_anything_runs(self, capsys, monkeypatch, arguments, message):
        monkeypatch.setattr(suite, "run", lambda *_, **__: pytest.fail("it ran"))
        assert run("bench", *arguments) == 2
        assert message in capsys.readouterr().err


def test_csv_of_nothing(tmp_path):
    assert bench_csv(RESULT | {"rows": []}).count("\n") == 4
    assert bench_writer(Path(tmp_path, "x.csv")) is bench_csv
