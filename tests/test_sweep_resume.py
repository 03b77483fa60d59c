"""Interrupted sweeps go on, damaged and foreign parts are seen, and the output is whole or not there."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import perfmodel
from perfmodel.cli import main
from perfmodel.errors import PerfModelError
from perfmodel.sweeps import parts as parts_module
from perfmodel.sweeps import plan as plan_module
from perfmodel.sweeps.parts import open_parts
from perfmodel.sweeps.plan import make_plan, pack
from perfmodel.sweeps.request import read_request
from perfmodel.sweeps.table import compute_part

GRID = {"model": ["gpt-oss-20b", "deepseek-v3"], "gpu": ["h200", "b200"], "tokens": {"from": 1, "to": 100, "steps": 100}, "ep": [1, 7]}
POINTS, CHUNK, CHUNKS = 800, 90, 9


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The table of a sweep that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "f.parquet"
    summary = perfmodel.sweep(GRID, out, chunk=CHUNK)
    assert (summary.points, summary.errors, summary.chunks, summary.resumed) == (POINTS, 400, CHUNKS, 0)
    return pq.read_table(out)


class Interrupt:
    """A `progress` that presses Ctrl-C when so many points are done."""

    def __init__(self, after: int):
        self.after, self.seen = after, []

    def __call__(self, done: int, points: int) -> None:
        self.seen.append(done)
        if done >= self.after:
            raise KeyboardInterrupt


@pytest.fixture
def stopped(tmp_path) -> Path:
    """The output of a sweep that was interrupted after three chunks."""
    out = tmp_path / "f.parquet"
    with pytest.raises(KeyboardInterrupt):
        perfmodel.sweep(GRID, out, chunk=CHUNK, progress=Interrupt(3 * CHUNK))
    assert not out.exists()
    assert len(kept(out)) == 3
    return out


def kept(out: Path) -> list[Path]:
    return sorted(out.with_name(out.name + ".parts").iterdir())


def test_chunks_change_nothing(whole, tmp_path):
    perfmodel.sweep(GRID, tmp_path / "f.parquet")
    one = pq.read_table(tmp_path / "f.parquet")
    for name in one.column_names:
        there, here = whole[name].drop_null().to_pylist(), one[name].drop_null().to_pylist()
        assert here == (pytest.approx(there, rel=1e-9, abs=1e-9) if name.endswith("_us") else there), name
        assert one[name].is_null().to_pylist() == whole[name].is_null().to_pylist()


def test_the_same_call_goes_on_where_it_stopped(whole, stopped):
    told, progress = [], Interrupt(10**9)
    summary = perfmodel.sweep(GRID, stopped, chunk=CHUNK, progress=progress, tell=told.append)
    assert (summary.resumed, summary.chunks, summary.points) == (3, CHUNKS, POINTS)
    assert told == ["going on: 3 of 9 chunks are there"] == list(summary.notes)
    assert progress.seen[0] == 3 * CHUNK
    assert progress.seen[-1] == POINTS
    assert pq.read_table(stopped).equals(whole)
    assert list(stopped.parent.iterdir()) == [stopped]


def test_a_crash_while_joining_leaves_the_old_file_and_the_parts(whole, tmp_path, monkeypatch):
    out = tmp_path / "f.parquet"
    out.write_bytes(b"old")
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        broken.setattr(parts_module, "write_atomic", lambda path, data: path.write_bytes(data))
        with pytest.raises(OSError, match="No space"):
            perfmodel.sweep(GRID, out, chunk=CHUNK)
    assert out.read_bytes() == b"old"
    assert perfmodel.sweep(GRID, out, chunk=CHUNK).resumed == CHUNKS
    assert pq.read_table(out).equals(whole)
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "swapped"])
def test_damaged_parts_are_computed_anew(whole, stopped, damage):
    first, second, _ = kept(stopped)
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes({"cut": data[:-100], "flipped": data, "emptied": b"", "swapped": second.read_bytes()}[damage])
    summary = perfmodel.sweep(GRID, stopped, chunk=CHUNK)
    assert summary.resumed == 2
    assert summary.notes[0] == "1 damaged chunks in f.parquet.parts are computed anew"
    assert pq.read_table(stopped).equals(whole)


def test_a_part_that_is_halted_ends_at_once():
    packed = pack(make_plan(read_request(GRID)))
    with pytest.raises(CancelledError):
        compute_part(packed, 0, POINTS, lambda: True)


@pytest.mark.parametrize("number", [4, 99])
def test_a_part_under_another_number_does_not_count(whole, stopped, number):
    first = kept(stopped)[0]
    first.with_name(f"{number:07d}{first.name[7:]}").write_bytes(first.read_bytes())
    summary = perfmodel.sweep(GRID, stopped, chunk=CHUNK)
    assert (summary.resumed, summary.chunks) == (3, CHUNKS)
    assert pq.read_table(stopped).equals(whole)


def test_a_part_that_is_damaged_at_the_very_end_stops_the_join(whole, stopped):
    def spoil(done: int, points: int) -> None:
        if done == points:
            kept(stopped)[0].write_bytes(b"spoilt")

    with pytest.raises(PerfModelError, match=r"was damaged.*same command again"):
        perfmodel.sweep(GRID, stopped, chunk=CHUNK, progress=spoil)
    assert not stopped.exists()
    assert perfmodel.sweep(GRID, stopped, chunk=CHUNK).resumed == CHUNKS - 1
    assert pq.read_table(stopped).equals(whole)


@pytest.mark.parametrize("other", ["grid", "chunk", "code", "version"])
def test_parts_of_another_sweep_are_refused_until_they_are_dropped(stopped, monkeypatch, other):
    grid = GRID | {"ep": [1, 8]} if other == "grid" else GRID
    if other == "code":
        monkeypatch.setattr(plan_module, "code_digest", lambda: "new")
    if other == "version":
        monkeypatch.setattr(plan_module, "_version", lambda: "9.9")
    chunk = 100 if other == "chunk" else CHUNK
    with pytest.raises(PerfModelError, match=r"holds 3 chunks of an unfinished sweep of another grid.*--restart"):
        perfmodel.sweep(grid, stopped, chunk=chunk)
    assert len(kept(stopped)) == 3
    assert perfmodel.sweep(grid, stopped, chunk=chunk, restart=True).resumed == 0


def test_two_sweeps_do_not_write_to_one_place(stopped):
    with open_parts(stopped, "0" * 16, restart=True), pytest.raises(PerfModelError, match="another sweep is at work"):
        perfmodel.sweep(GRID, stopped, chunk=CHUNK)


def test_files_of_others_in_the_folder_stay(whole, stopped):
    folder = stopped.with_name("f.parquet.parts")
    (folder / ".half.tmp").write_bytes(b"left by a crash")
    (folder / "notes.txt").write_text("mine")
    assert perfmodel.sweep(GRID, stopped, chunk=CHUNK).resumed == 3
    assert pq.read_table(stopped).equals(whole)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_the_output_may_be_a_link(whole, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "f.parquet").symlink_to(tmp_path / "real" / "g.parquet")
    perfmodel.sweep(GRID, tmp_path / "f.parquet", chunk=CHUNK)
    assert (tmp_path / "f.parquet").is_symlink()
    assert pq.read_table(tmp_path / "real" / "g.parquet").equals(whole)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_stopped_goes_on(tmp_path, capsys, how):
    grid, out = tmp_path / "grid.yaml", tmp_path / "f.parquet"
    grid.write_text("model: [gpt-oss-20b, deepseek-v3]\ngpu: [h200, b200]\ntokens: {from: 1, to: 60000, steps: 60000}\n")
    command = [sys.executable, "-m", "perfmodel", "sweep", str(grid), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    folder = out.with_name("f.parquet.parts")
    limit = time.monotonic() + 60
    while not (folder.exists() and list(folder.glob("*.parquet"))) and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "finished chunks are kept" in err
    parts = len(list(folder.glob("*.parquet")))
    assert 1 <= parts < 30
    with pytest.raises(SystemExit) as stop:
        main(["sweep", str(grid), "--out", str(out)])
    assert (stop.value.code or 0) == 0
    assert f"going on: {parts} of 30 chunks are there" in capsys.readouterr().err
    assert pq.read_metadata(out).num_rows == 240_000
