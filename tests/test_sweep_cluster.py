"""The same sweep on a Dask cluster: the same rows, also when a worker dies, and words instead of tracebacks when the cluster does."""

import os
import signal
import socket
import sys
import threading
from contextlib import suppress

import pyarrow.parquet as pq
import pytest

import perfmodel
from perfmodel.cli import main
from perfmodel.errors import MissingRequirementError, PerfModelError
from perfmodel.sweeps import cluster as cluster_module
from perfmodel.sweeps import plan as plan_module
from perfmodel.sweeps.plan import make_plan, pack, unpack
from perfmodel.sweeps.request import read_request
from perfmodel.sweeps.table import KEYS

GRID = {"model": ["gpt-oss-20b", "deepseek-v3"], "gpu": ["h200", "b200"], "tokens": {"from": 1, "to": 1000, "steps": 1000}, "ep": [1, 7]}
POINTS, CHUNK = 8000, 100


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The table of the same sweep here."""
    out = tmp_path_factory.mktemp("local") / "f.parquet"
    perfmodel.sweep(GRID, out, chunk=CHUNK)
    return pq.read_table(out)


@pytest.fixture(scope="module")
def workers():
    """A cluster of two worker processes."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as started:
        yield started


def test_a_cluster_gives_the_same_rows_also_when_a_worker_is_killed_in_the_middle(workers, local, tmp_path):
    out, seen = tmp_path / "f.parquet", []
    victim = next(iter(workers.workers.values())).pid

    def kill(done: int, points: int) -> None:
        seen.append(done)
        if done > points // 4 and victim not in killed:
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    killed: list[int] = []
    summary = perfmodel.sweep(GRID, out, chunk=CHUNK, scheduler=workers.scheduler_address, progress=kill)
    assert killed == [victim]
    assert seen == list(range(0, POINTS + 1, CHUNK))
    assert (summary.points, summary.errors, summary.resumed) == (POINTS, 4000, 0)
    table = pq.read_table(out)
    assert len({tuple(row.values()) for row in table.select(KEYS).to_pylist()}) == table.num_rows == POINTS
    assert table.equals(local)
    assert list(tmp_path.iterdir()) == [out]


def test_what_one_began_the_other_finishes(workers, local, tmp_path):
    out = tmp_path / "f.parquet"

    def stop(done: int, points: int) -> None:
        if done >= points // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perfmodel.sweep(GRID, out, chunk=CHUNK, scheduler=workers.scheduler_address, progress=stop)
    assert perfmodel.sweep(GRID, out, chunk=CHUNK).resumed == POINTS // CHUNK // 2
    assert pq.read_table(out).equals(local)


def test_workers_can_be_started_for_one_sweep(local, tmp_path):
    pytest.importorskip("distributed")
    perfmodel.sweep(GRID, tmp_path / "f.parquet", chunk=CHUNK, scheduler="local:2")
    assert pq.read_table(tmp_path / "f.parquet").equals(local)


def test_a_cluster_that_is_lost_is_one_line_and_chunks_are_kept(local, tmp_path):
    distributed = pytest.importorskip("distributed")
    out = tmp_path / "f.parquet"
    doomed = distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs=50)

    def end(done: int, points: int) -> None:
        if done == 10 * CHUNK:
            threading.Thread(target=doomed.close).start()

    try:
        with pytest.raises(PerfModelError, match=r"the cluster was lost.*the same command goes on"):
            perfmodel.sweep(GRID, out, chunk=CHUNK, scheduler=doomed.scheduler_address, progress=end)
    finally:
        with suppress(Exception):  # it may be closing already
            doomed.close()
    summary = perfmodel.sweep(GRID, out, chunk=CHUNK)
    assert 10 <= summary.resumed < summary.chunks
    assert pq.read_table(out).equals(local)


def test_a_worker_without_perfmodel_fails_the_sweep_instead_of_dying(workers, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster_module, "ON_WORKER", cluster_module.ON_WORKER.replace("perfmodel", "no_such_perfmodel"))
    with pytest.raises(PerfModelError, match=r"a worker cannot compute: No module named 'no_such_perfmodel'.*on every worker"):
        perfmodel.sweep(GRID, tmp_path / "f.parquet", chunk=CHUNK, scheduler=workers.scheduler_address)
    assert not list(tmp_path.iterdir())


def test_a_worker_of_another_version_refuses(workers, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_module, "code_digest", lambda: "of the client")
    with pytest.raises(PerfModelError, match=r"has another version of perfmodel.*Install the one that asks"):
        perfmodel.sweep(GRID, tmp_path / "f.parquet", chunk=CHUNK, scheduler=workers.scheduler_address)


def test_a_file_that_differs_where_the_worker_is_stops_the_sweep(tmp_path):
    file = tmp_path / "counts.csv"
    file.write_text("1\n" * 32)
    request = read_request({"model": ["gpt-oss-20b"], "gpu": ["b200"], "routing": [f"counts:{file}"]})
    packed = pack(make_plan(request))
    unpack.cache_clear()
    file.write_text("2\n" * 32)
    with pytest.raises(PerfModelError, match=r"counts\.csv: differs on"):
        unpack(packed)
    file.unlink()
    with pytest.raises(PerfModelError, match=r"counts\.csv: cannot read on"):
        unpack(packed)


@pytest.mark.parametrize(
    "scheduler", ["", "here", "http://x:80", "tcp://host", "host:0", "host:99999", "local:", "local:0", "local:x", "local:9999"]
)
def test_what_is_no_address_is_refused_at_once(tmp_path, scheduler):
    pytest.importorskip("distributed")
    with pytest.raises(PerfModelError, match=r"scheduler: .*local:2"):
        perfmodel.sweep(GRID, tmp_path / "f.parquet", scheduler=scheduler)
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_no_scheduler_does_not_hang_the_sweep(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(cluster_module, "CONNECT_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(PerfModelError, match="no Dask scheduler answers"):
        perfmodel.sweep(GRID, tmp_path / "f.parquet", scheduler=f"tcp://127.0.0.1:{silent.getsockname()[1]}")


def test_without_dask_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setitem(sys.modules, "dask", None)
    with pytest.raises(MissingRequirementError, match=r"perfmodel\[cluster\]"):
        perfmodel.sweep(GRID, tmp_path / "f.parquet", scheduler="tcp://host:8786")
    grid = tmp_path / "grid.yaml"
    grid.write_text("model: [gpt-oss-20b]\ngpu: [b200]\n")
    with pytest.raises(SystemExit) as stop:
        main(["sweep", str(grid), "--out", str(tmp_path / "f.parquet"), "--scheduler", "tcp://host:8786"])
    assert stop.value.code == 3
    assert "cluster" in capsys.readouterr().err
