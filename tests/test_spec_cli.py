"""The commands `gpus` and `spec`, as a person at a terminal and a script see them."""

import json
import re

import pytest

from perfmodel.cli import main
from perfmodel.hardware import find_gpu, gpu_ids, load_gpu


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments):
        code = 0
        try:
            main([str(a) for a in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


def test_the_catalog_lists_every_gpu(run):
    code, out, err = run("gpus")
    assert code == 0
    assert all(re.search(rf"^ {re.escape(one)} ", out, re.M) for one in gpu_ids())
    assert re.search(r"^ b200 .* 148 +191.5 +7672 +2250 +4500 +9000 +1000 *$", out, re.M)
    assert "dense" in err


def test_json_holds_every_number_with_its_provenance(run):
    data = json.loads(run("gpus", "--json")[1])
    assert [g["id"] for g in data["gpus"]] == gpu_ids()
    b200 = next(g for g in data["gpus"] if g["id"] == "b200")
    assert b200["compute"]["dense_tflops"]["fp4"]["value"] == 9000
    assert b200["memory"]["bandwidth_GBps"].keys() == {"value", "source", "status"}
    assert "fp4" in b200["math_types"]


def test_side_by_side(run):
    code, out, _ = run("gpus", "b200", "h200")
    assert code == 0
    assert re.search(r"bandwidth_GBps +7,672 +4,800", out)
    assert re.search(r"fp4 +9,000 +-", out)
    assert re.search(r"latency_ns +~388 +~348", out), "an estimate is marked"


def test_sources(run):
    out = run("gpus", "b200", "--sources")[1]
    assert "7,672 measured" in out
    assert "Chips and Cheese" in out


@pytest.mark.parametrize("arguments", [("gpus", "b20"), ("spec", "show", "b20"), ("spec", "diff", "b200", "b20"), ("gpus", "h200", "b20")])
def test_an_unknown_gpu(run, arguments):
    code, out, err = run(*arguments)
    assert code == 2
    assert "Did you mean" in err
    assert "b200" in err
    assert out == ""


def test_what_if_on_gpus(run):
    code, out, err = run("gpus", "b200", "--set", "compute.sm_count=74", "--set", "memory.bandwidth_GBps=9000")
    assert code == 0
    assert re.search(r"bandwidth_GBps +\*9,000", out)
    assert "fp4 9000 -> 4500" in err
    assert run("gpus", "b200", "--set", "memory.bandwith_GBps=1")[0] == 2


def test_spec_show(run):
    assert run("spec", "show", "b200")[1] == find_gpu("b200").read_text()
    code, out, _ = run("spec", "show", "b200", "memory.bandwidth_GBps", "clock")
    assert code == 0
    assert "7,672 measured" in out
    assert "boost_MHz" in out
    assert "registers" not in out
    assert json.loads(run("spec", "show", "b200", "--json")[1])["id"] == "b200"
    assert run("spec", "show", "b200", "memory.bandwidth")[0] == 2


def test_new_set_validate_diff(run, tmp_path):
    """The way of the interface, from a copy to a comparison."""
    mine = tmp_path / "my.yaml"
    assert run("spec", "new", "--from", "b200", mine)[0] == 0
    code, out, _ = run("spec", "set", mine, "memory.bandwidth_GBps=5000", "power.tdp_W=900")
    assert code == 0
    assert "-  tdp_W: {value: 1000" in out
    assert '+  bandwidth_GBps: {value: 5000, source: "given by the user", status: user}' in out
    assert run("spec", "validate", mine) == (0, f"{mine}: valid\n", "")
    code, out, _ = run("spec", "diff", "b200", mine)
    assert code == 0
    assert re.search(r"memory\.bandwidth_GBps +7,672 +\*5,000", out)
    rows = json.loads(run("spec", "diff", "b200", mine, "--json")[1])["differences"]
    assert {r["field"] for r in rows} == {"id", "name", "memory.bandwidth_GBps", "power.tdp_W"}
    assert rows[2]["b"] == {"value": 5000, "source": "given by the user", "status": "user"}
    assert "Nothing changed" in run("spec", "set", mine, "power.tdp_W=900")[1]
    assert json.loads(run("spec", "set", mine, "power.tdp_W=950", "--json")[1])["changed"] is True
    assert run("spec", "diff", mine, mine)[1].strip() == "No field differs."


def test_differences_of_provenance_alone_show_it(run, tmp_path):
    mine = tmp_path / "b200.yaml"
    run("spec", "new", "--from", "b200", mine)
    run("spec", "set", mine, "power.tdp_W=1000")
    out = run("spec", "diff", "b200", mine)[1]
    assert "given by the user" in out
    assert "datasheet" in out


def test_rescale(run, tmp_path):
    mine = tmp_path / "my.yaml"
    run("spec", "new", "--from", "b200", mine)
    code, _, err = run("spec", "set", mine, "compute.sm_count=74")
    assert code == 2
    assert "--rescale" in err
    code, _, err = run("spec", "set", mine, "compute.sm_count=74", "--rescale")
    assert code == 0
    assert "fp4 9000 -> 4500" in err
    assert load_gpu(mine).peak_flops("fp4") == 4500e12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("memory.bandwidth_GBps=-1", "out of range"),
        ("memory.bandwith_GBps=1", r"Did you mean memory\.bandwidth_GBps"),
        ("compute.dense_tflops.bf16=98900", "contradicts"),
        ("memory.bandwidth_GBps=fast", "must be a number"),
        ("nonsense", "FIELD=VALUE"),
    ],
)
def test_a_refused_edit(run, tmp_path, change, message):
    mine = tmp_path / "my.yaml"
    run("spec", "new", "--from", "h200", mine)
    before = mine.read_bytes()
    code, out, err = run("spec", "set", mine, change)
    assert (code, out) == (2, "")
    assert re.search(message, err)
    assert mine.read_bytes() == before


def test_validate_reports_every_file(run, tmp_path):
    for name in ("one.yaml", "two.yaml", "three.yaml"):
        run("spec", "new", "--from", "b200", tmp_path / name)
    (tmp_path / "one.yaml").write_text(find_gpu("b200").read_text().replace("memory:", "memory: [", 1))
    (tmp_path / "three.yaml").write_text(find_gpu("b200").read_text().replace("value: 7672", "value: -7672"))
    files = [tmp_path / name for name in ("one.yaml", "two.yaml", "three.yaml")]
    code, out, err = run("spec", "validate", *files)
    assert code == 2
    assert out == f"{files[1]}: valid\n"
    assert re.search(r"one\.yaml:\d+: broken YAML", err)
    assert re.search(r"three\.yaml:\d+: memory\.bandwidth_GBps", err)
    assert [f["ok"] for f in json.loads(run("spec", "validate", *files, "--json")[1])["files"]] == [False, True, False]
    assert run("spec", "validate", *gpu_ids())[0] == 0


def test_schema(run, tmp_path):
    out = run("spec", "schema")[1]
    assert json.loads(out)["properties"]["memory"]
    assert run("spec", "schema", "--out", tmp_path / "s.json") == (0, "", "")
    assert (tmp_path / "s.json").read_text() == out == find_gpu("b200").with_name(".schema.json").read_text()
    assert run("spec", "schema", "--out", tmp_path / "no" / "s.json")[0] == 2


@pytest.mark.parametrize("command", [["gpus"], *(["spec", c] for c in ("show", "new", "set", "validate", "diff", "schema"))])
def test_help_carries_an_example(run, command):
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert "Example" in out
    assert f"perfmodel {' '.join(command)}" in out


def test_spec_without_a_command_shows_help(run):
    code, out, err = run("spec")
    assert code in (0, 2)
    assert "validate" in out + err
