"""The store of runs: nothing lost, nothing doubled, whoever writes and whoever is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from runs_examples import a_run

from perfmodel.errors import PerfModelError
from perfmodel.validation.runs.exchange import write_runs
from perfmodel.validation.runs.files import read_runs
from perfmodel.validation.runs.record import Run, parse_run
from perfmodel.validation.runs.store import Store

HEAD = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from runs_examples import a_run
from perfmodel.validation.runs.store import Store
store = Store(Path(sys.argv[1]))
"""


def start(script, *arguments):
    return subprocess.Popen([sys.executable, "-c", HEAD + script, *map(str, arguments)], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs.duckdb")


def test_what_goes_in_comes_out(store):
    runs = [a_run(0), a_run(1, us=None, dram_read_bytes=1.5e8, dram_write_bytes=2.0e6, counters='{"a": 1.0}'), a_run(2, commit=None)]
    assert store.add(runs) == 3
    assert store.runs() == runs
    (line,) = store.overview()
    assert (line["run_id"], line["suite"], line["device"], line["rows"]) == ("r1", "quick", "NVIDIA H200", 3)


def test_the_same_row_is_there_once(store):
    assert [store.add([a_run(0), a_run(1)]), store.add([a_run(1), a_run(2)]), store.add([])] == [2, 1, 0]
    assert len(store.runs()) == 3


def test_what_is_derived_or_said_of_the_file_makes_no_other_row():
    assert a_run().key == a_run(source="other.csv", gpu=None, profile=None, predicted_us=3.0, flop=1.0).key
    assert len({a_run().key, a_run(us=104.0).key, a_run(date="2026-12-01").key, a_run(hold_s=1.5).key}) == 4


def test_points_that_are_done_are_those_of_device_commit_and_suite(store):
    assert store.done("NVIDIA H200", "abc", "quick") == set()
    store.add([a_run(0), a_run(1, commit=None), a_run(2, device="NVIDIA B200"), a_run(3, suite="full")])
    assert store.done("NVIDIA H200", "abc", "quick") == {"gemm 0"}
    assert store.done("NVIDIA H200", None, "quick") == {"gemm 1"}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_export_and_import_keep_every_field(store, tmp_path, ending):
    runs = [a_run(i, us=100 / 3 + i, versions='{"torch": "2.11.0"}', source="h200, run 1.csv") for i in range(3)] + [a_run(9, rel_err=None)]
    store.add(runs)
    path = tmp_path / f"runs.{ending}"
    write_runs(path, store.runs())
    back = read_runs(path)
    assert [run.key for run in back] == [run.key for run in store.runs()]
    assert [run.source for run in back] == [*["h200, run 1.csv"] * 3, path.name]
    assert store.add(back) == 0


def test_a_killed_writer_leaves_every_finished_row_and_no_other(store):
    writer = start("for i in range(10_000):\n    store.add([a_run(i)])\n    print(i, flush=True)", store.path)
    finished = [int(writer.stdout.readline()) for _ in range(5)][-1]
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    points = {run.point for run in store.runs()}
    assert {f"gemm {i}" for i in range(finished + 1)} <= points
    assert points == {f"gemm {i}" for i in range(len(points))}
    assert store.add([a_run(-1)]) == 1


def test_a_writer_killed_inside_a_transaction_leaves_nothing_of_it(store):
    store.add([a_run(0)])
    writer = start(
        "with store._open() as c:\n    c.execute('BEGIN')\n    c.execute(\"INSERT INTO runs SELECT * REPLACE ('x' AS key) FROM runs\")\n"
        "    print('in', flush=True)\n    time.sleep(60)",
        store.path,
    )
    assert writer.stdout.readline() == "in\n"
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    assert store.runs() == [a_run(0)]


def test_two_writers_lose_nothing_and_double_nothing(store):
    script = "first = int(sys.argv[2])\nfor i in range(first, first + 20):\n    store.add([a_run(i)])"
    writers = [start(script, store.path, first) for first in (0, 10)]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    assert sorted(run.point for run in store.runs()) == sorted(f"gemm {i}" for i in range(30))


def test_a_store_that_is_never_let_go_is_said_to_be_busy(store):
    holder = start("with store._open():\n    print('in', flush=True)\n    time.sleep(60)", store.path)
    assert holder.stdout.readline() == "in\n"
    said = []
    try:
        with pytest.raises(PerfModelError, match=r"another process has had the store for 0 s"):
            Store(store.path, wait_s=0.2, note=said.append).add([a_run()])
    finally:
        holder.kill()
        holder.wait()
    assert said == [f"{store.path}: another process has it; waiting"]
    assert store.add([a_run()]) == 1


def test_what_is_no_store_is_left_alone(tmp_path):
    text = tmp_path / "notes.duckdb"
    text.write_text("no database\n" * 1000)
    with pytest.raises(PerfModelError, match="is no store of runs"):
        Store(text).add([a_run()])
    assert text.read_text().startswith("no database")
    other = tmp_path / "other.duckdb"
    with duckdb.connect(str(other)) as connection:
        connection.execute("CREATE TABLE mine (a INTEGER)")
    with pytest.raises(PerfModelError, match="a database, but no store of runs"):
        Store(other).add([a_run()])
    with pytest.raises(PerfModelError, match="there is no such store"):
        Store(tmp_path / "missing.duckdb").runs()
    with pytest.raises(PerfModelError, match="is no store of runs"):
        Store(tmp_path / "no" / "folder.duckdb").add([a_run()])


def test_a_store_of_a_later_version_is_refused(store):
    store.add([a_run()])
    with duckdb.connect(str(store.path)) as connection:
        connection.execute("UPDATE about SET schema = 99")
    with pytest.raises(PerfModelError, match="was written by another version"):
        store.runs()


def test_cells_of_a_csv_are_parsed_by_field():
    cells = {name: "" if value is None else str(value) for name, value in a_run().model_dump().items()}
    assert parse_run(cells, file="x.csv", line=3) == a_run()
    for field, cell, problem in (("us", "fast", "is no float"), ("ours", "perhaps", "is no bool"), ("experts", "-3", "greater than 0")):
        with pytest.raises(PerfModelError, match=problem) as caught:
            parse_run(cells | {field: cell}, file="x.csv", line=3)
        assert (caught.value.line, caught.value.field) == (3, field)


def test_every_field_of_a_run_has_a_type_of_the_database():
    from perfmodel.validation.runs.record import NAMES, sql_type

    assert {sql_type(name) for name in NAMES} == {"VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN"}
    assert (sql_type("us"), sql_type("ours"), sql_type("n"), sql_type("kind")) == ("DOUBLE", "BOOLEAN", "BIGINT", "VARCHAR")
    assert len(NAMES) == len(Run.model_fields)
