"""The command `models` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from perfmodel.cli import models as command
from perfmodel.errors import PerfModelError
from perfmodel.workload import load_model, model_ids

app = typer.Typer()
app.callback()(lambda: None)
command.register(app)


def _run(*args: str) -> str:
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["models", *args])
    if result.exception:
        raise result.exception
    return result.stdout


def test_json_keeps_the_contract() -> None:
    data = json.loads(_run("gpt-oss-20b", "--json"))
    head = ("model", "layers", "moe_layers", "hidden", "experts", "topk", "inter", "shared_experts", "attention", "format", "notes")
    assert [data[key] for key in head] == ["gpt-oss-20b", 24, 24, 2880, 32, 4, 2880, 0, "gqa", "mxfp4-w4a16", []]
    assert (data["params_total"], data["params_active"]) == (20_908_119_360, 3_607_475_520)


def test_json_of_a_dense_model_has_nulls() -> None:
    data = json.loads(_run("llama-3.1-8b", "--json"))
    assert (data["experts"], data["topk"], data["moe"], data["moe_layers"], data["inter"], data["shared_experts"]) == (
        None,
        None,
        None,
        0,
        14336,
        0,
    )


def test_list_holds_every_bundled_model() -> None:
    out = _run()
    assert all(model in out for model in model_ids())
    assert [m["model"] for m in json.loads(_run("--json"))["models"]] == model_ids()


def test_one_model_in_words() -> None:
    out = _run("deepseek-v3")
    for word in ("671B parameters", "36.6B active", "mla", "kv lora rank 512", "experts 256", "n group 8", "Source: https://"):
        assert word in " ".join(out.split())


@pytest.mark.parametrize("model", ["deepseek-v3", "kimi-k3", "gemma-4-26b-a4b", "llama-3.1-8b"])
def test_yaml_bundles_the_model_again(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{model}.yaml").write_text(_run(model, "--yaml"))
    before = load_model(model)
    monkeypatch.setattr("perfmodel.workload._bundled", lambda: tmp_path)
    assert load_model(model) == before


def test_layer_text() -> None:
    assert json.loads(_run("layer:hidden=64,inter=32,experts=8,topk=2", "--json"))["params_total"] == 8 * 3 * 64 * 32 + 64 * 8 + 64


@pytest.mark.parametrize("args", [["/"], ["gpt-os-20b"], ["nowhere/config.json"], ["--yaml"], ["gpt-oss-20b", "--yaml", "--json"], [""]])
def test_mistakes_are_named(args: list[str]) -> None:
    with pytest.raises(PerfModelError):
        _run(*args)
