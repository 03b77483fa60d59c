"""Files of runs, committed ones and others, as one schema."""

import json

import pytest

from perfmodel.errors import PerfModelError
from perfmodel.hardware import load_gpu
from perfmodel.hardware.devices import gpu_of, known_devices
from perfmodel.validation.runs.files import committed, read_runs
from perfmodel.validation.runs.kernels import named

PROVENANCE = {"device": "NVIDIA H200", "driver": "580.1", "date": "2026-11-30T00:00:00+00:00", "versions": {"torch": "2.11.0"}}
BENCH = "kernel,ours,math,format,experts,n,k,tokens_per_expert,us,hold_s,sm_MHz,power_W,rel_err,nan"
ROW = "numba-wgmma-mxfp4-w4a16-n64,True,bf16,mxfp4-w4a16,2,256,512,4,10.5,0.07,1900,,0.001,0"
COUNTERS = "kernel,format,experts,n,k,tokens_per_expert,metric,unit,value"
LAYER = {"us": 20.0, "rel_err": 0.003, "format": "mxfp4-w4a16", "experts": 8, "topk": 2, "hidden": 256, "inter": 128, "tokens": 1,
         "kernels": ["numba-decode-mxfp4-w4a16-n8-swiglu", "numba-wgmma-mxfp4-w4a16-n16-scatter"]}  # fmt: skip


def write(tmp_path, *lines, provenance=PROVENANCE, name="mine.csv"):
    path = tmp_path / name
    path.write_text("\n".join([f"# provenance: {json.dumps(provenance)}", *lines, ""]))
    return path


def test_all_committed_runs_load():
    runs = [run for path in committed() for run in read_runs(path)]
    assert len(runs) == 452
    assert {run.gpu for run in runs} == {"h200"}
    assert sum(run.us is None for run in runs) == sum(run.dram_bytes is not None for run in runs) == 40
    assert {run.kind for run in runs} == {"grouped-gemm", "layer"}
    assert len({run.key for run in runs}) == 452
    assert all(run.driver and run.date and run.versions != "{}" for run in runs)


def test_a_row_of_the_benchmark(tmp_path):
    (run,) = read_runs(write(tmp_path, BENCH, ROW))
    assert (run.us, run.hold_s, run.sm_MHz, run.power_W, run.nan) == (10.5, 0.07, 1900, None, 0)
    assert (run.tokens, run.profile, run.case.tile) == (8, "numba-wgmma", 64)
    assert run.flop == 2 * 8 * 256 * 512
    assert run.bytes == 2 * 256 * 512 * 4.25 / 8 + 8 * (256 + 512) * 2


def test_the_layer_of_the_benchmark(tmp_path):
    _, run = read_runs(write(tmp_path, f"# layer: {json.dumps(LAYER)}", BENCH, ROW))
    assert (run.kind, run.us, run.routing, run.profile, run.case.tile) == ("layer", 20.0, "uniform", "numba-wgmma", None)
    assert run.flop == 6 * 2 * 256 * 128
    assert run.bytes == pytest.approx(2 * 3 * 256 * 128 * 4.25 / 8 + 2 * 256 * 2)  # one token has two of the experts


def test_counters_of_a_problem_are_one_run(tmp_path):
    rows = [f"numba-decode-mxfp4-w4a16-n8,mxfp4-w4a16,2,256,512,1,{metric},,{value}" for metric, value in
            (("dram__bytes_read.sum", 7e4), ("dram__bytes_write.sum", 1e3), ("lts__t_sector_hit_rate.pct", 4.5))]  # fmt: skip
    (run,) = read_runs(write(tmp_path, COUNTERS, *rows))
    assert (run.us, run.dram_bytes, run.l2_hit_pct, run.profile) == (None, 71_000, 4.5, "numba-decode")


@pytest.mark.parametrize(
    ("lines", "problem", "line"),
    [
        (["a,b", "1,2"], "holds no runs", None),
        ([BENCH, ROW.replace(",2,256", ",-2,256")], "must be a whole number", 3),
        ([BENCH, ROW.replace("10.5", "fast")], "is no float", 3),
        ([BENCH, ROW.replace(",mxfp4-w4a16,2", ",mxfp5,2")], "unknown format", 3),
        ([BENCH, ROW + ",1"], "has 15 cells", 3),
        ([COUNTERS, "k,mxfp4-w4a16,2,256,512,1,dram__bytes_read.sum,byte,n/a"], "is no number", 3),
        (["# layer: {", BENCH, ROW], "is no JSON", 2),
        (['# layer: {"us": 1}', BENCH, ROW], "lacks", 2),
        ([], "holds no rows", None),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, lines, problem, line):
    with pytest.raises(PerfModelError, match=problem) as caught:
        read_runs(write(tmp_path, *lines))
    assert caught.value.line == line


def test_a_file_that_does_not_say_where_it_is_from(tmp_path):
    with pytest.raises(PerfModelError, match="does not say on what it was measured"):
        read_runs(write(tmp_path, BENCH, ROW, provenance={}))


def test_parquet_of_others(tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"nothing")
    with pytest.raises(PerfModelError, match="is no Parquet file"):
        read_runs(path)


def test_names_of_kernels():
    assert named("numba-mma-nvfp4-w4a16-n128-swiglu").tile == 128
    assert named("torch-scaled-grouped-mm").profile == "torch-grouped-mm"
    assert (named("cutlass-x").profile, named("cutlass-x").ours) == (None, False)
    both = named("numba-wgmma-mxfp4-w4a16-n64-swiglu+numba-wgmma-mxfp4-w4a16-n64-scatter")
    assert (both.profile, both.tile, both.ours) == ("numba-wgmma", 64, True)


def test_names_of_devices():
    names = ("NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA B200", "Some GPU")
    assert [gpu_of(name) for name in names] == ["h200", None, "h100", "h100-pcie", "b200", None]
    for gpu in filter(None, known_devices().values()):
        load_gpu(gpu)
