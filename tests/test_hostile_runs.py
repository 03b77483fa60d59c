"""Stores, files of runs and paths that something is wrong with: each ends in one PerfModelError, at once, and nothing is lost."""

import json
from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs_examples import a_run

from perfmodel.cli.measure import measure
from perfmodel.cli.validate import _check_rows_path
from perfmodel.errors import PerfModelError
from perfmodel.report.compare import print_comparison
from perfmodel.validation.compare import Compared, Part, compare_rows
from perfmodel.validation.measurements import Labels, Measurements
from perfmodel.validation.runs.exchange import write_runs
from perfmodel.validation.runs.files import read_runs
from perfmodel.validation.runs.fit import fit_runs
from perfmodel.validation.runs.kernels import named
from perfmodel.validation.runs.record import parse_run
from perfmodel.validation.runs.store import Store, _trouble
from perfmodel.validation.runs.validate import hold_runs
from perfmodel.validation.score import Comparison
from perfmodel.validation.silicon.usable import usable_rows
from perfmodel.validation.silicon.validate import SiliconValidation

PROVENANCE = {"device": "NVIDIA H200", "date": "2026-11-30T00:00:00+00:00"}
BENCH = "kernel,ours,math,format,experts,n,k,tokens_per_expert,us,hold_s"


def bench(tmp_path, *above, experts="2"):
    path = tmp_path / "bench.csv"
    row = f"torch-grouped-mm,False,bf16,bf16,{experts},256,512,4,10.5,0.07"
    path.write_text("\n".join([f"# provenance: {json.dumps(PROVENANCE)}", *above, BENCH, row, ""]))
    return path


def exported(tmp_path, old, new):
    """An export with one text changed."""
    path = tmp_path / "runs.csv"
    write_runs(path, [a_run(us_low=100.0, us_high=110.0)])
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize("text", ["[" * 100_000, '{"experts": ' + "1" * 5000 + "}"])
def test_json_that_python_gives_up_on(tmp_path, text):
    with pytest.raises(PerfModelError, match="no JSON") as error:
        read_runs(bench(tmp_path, f"# layer: {text}"))
    assert error.value.line == 2


def test_a_size_of_thousands_of_digits(tmp_path):
    with pytest.raises(PerfModelError, match="whole number") as error:
        read_runs(bench(tmp_path, experts="9" * 5000))
    assert (error.value.line, error.value.field) == (3, "experts")


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (",h200,", ",h2000,", "gpu"),
        (",h200,", ",/etc/passwd,", "gpu"),
        (",100.0,110.0,", ",110.0,100.0,", "us_low"),
    ],
)
def test_a_row_that_would_stop_every_validation_is_not_let_in(tmp_path, old, new, field):
    assert len(read_runs(exported(tmp_path, old, old))) == 1
    with pytest.raises(PerfModelError) as error:
        read_runs(exported(tmp_path, old, new))
    assert (error.value.line, error.value.field) == (3, field)


def test_a_tile_of_thousands_of_digits_is_none():
    assert named("numba-mma-x-n" + "9" * 5000).tile is None
    assert named("numba-mma-x-n64").tile == 64


def test_only_a_lock_is_waited_for():
    """A broken file's `block` is no `lock`: it took a minute to be told that another process has it."""
    assert _trouble(duckdb.IOException("IO Error: Could not set lock on file x: Conflicting lock is held in PID 1")) == "locked"
    assert _trouble(duckdb.IOException("IO Error: Corrupt database file: computed checksum does not match stored in block")) == "other"


@pytest.mark.parametrize("fields", [{"gpu": None}, {"us": None, "hold_s": None}, {"nan": 3}])
def test_runs_of_which_none_can_be_scored(fields):
    with pytest.raises(PerfModelError, match="none of these runs"):
        hold_runs([a_run(**fields)])


def test_counters_of_next_to_nothing_are_none():
    counted = hold_runs([a_run(dram_read_bytes=1e-300, dram_write_bytes=0.0)])
    json.dumps([counted.summary(), counted.counter_rows()], allow_nan=False)
    assert counted.counted == []


def silicon():
    """Two quantisations."""
    texts = {"gpu": "h200", "kernel": "quantise-x", "format": "fp8", "source": "a"}
    labels = {name: Labels.of([text] * 2) for name, text in texts.items()}
    sizes = {"m": np.array([16, 32]), "k": np.array([64, 64]), "whole": np.array([0, 1])}
    rows = Measurements("quantise", "x", np.arange(1, 3), labels, sizes, np.array([3e-6, 4e-6]))
    family = {name: labels[name] for name in ("gpu", "kernel", "format")}
    times = (rows.latency, rows.latency * 1.1, rows.latency / 2, rows.latency, rows.latency * 1.2)
    return SiliconValidation(rows, Comparison(family, *times, Labels.of(["", ""])), 1, 2)


def test_rows_of_every_op_are_read_again(tmp_path):
    silicon().write(tmp_path / "rows.parquet")
    found = compare_rows(tmp_path / "rows.parquet").result()
    assert (found["overall"]["n"], found["overall"]["median_ape"]) == (2, pytest.approx(0.1))
    assert found["worst"][0]["sizes"].startswith("m ")


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("low_us", None, "missing"),
        ("m", None, "missing"),
        ("source", None, "missing"),
        ("flag", pa.array([None, ""], pa.string()), "empty"),
        ("floor_us", pa.array(["a", "b"]), "no column of double"),
    ],
)
def test_rows_with_a_broken_column_are_refused(tmp_path, name, values, problem):
    path = tmp_path / "rows.parquet"
    silicon().write(path)
    table = pq.read_table(path)
    place = table.column_names.index(name)
    pq.write_table(table.remove_column(place) if values is None else table.set_column(place, name, values), path)
    with pytest.raises(PerfModelError, match=problem) as error:
        compare_rows(path)
    assert error.value.field == name


@pytest.mark.parametrize(
    ("name", "value"),
    [("latency_us", np.nan), ("latency_us", -1.0), ("predicted_us", np.nan), ("predicted_us", -3.0), ("low_us", 9e9), ("m", 0)],
)
def test_rows_with_values_that_cannot_be_are_refused(tmp_path, name, value):
    path = tmp_path / "rows.parquet"
    silicon().write(path)
    table = pq.read_table(path)
    column = table[name].to_pylist()
    column[1] = value
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(column, table[name].type)), path)
    with pytest.raises(PerfModelError, match="cannot be") as error:
        compare_rows(path)
    assert (error.value.field, error.value.line) == (name, 2)


def test_a_difference_of_nothing_is_no_worst_row(tmp_path):
    path = tmp_path / "rows.parquet"
    silicon().write(path)
    table = pq.read_table(path)
    for name in ("latency_us", "predicted_us", "floor_us", "low_us", "high_us"):
        table = table.set_column(table.column_names.index(name), name, pa.array([0.0, 4.0]))
    pq.write_table(table, path)
    assert [row["latency_us"] for row in compare_rows(path).result()["worst"]] == [4.0]


def test_a_store_that_keeps_nothing_is_no_store(tmp_path, monkeypatch):
    """DuckDB opens Parquet files and `:memory:`, and forgets what is written to them."""
    monkeypatch.chdir(tmp_path)
    silicon().write(tmp_path / "rows.parquet")
    before = (tmp_path / "rows.parquet").read_bytes()
    with pytest.raises(PerfModelError, match="no DuckDB file"):
        Store("rows.parquet").add([a_run()])
    assert (tmp_path / "rows.parquet").read_bytes() == before
    Store(":memory:").add([a_run()])
    assert len(Store(":memory:").runs()) == 1


def test_a_broken_row_of_a_store_is_named(tmp_path):
    store = Store(tmp_path / "s.duckdb")
    store.add([a_run()])
    with duckdb.connect(str(store.path)) as connection:
        connection.execute("UPDATE runs SET us = -1")
    with pytest.raises(PerfModelError, match="greater than 0") as error:
        store.runs()
    assert (error.value.file, error.value.field) == (store.path, "us")


def test_an_export_keeps_line_breaks(tmp_path):
    runs = [a_run(device="two\nlines", suite="a\u2028b"), a_run(1, commit='#"quoted"')]
    write_runs(tmp_path / "runs.csv", runs)
    assert [run.model_copy(update={"source": ""}) for run in read_runs(tmp_path / "runs.csv")] == runs


@pytest.mark.parametrize(
    ("head", "row", "problem"),
    [("x" * 200_000, "1", "broken CSV"), ("{head},us", "{row},7", "stands there twice"), ("{head},colour", "{row},7", "no such column")],
)
def test_headers_that_would_lose_figures_are_refused(tmp_path, head, row, problem):
    path = tmp_path / "runs.csv"
    write_runs(path, [a_run()])
    _, names, cells = path.read_text().splitlines()
    path.write_text(head.format(head=names) + "\n" + row.format(row=cells) + "\n")
    with pytest.raises(PerfModelError, match=problem):
        read_runs(path)


@pytest.mark.parametrize("fields", [{"n": None}, {"kind": "layer"}, {"routing": "nope"}, {"format": "nope"}, {"experts": 10**13}])
def test_runs_that_the_model_cannot_be_asked_about_are_refused(fields):
    with pytest.raises(PerfModelError) as error:
        parse_run(a_run().model_dump() | fields, file="x.csv", line=7)
    assert (error.value.file, error.value.line) == ("x.csv", 7)


def test_a_kernel_without_measured_rows_cannot_be_calibrated():
    with pytest.raises(PerfModelError, match="no measured row"):
        usable_rows(["gemm-torch"], silicon().rows)
    with pytest.raises(PerfModelError, match="no run to fit"):
        fit_runs(["deepgemm"])


def test_a_comparison_of_layers_is_printed(tmp_path, capsys):
    """Regimes of a comparison are called otherwise than those of validate silicon."""
    silicon().write(tmp_path / "rows.parquet")
    print_comparison(compare_rows(tmp_path / "rows.parquet").result())
    assert "quantise-x" in capsys.readouterr().out


def test_rows_go_into_a_file_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"old")

    def broken(table, where):
        where.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(pq, "write_table", broken)
    with pytest.raises(KeyboardInterrupt):
        silicon().write(path)
    assert path.read_bytes() == b"old"


def test_the_path_of_rows_is_checked_before_the_work(tmp_path):
    for path in (tmp_path, tmp_path / "none" / "rows.parquet"):
        with pytest.raises(PerfModelError, match="--rows"):
            _check_rows_path(path)
    _check_rows_path(tmp_path / "rows.parquet")


def test_a_difference_of_nothing_is_in_no_picture_of_logarithms():
    one = silicon()
    zero = Part(one.rows, replace(one.held, measured=np.array([0.0, 4e-6]), predicted=np.array([0.0, 5e-6])))
    assert Compared("silicon", [], [zero]).points()["tokens"] == [32]


def test_no_gpu_is_not_the_default_one():
    with pytest.raises(PerfModelError, match="no such GPU"):
        measure(dry_run=True, gpu="")


def test_the_epilogue_and_the_gather_of_a_kernel_do_not_hide_its_tile():
    layer = named("numba-decode-mxfp4-w4a16-n8-swiglu-gather+numba-decode-mxfp4-w4a16-n8-scatter")
    assert (layer.profile, layer.tile, layer.ours) == ("numba-decode", 8, True)
