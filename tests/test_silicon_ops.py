"""The loaders of measured dense GEMMs and quantisations, and their scores, on small files of the same layout."""

import numpy as np
import pytest

from perfmodel.validation.silicon import parts
from perfmodel.validation.silicon.gemm import read_gemm
from perfmodel.validation.silicon.quantise import read_quantise
from perfmodel.validation.silicon.usable import usable_mask
from perfmodel.validation.silicon.validate import validate_silicon

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

DEEP = "DeepGemmFp8BlockScaledMMKernel"


def write(folder, place, names, rows):
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)}), path)


@pytest.fixture
def gemms(tmp_path, monkeypatch):
    """Six rows of four GPUs, one of them out of scope."""
    names = ("kernel_source", "gemm_dtype", "m", "n", "k", "latency")
    vllm = [(DEEP, "fp8_block", 8, 512, 1024, 0.3), ("torch.nn.functional.linear", "bfloat16", 8, 512, 1024, 0.004)]
    write(tmp_path, "gb200/gemm/vllm/0.24.0/gemm_perf.parquet", names, vllm)
    write(tmp_path, "b200_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", names, [(DEEP, "fp8_block", 8, 512, 1024, 0.2)])
    trtllm = [("torch_flow", "bfloat16", 8, 4096, 4096, 0.013), ("torch_flow", "fp8", 8, 65536, 4096, 0.08)]
    write(tmp_path, "h200_sxm/gemm/trtllm/1.3.0rc20/gemm_perf.parquet", names, trtllm)
    write(tmp_path, "h200_sxm/gemm/sglang/0.5.6/gemm_perf.parquet", names, [("sglang", "int8_wo", 8, 512, 1024, 0.02)])
    write(tmp_path, "b60/gemm/vllm/0.20.0/gemm_perf.parquet", names, [("vllm_default", "fp8", 8, 512, 1024, 0.02)])
    monkeypatch.setattr(parts, "data_folder", lambda: tmp_path)


@pytest.fixture
def quantisations(tmp_path, monkeypatch):
    """Both tables of two frameworks: differences that are cut off at 0 among them."""
    names = ("kernel_source", "quant_dtype", "m", "k", "latency")
    for framework, source, latencies in (("vllm", "dynamic_minus_static", (0.0, 0.001)), ("sglang", "sglang", (0.0, 0.0))):
        found = [(source, "fp8", m, 4096, latency) for m, latency in zip((1, 2), latencies, strict=True)]
        write(tmp_path, f"h200_sxm/quantize/{framework}/1/computescale_perf.parquet", names, found)
        write(tmp_path, f"h200_sxm/quantize/{framework}/1/scale_matrix_perf.parquet", names, [("sglang", "fp8", 1, 4096, 0.002)])
    monkeypatch.setattr(parts, "data_folder", lambda: tmp_path)


def column(rows, name):
    return [rows.labels[name][i] for i in range(len(rows))]


def test_gemms_are_told_in_our_words(gemms):
    rows = read_gemm()
    assert column(rows, "gpu") == ["b200", "gb200", "gb200", "h200", "h200", "h200"]
    assert column(rows, "kernel")[:3] == ["gemm-vllm-deepgemm", "gemm-vllm-deepgemm-grace", "gemm-torch"]
    assert column(rows, "format") == ["fp8-block", "fp8-block", "bf16", "int8", "bf16", "fp8"]
    assert column(rows, "source")[3] == "sglang 0.5.6 sglang"
    assert rows.latency[0] == pytest.approx(2e-4)


def test_how_gemms_were_measured_comes_with_them(gemms):
    rows = read_gemm()
    assert rows.sizes["eager"].tolist() == [1, 1, 0, 0, 0, 0]
    # 60 MiB of L2 hold 1.9 weights of 32 MiB and none of 256 MiB
    assert rows.sizes["copies"].tolist() == [1, 1, 6, 6, 2, 1]


def test_quantisations_are_told_by_table_and_framework(quantisations):
    rows = read_quantise()
    assert column(rows, "kernel") == [
        *["quantise-compute-sglang"] * 2, *["quantise-compute-vllm"] * 2, "quantise-scale-sglang", "quantise-scale-vllm",
    ]  # fmt: skip
    assert rows.sizes["whole"].tolist() == [0, 0, 0, 0, 1, 1]
    assert set(rows.sizes) == {"m", "k", "whole"}


def test_times_of_zero_are_never_fitted_and_flagged_where_the_kernel_takes_time(quantisations):
    rows = read_quantise()
    assert usable_mask(rows).tolist() == [False, False, False, True, True, True]
    outcome = validate_silicon("quantise")
    flags = [outcome.held.flags[i] for i in range(len(rows))]
    assert flags == ["", "", "trap:cut-off", "", "", ""]


def test_nothing_predicted_for_nothing_measured_is_no_error(quantisations):
    overall = validate_silicon("quantise").summary()["families"]
    nothing = next(family for family in overall if family["kernel"] == "quantise-compute-sglang")
    assert nothing["mape"] == nothing["median_ape"] == 0
    assert nothing["coverage80"] == 1


def test_every_gemm_has_a_prediction_and_an_interval_around_it(gemms):
    held = validate_silicon("gemm").held
    assert np.all(held.predicted > 0)
    assert np.all((held.low <= held.predicted) & (held.predicted <= held.high))
