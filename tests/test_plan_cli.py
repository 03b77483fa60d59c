"""`perfmodel plan` as a user types it, its launch flags and pictures, and the examples."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import perfmodel
from perfmodel.planning.flags import launch

ROOT = Path(__file__).resolve().parents[1]
BASE = ("plan", "llama-3.1-8b", "--gpu", "h100", "--gpus", "4", "--isl", "1000", "--osl", "200")


def test_a_table_says_what_binds_and_what_helps(run):
    code, out, _ = run(*BASE, "--tpot-ms", 20)
    assert code == 0
    for words in ("llama-3.1-8b", "4 h100", "bound by", "would gain", "80 % interval", "decode step"):
        assert words in out


def test_json_is_one_object_of_the_contract(run):
    code, out, err = run(*BASE, "--json")
    result = json.loads(out)
    assert (code, result["schema"], err) == (0, "perfmodel.plan/1", "")
    fields = "gpu mode format tp pp ep dp batch gpus ttft_ms tpot_ms tokens_per_s_per_gpu memory_GB_per_gpu watts_per_gpu interval"
    for item in (*result["plans"], *result["pareto"]):
        assert set(fields.split()) <= set(item)
        assert item["cost_per_million_tokens"] > 0
    assert result["searched"] > 50


def test_a_rate_and_several_gpus(run):
    code, out, _ = run("plan", "gpt-oss-20b", "--gpu", "h100", "--gpu", "b200", "--rate", 40, "--isl", 500, "--osl", 100, "--json")
    plans = json.loads(out)["plans"]
    assert code == 0
    assert {plan["gpu"] for plan in plans} == {"h100", "b200"}
    assert all(plan["gpus"] >= 1 and plan["requests_per_s"] == 40 for plan in plans)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_fronts_are_drawn(run, tmp_path, suffix):
    path = tmp_path / f"pareto.{suffix}"
    assert run(*BASE, "--plot", path)[0] == 0
    assert path.stat().st_size > 8000
    if suffix == "svg":
        text = "".join(ET.parse(path).getroot().itertext())
        assert "h100" in text
        assert "mathdefault" not in text


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", ("vllm serve deepseek-ai/DeepSeek-V3", "--tensor-parallel-size", "--kv-cache-dtype fp8", "--max-model-len 4500")),
        ("sglang", ("sglang.launch_server --model-path deepseek-ai/DeepSeek-V3", "--tp-size 8", "--context-length 4500")),
        ("trtllm", ("trtllm-serve deepseek-ai/DeepSeek-V3", "--tp_size 8", "enable_attention_dp", "--max_seq_len 4500")),
    ],
)
def test_flags_of_each_engine(run, engine, words):
    code, out, _ = run("plan", "deepseek-v3", "--gpu", "h200", "--isl", 4000, "--osl", 500, "--flags", engine)
    assert code == 0
    assert all(word in out for word in words)


def test_flags_of_both_sides():
    result = perfmodel.plan("deepseek-v3", "h200", gpus=32, isl=4000, osl=500, mode="disaggregated")
    sides = result.plans[0]
    assert launch(result, "sglang").count("--disaggregation-mode") == 2
    assert launch(result, "vllm").count("NixlConnector") == 2
    assert f"# {sides.prefill.instances} instance" in launch(result, "trtllm")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--flags", "tgi"), "no such engine"),
        (("--plot", "x.bmp"), "picture"),
        (("--gpus", "0"), "gpus"),
        (("--rate", "-1"), "rate"),
        (("--tpot-ms", "0.01"), "the limit is 0.01"),
        (("--gpu", "h1000"), "no such GPU"),
    ],
)
def test_bad_words_exit_2_in_one_line(run, words, said):
    code, out, err = run(*BASE, *words)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["compare_gpus", "size_a_service"])
def test_examples_run(name):
    done = subprocess.run([sys.executable, ROOT / "examples" / f"{name}.py"], capture_output=True, text=True, cwd=ROOT, env=_env())
    assert done.returncode == 0, done.stderr
    assert "b200" in done.stdout


def _env():
    import os

    return os.environ | {"PYTHONPATH": str(ROOT)}


def test_what_ifs_are_named_in_tables(run):
    change = ("--set", "memory.bandwidth_GBps=9600")
    assert "on GPUs with memory.bandwidth_GBps=9600" in run(*BASE, *change)[1]
    shown = run("predict", "llama-3.1-8b", "--gpu", "h100", "--phase", "decode", *change)[1]
    assert "1 x h100 with memory.bandwidth_GBps=9600" in shown


def test_what_does_not_fit_is_said_first(run):
    shown = run("predict", "deepseek-v3", "--gpu", "h200", "--phase", "decode", "--batch", 64)[1]
    assert shown.startswith("does not fit: 684 GB, where engines take 136 of a GPU's 151; not a single")
    assert "does not fit" not in run("predict", "llama-3.1-8b", "--gpu", "h200", "--phase", "decode")[1]
