"""Real configs, which come with the extra `silicon`: all of them import, and the bundled models are the same models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.workload import load_model

package = pytest.importorskip("aiconfigurator_core", reason="needs aiconfigurator-core (the extra silicon)")
FOLDER = Path(package.__file__).parent / "model_configs"
CONFIGS = sorted(path for path in FOLDER.glob("*_config.json") if not path.name.endswith("_hf_quant_config.json"))

BUNDLED = {
    "deepseek-v3": "deepseek-ai--DeepSeek-V3",
    "deepseek-v4-pro": "deepseek-ai--DeepSeek-V4-Pro",
    "gpt-oss-20b": "openai--gpt-oss-20b",
    "gpt-oss-120b": "openai--gpt-oss-120b",
    "qwen3-235b-a22b": "Qwen--Qwen3-235B-A22B",
    "qwen3.5-122b-a10b": "Qwen--Qwen3.5-122B-A10B",
    "kimi-k2": "moonshotai--Kimi-K2-Instruct",
    "kimi-k3": "moonshotai--Kimi-K3",
    "llama-4-maverick": "meta-llama--Llama-4-Maverick-17B-128E-Instruct",
    "glm-5.2": "zai-org--GLM-5.2",
    "minimax-m3": "MiniMaxAI--MiniMax-M3",
    "nemotron-3-super": "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
    "gemma-4-26b-a4b": "google--gemma-4-26B-A4B",
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name.removesuffix("_config.json"))
def test_real_config(path: Path) -> None:
    spec = load_model(path)
    assert spec.format is not None
    assert spec.attention
    assert spec.params_active <= spec.params_total
    raw = json.loads(path.read_text())
    raw = raw.get("text_config") or raw
    assert spec.hidden == raw["hidden_size"]
    experts = [raw.get(k) for k in ("n_routed_experts", "num_experts", "num_local_experts") if raw.get(k)]
    assert (spec.moe.experts if spec.moe else None) == (experts[0] if experts else None)
    assert spec.moe is None or spec.moe.topk in {raw.get(k) for k in ("num_experts_per_tok", "num_experts_per_token", "top_k_experts")}


@pytest.mark.parametrize(("model", "name"), BUNDLED.items())
def test_bundled_model_is_its_real_config(model: str, name: str) -> None:
    path = FOLDER / f"{name}_config.json"
    apart = {"id", "source", "notes"}
    assert load_model(model).model_dump(exclude=apart) == load_model(path).model_dump(exclude=apart)


@pytest.mark.parametrize(
    ("name", "format_id"),
    [
        ("moonshotai--Kimi-K2.5", "int4-w4a16"),
        ("moonshotai--Kimi-K3", "mxfp4-w4a16"),
        ("nvidia--DeepSeek-V3.1-NVFP4", "nvfp4"),
        ("nvidia--DeepSeek-V4-Pro-NVFP4", "nvfp4"),
        ("nvidia--MiniMax-M3-NVFP4", "nvfp4"),
        ("nvidia--Qwen3.6-35B-A3B-NVFP4", "nvfp4-w4a16"),
        ("nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4", "nvfp4-w4a16"),
        ("nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8", "fp8"),
        ("deepseek-ai--DeepSeek-V4-Flash", "mxfp4-w4a8"),
        ("sgl-project--DeepSeek-V4-Flash-FP8", "fp8-block"),
        ("Qwen--Qwen3-32B-FP8-Static-PerTensor", "fp8"),
        ("Qwen--Qwen3-30B-A3B-FP8", "fp8-block"),
        ("openai--gpt-oss-120b", "mxfp4-w4a16"),
    ],
)
def test_real_formats(name: str, format_id: str) -> None:
    path = FOLDER / f"{name}_config.json"
    assert load_model(path).format == format_id


def test_there_are_as_many_as_known() -> None:
    assert len(CONFIGS) >= 85
