"""The commands as a user types them, in one process: exit codes, JSON, pictures, messages without tracebacks."""

import importlib.metadata
import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest


def test_gap_prints_a_table_a_waterfall_and_advice(run):
    code, out, _ = run("gap", "gpt-oss-20b", "--gpu", "b200", "--format", "nvfp4", "--tokens", "1,64,4096")
    assert code == 0
    for words in ("trtllm-gen", "weight traffic", "from the peak to", "What would help most", "80 % interval"):
        assert words in out


def test_gap_json_is_one_object_of_the_contract(run):
    code, out, err = run("gap", "gpt-oss-20b", "--gpu", "b200", "--tokens", "64", "--json")
    result = json.loads(out)
    assert (code, result["schema"], err) == (0, "perfmodel.gap/1", "")
    assert {
        "tokens",
        "latency_us",
        "interval_us",
        "flops",
        "tflops",
        "ideal_us",
        "floor_us",
        "bound",
        "losses",
        "dram_bytes",
        "active_experts",
        "ops",
        "kernel",
        "arithmetic_intensity",
        "ridge",
    } <= set(result["rows"][0])


def test_predict_shows_ops_and_profiles_and_bench_exist(run):
    code, out, _ = run("predict", "deepseek-v3", "--gpu", "h200", "--tokens", "64", "--json")
    assert code == 0
    assert [op["name"] for op in json.loads(out)["rows"][0]["ops"]][2:4] == ["grouped_gemm.gate_up", "grouped_gemm.down"]
    assert "shared experts" in run("predict", "deepseek-v3", "--gpu", "h200", "--tokens", "64")[1]
    assert "trtllm-gen" in run("profiles")[1]
    assert "0.85" in run("profiles", "trtllm-gen")[1]
    assert json.loads(run("profiles", "marlin", "--json")[1])["profiles"][0]["id"] == "marlin"


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_plots_are_written_whole(run, tmp_path, suffix):
    path = tmp_path / f"gap.{suffix}"
    code, _, err = run("gap", "gpt-oss-20b", "--gpu", "b200", "--plot", path)
    assert code == 0
    assert str(path) in err
    assert path.stat().st_size > 8000
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if suffix == "svg":
        text = "".join(ET.parse(path).getroot().itertext())
        for words in ("TFLOPS", "tokens entering the layer", "weight traffic", "physical floor", "dense peak"):
            assert words in text


def test_one_token_count_plots_too(run, tmp_path):
    assert run("gap", "gpt-oss-20b", "--gpu", "b200", "--tokens", "64", "--plot", tmp_path / "one.png")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("gap", "gpt-oss-20b", "--gpu", "b20"),
        ("gap", "gpt-oss-20b"),
        ("gap", "--gpu", "b200"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--tokens", "0"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--tokens", "many"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--tokens", ""),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--tokens", "1,,2"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--ep", "x"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--plot", "gap.gif"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--plot", "/nowhere/gap.png"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--waterfall", "3"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--set", "memory"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--routing", "counts:nowhere.csv"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--kernel", "fastest"),
        ("gap", "/", "--gpu", "b200"),
        ("bench", "everything"),
        ("profiles", "trtllm"),
        ("profiles", "nowhere.yaml"),
        ("nonsense",),
        ("gap", "--nonsense"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--against", "nan"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--tokens", "9" * 40),
    ],
)
def test_mistakes_exit_with_2_and_one_short_message(run, words):
    code, _, err = run(*words)
    assert code == 2
    assert 0 < len(err.strip()) < 1500
    assert "Traceback" not in err


def test_every_command_has_help_with_an_example(run):
    from perfmodel.cli import COMMANDS

    assert run("--help")[0] == 0
    for name in COMMANDS:
        code, out, _ = run(name, "--help")
        assert code == 0
        assert "perfmodel " + name in " ".join(out.split())


def test_version(run):
    assert run("--version")[1].startswith("perfmodel ")


def test_version_of_a_checkout_that_is_not_installed(run, monkeypatch):
    def unknown(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", unknown)
    assert run("--version")[:2] == (0, "perfmodel, a checkout that is not installed\n")


def test_completion_is_for_the_command_however_it_is_called(run, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/a folder/perfmodel/__main__.py"])
    assert "Usage: perfmodel gpus" in run("gpus", "--help")[1]


def test_a_reader_that_goes_away_and_a_closed_stderr_are_no_mistakes():
    command = f"{sys.executable} -c 'from perfmodel.cli import main; main()'"
    script = f"set -o pipefail; {command} gap --help | true && {command} gpus 2>&- | grep -c gb200"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.parametrize(
    "words",
    [
        ("gap", "layer:hidden=64,inter=64,experts=999999999,topk=1", "--gpu", "b200"),
        ("gap", "layer:hidden=64,inter=99999999,experts=8,topk=1", "--gpu", "b200"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--routing", "group-limited:" + "9" * 4400 + "/4"),
        ("gap", "gpt-oss-20b", "--gpu", "b200", "--tokens", ",".join(map(str, range(1, 1003)))),
    ],
)
def test_absurd_sizes_are_refused_at_once(run, words):
    assert run(*words)[0] == 2


def test_names_that_look_like_markup_or_mathematics(run, tmp_path):
    from perfmodel.profiles.profile import FOLDER

    profile = tmp_path / "mine.yaml"
    profile.write_text((FOLDER / "trtllm-gen.yaml").read_text().replace("quantise input", '"[/red]"'))
    assert run("profiles", profile)[0] == 0
    config = tmp_path / "$x^$"
    config.mkdir()
    (config / "config.json").write_text(
        '{"architectures":["X"],"model_type":"mixtral","hidden_size":64,"intermediate_size":64,"num_hidden_layers":1,'
        '"num_attention_heads":1,"num_local_experts":4,"num_experts_per_tok":2,"vocab_size":100}'
    )
    assert run("models", config)[0] == 0
    assert run("gap", config, "--gpu", "b200", "--format", "bf16", "--kernel", "generic-fused", "--plot", tmp_path / "x.svg")[0] == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fixed_us: 2.5", "fixed_us: 1e308"),
        ("launches: 5", "launches: 99999999999"),
        ("bandwidth_efficiency: 0.85", "bandwidth_efficiency: 5e-324"),
        ("m: [8,", "m: [99999999999,"),
    ],
)
def test_absurd_profiles_are_refused(run, tmp_path, old, new):
    from perfmodel.profiles.profile import FOLDER

    profile = tmp_path / "mine.yaml"
    text = (FOLDER / "trtllm-gen.yaml").read_text()
    assert old in text
    profile.write_text(text.replace(old, new))
    assert run("gap", "gpt-oss-20b", "--gpu", "b200", "--format", "nvfp4", "--kernel", profile)[0] == 2


def _stop(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "works", "kept"),
    [
        (("validate", "silicon"), "perfmodel.validation.silicon.validate.validate_silicon", "nothing is kept"),
        (("validate", "silicon", "--rows", "r.parquet"), "perfmodel.validation.silicon.validate.validate_silicon", "r.parquet is as it"),
        (("calibrate", "--write"), "perfmodel.validation.silicon.usable.usable_rows", "noted as written are whole"),
        (("calibrate", "--op", "gemm"), "perfmodel.validation.silicon.validate.read_op", "noted as written are whole"),
        (("calibrate", "--op", "runs"), "perfmodel.validation.runs.fit.fit_runs", "noted as written are whole"),
        (("scoreboard",), "perfmodel.validation.scoreboard.steps", "no file was changed"),
        (("scoreboard", "--sample", "x.csv"), "perfmodel.validation.silicon.validate.validate_silicon", "x.csv is as it was"),
        (("validate", "tables"), "perfmodel.validation.targets.validate_tables", "interrupted"),
    ],
)
def test_ctrl_c_says_in_one_line_what_is_kept(run, monkeypatch, words, works, kept):
    monkeypatch.setattr(works, _stop)
    code, out, err = run(*words)
    assert (code, out) == (130, "")
    assert err.startswith("perfmodel: ")
    assert kept in err
    assert err.count("\n") == 1
