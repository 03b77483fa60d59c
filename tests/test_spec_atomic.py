"""A process that is killed while it writes leaves the old file whole; a failed write leaves it too."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.errors import PerfModelError
from perfmodel.hardware import load_gpu
from perfmodel.hardware.editing import new_spec, set_fields


@pytest.fixture
def mine(tmp_path) -> Path:
    new_spec("h200", tmp_path / "mine.yaml")
    return tmp_path / "mine.yaml"


KILLED = """
import os, pathlib, signal, sys
from perfmodel.hardware.editing import set_fields

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

real_open = os.fdopen
class Torn:
    def __init__(self, handle, mode): self.stream = real_open(handle, mode)
    def __enter__(self): return self
    def __exit__(self, *args): self.stream.close()
    def write(self, data): self.stream.write(data[: len(data) // 2]); self.stream.flush(); die()

where = {"half written": (os, "fdopen", Torn), "written": (os, "fsync", die), "synced": (pathlib.Path, "chmod", die),
         "about to replace": (pathlib.Path, "replace", die)}
setattr(*where[sys.argv[2]])
set_fields(sys.argv[1], ["memory.bandwidth_GBps=9600"])
"""


@pytest.mark.parametrize("moment", ["half written", "written", "synced", "about to replace"])
def test_a_process_killed_while_writing_leaves_the_old_file_whole(mine, moment):
    before = mine.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, str(mine), moment], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert mine.read_bytes() == before
    assert load_gpu(mine).dram_bandwidth == 4.8e12
    set_fields(mine, ["memory.bandwidth_GBps=9600"])
    assert load_gpu(mine).dram_bandwidth == 9.6e12


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable(mine):
    mine.parent.chmod(0o500)
    try:
        with pytest.raises(PerfModelError, match="cannot write"):
            set_fields(mine, ["memory.bandwidth_GBps=9600"])
    finally:
        mine.parent.chmod(0o700)


def test_a_full_disk_leaves_the_old_file_and_no_litter(mine, monkeypatch):
    before = mine.read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PerfModelError, match="cannot write: No space left"):
        set_fields(mine, ["memory.bandwidth_GBps=9600"])
    assert mine.read_bytes() == before
    assert list(mine.parent.iterdir()) == [mine]
