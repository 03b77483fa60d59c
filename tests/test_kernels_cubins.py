"""Compiled kernels on disk: found again, made anew when anything they depend on changes, never half written."""

import json
import os
from dataclasses import replace
from functools import partial

import pytest

from perfmodel.errors import PerfModelError
from perfmodel.kernels import cubins, routing, stream, wgmma_w4a16


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "perfmodel" / "kernels"


@pytest.fixture
def compiler():
    pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")


def no_compiler(*_, **__):
    raise AssertionError("compiled again")


@pytest.mark.usefixtures("compiler")
class TestCache:
    def test_the_second_time_it_comes_from_disk(self, monkeypatch, folder):
        made = cubins.compile_cached(routing.GATHER, "sm_90a")
        assert made.threads == routing.GATHER_THREADS
        assert made.compiled.cubin[:4] == b"\x7fELF"
        assert [path.suffix for path in folder.iterdir()] == [".json"]
        monkeypatch.setattr(cubins, "compile_variant", no_compiler)
        assert cubins.compile_cached(routing.GATHER, "sm_90a") == made

    @pytest.mark.parametrize("damage", ["", "{", "[]", '{"threads": 1}', '{"compiled": {"cubin": "?"}}'])
    def test_a_damaged_file_is_made_anew(self, damage):
        path = cubins.cached_file(routing.GATHER, "sm_80")
        path.parent.mkdir(parents=True)
        path.write_text(damage)
        made = cubins.compile_cached(routing.GATHER, "sm_80")
        assert json.loads(path.read_text())["compiled"]["entry"] == made.compiled.entry

    @pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
    def test_a_folder_that_cannot_be_written_to(self, tmp_path):
        tmp_path.chmod(0o500)
        assert cubins.compile_cached(routing.GATHER, "sm_80").threads == routing.GATHER_THREADS

    def test_a_file_where_the_folder_should_be(self, tmp_path):
        (tmp_path / "perfmodel").write_text("")
        assert cubins.compile_cached(routing.GATHER, "sm_80").threads == routing.GATHER_THREADS

    def test_several_in_other_processes(self, monkeypatch):
        tasks = [(routing.GATHER, "sm_90a"), (routing.COMBINE, "sm_90a"), (routing.GATHER, "sm_90a")]
        heard = []
        cubins.compile_all(tasks, jobs=2, done=heard.append)
        assert heard == ["numba-gather", "numba-combine"]
        monkeypatch.setattr(cubins, "compile_variant", no_compiler)
        cubins.compile_all(tasks, jobs=2, done=heard.append)
        assert len(heard) == 2
        assert cubins.compile_cached(routing.COMBINE, "sm_90a").compiled.name == "numba-combine"


class TestDigest:
    def test_what_changes_it(self, monkeypatch):
        first = cubins.cached_file(stream.VARIANTS[0], "sm_90a")
        other_config = replace(stream.VARIANTS[0], build=partial(stream.build, stream.Config(3)))
        assert cubins.cached_file(stream.VARIANTS[0], "sm_90a") == first
        assert cubins.cached_file(other_config, "sm_90a") != first
        assert cubins.cached_file(stream.VARIANTS[0], "sm_80") != first
        monkeypatch.setattr(cubins, "_version", lambda package: "0")
        assert cubins.cached_file(stream.VARIANTS[0], "sm_90a") != first

    def test_it_covers_the_sources_of_the_kernel_and_no_others(self):
        names = {path.name for path in cubins._sources(wgmma_w4a16.__name__)}
        assert {"wgmma_w4a16.py", "wgmma_w4a16_kernel.py", "schedule.py", "wgmma.py", "asm.py", "compat.py"} <= names
        assert not {"layer.py", "suite.py", "cubins.py", "routing_kernels.py"} & names


@pytest.mark.parametrize(("capability", "arch"), [((8, 0), "sm_80"), ((8, 6), "sm_80"), ((9, 0), "sm_90a"), ((12, 0), "sm_120a")])
def test_architectures_of_gpus(capability, arch):
    assert cubins.architecture_of(capability) == arch


def test_a_gpu_without_kernels():
    with pytest.raises(PerfModelError, match=r"\(7, 0\).*8\.0, 8\.6, 8\.9, 9\.0"):
        cubins.architecture_of((7, 0))
