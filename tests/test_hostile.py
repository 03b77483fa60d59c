"""What a hostile user, file or terminal does: exit codes, whole files, no traceback. Each case was seen to fail once."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from perfmodel.errors import PerfModelError
from perfmodel.files import line_finder, load_yaml, read_text, write_atomic
from perfmodel.hardware import GpuSpec
from perfmodel.validated import explain_all

GAP = ("gap", "gpt-oss-20b", "--gpu", "b200", "--tokens", "64")


def run(*words, **options):
    return subprocess.run([sys.executable, "-m", "perfmodel", *map(str, words)], stderr=subprocess.PIPE, text=True, timeout=120, **options)


def refused(*words, **options):
    done = run(*words, stdout=subprocess.DEVNULL, **options)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert 0 < len(done.stderr.strip()) < 1500
    return done.stderr


@pytest.mark.parametrize(
    "words",
    [
        (*GAP, "--tp", "1" + "0" * 400),
        (*GAP, "--against", "1e300"),
        (*GAP, "--routing", "zipf:1", "--redundant", "100000000"),
        (*GAP, "--format", ""),
        (*GAP, "--routing", ""),
        (*GAP, "--plot", ""),
        ("profiles", ""),
        ("gap", "gpt-oss-20b", "--gpu", "x" * 300),
        (*GAP, "--routing", "counts:" + "x" * 300),
        (*GAP, "--plot", "x" * 300 + "/a.png"),
        ("validate", "x" * 300),
        ("models", "x" * 300),
        ("spec", "new", "--from", "b200", "x" * 300 + ".yaml"),
    ],
)
def test_absurd_words(words):
    refused(*words)


def test_a_full_or_closed_output():
    with Path("/dev/full").open("w") as full:
        done = run(*GAP, stdout=full)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    command = f"{sys.executable} -m perfmodel {' '.join(GAP)} --json >&-"
    closed = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60)
    assert (closed.returncode, "Traceback" in closed.stderr) == (2, False)


def test_a_terminal_without_box_characters():
    done = run(*GAP, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, done.stderr) == (0, "")


def test_two_writers_keep_both_edits(tmp_path):
    spec = tmp_path / "mine.yaml"
    assert run("spec", "new", "--from", "b200", spec, stdout=subprocess.DEVNULL).returncode == 0
    edits = ["memory.bandwidth_GBps=5000", "memory.capacity_GB=101", "power.tdp_W=777"]
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda edit: run("spec", "set", spec, edit, stdout=subprocess.DEVNULL).returncode, edits))
    text = spec.read_text()
    assert done == [0, 0, 0]
    assert all(edit.partition("=")[2] in text for edit in edits)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]


def test_only_ordinary_files_are_replaced(tmp_path):
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for target in (pipe, "/dev/null"):
        with pytest.raises(PerfModelError, match="no ordinary file"):
            write_atomic(target, "x")
    with pytest.raises(PerfModelError, match="is a pipe"):
        read_text(pipe)
    loop = tmp_path / "loop.png"
    loop.symlink_to(loop)
    with pytest.raises(PerfModelError, match="cannot write"):
        write_atomic(loop, "x")
    locked = tmp_path / "locked.yaml"
    locked.write_text("old")
    locked.chmod(0o444)
    with pytest.raises(PerfModelError, match="write-protected"):
        write_atomic(locked, "new")
    assert locked.read_text() == "old"


def test_merged_lists_are_refused_before_they_grow(tmp_path):
    lines = ["a0: &a0 {x: 1}", *(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}, *a{i - 1}]}}" for i in range(1, 40))]
    with pytest.raises(PerfModelError, match="merges a list") as error:
        load_yaml(tmp_path / "bomb.yaml", "\n".join(lines))
    assert error.value.line is not None
    with pytest.raises(PerfModelError, match="merges a list"):
        load_yaml(tmp_path / "alias.yaml", "a: &a {x: 1}\nb: &b [*a, *a]\nc: {<<: *b}")
    assert load_yaml(tmp_path / "fine.yaml", "a: &a {x: 1}\nc: {<<: *a, y: 2}")["c"] == {"x": 1, "y": 2}


@pytest.mark.parametrize("merge", ["!!merge m", "!<tag:yaml.org,2002:merge> m"])
def test_a_merge_under_another_name_is_one(merge):
    with pytest.raises(PerfModelError, match="merges a list") as error:
        load_yaml("spec", f"a: &a {{x: 1}}\nb: {{{merge}: [*a, *a]}}")
    assert error.value.line == 2


def test_merges_that_would_fill_the_memory_are_refused():
    """In 256 KiB, 6,000 fields fit with 10,000 merges of them: 60 million fields."""
    text = "a: &a {" + ",".join(f"x{i}: 1" for i in range(3000)) + "}\n" + "".join(f"k{i}: {{<<: *a}}\n" for i in range(5000))
    with pytest.raises(PerfModelError, match="merges too many"):
        load_yaml("spec", text)


def test_the_lines_of_many_mistakes_are_found_in_one_reading(monkeypatch):
    read = []
    monkeypatch.setattr("perfmodel.validated.line_finder", lambda text: read.append(text) or line_finder(text))
    text = "".join(f"k{i}: 1\n" for i in range(30))
    with pytest.raises(ValidationError) as error:
        GpuSpec.model_validate(load_yaml("spec", text))
    lines = [each.line for each in explain_all(error.value, GpuSpec, text=text)]
    assert (lines, read) == (list(range(1, 21)), [text])


def test_the_name_of_a_field_is_cut():
    error = PerfModelError("no such field", field="a." * 40_000)
    assert len(str(error)) < 300
    assert error.field is not None
    assert error.field.endswith("...")


@pytest.mark.parametrize(
    "options",
    [
        {"format": None},
        {"format": 5},
        {"kernel": None},
        {"routing": 5},
        {"launch": None},
        {"comm": 5},
        {"clock": None},
        {"gated": "false"},
    ],
)
def test_wrong_python_types_of_moe_latency(options):
    from perfmodel import moe_latency

    shape = {"hidden": 64, "inter": 64, "experts": 8, "topk": 2, "tokens": 4, "format": "nvfp4"}
    with pytest.raises(PerfModelError):
        moe_latency("b200", **{**shape, **options})


@pytest.mark.parametrize(
    "options", [{"tokens": 64.0}, {"tokens": b"64"}, {"tokens": "64"}, {"ep": "2"}, {"tp": None}, {"against": "9000"}, {"kernel": 5}]
)
def test_wrong_python_types_of_gap(options):
    from perfmodel import gap

    with pytest.raises(PerfModelError):
        gap("gpt-oss-20b", "b200", **options)
