"""The format of a model's experts, from every way in which checkpoints say it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.workload import load_model
from perfmodel.workload.model import ModelSpec

MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "intermediate_size": 96,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Writes a config, and the side file if one is given, and imports it."""

    def import_(config: dict[str, Any], side: dict[str, Any] | None = None) -> ModelSpec:
        path = tmp_path / "acme--tiny_config.json"
        path.write_text(json.dumps(config))
        if side is not None:
            (tmp_path / "acme--tiny_hf_quant_config.json").write_text(json.dumps(side))
        return load_model(path)

    return import_


@pytest.mark.parametrize(("dtype", "format_id"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float32", None)])
def test_format_without_quantisation_is_the_dtype(read: Any, dtype: str, format_id: str | None) -> None:
    spec = read(MOE | {"torch_dtype": dtype})
    assert (spec.format, len(spec.notes)) == (format_id, 0 if format_id else 1)


def _group(
    weights: tuple[str, int, int | None], activations: tuple[str, int] | None, targets: str = "Linear", **more: Any
) -> dict[str, Any]:
    kind, bits, size = weights
    reads = None if activations is None else {"type": activations[0], "num_bits": activations[1]}
    return {"weights": {"type": kind, "num_bits": bits, "group_size": size, **more}, "input_activations": reads, "targets": [targets]}


def _groups(*groups: dict[str, Any]) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {f"group_{i}": g for i, g in enumerate(groups)}}


E4, E8 = ("float", 4), ("float", 8)


@pytest.mark.parametrize(
    ("quantization", "format_id"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4-w4a16"),
        ({"quant_method": "gptq", "bits": 4}, "int4-w4a16"),
        ({"quant_method": "awq", "w_bit": 4}, "int4-w4a16"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, "nf4-w4a16"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_algo": "W4A16_NVFP4"}, "nvfp4-w4a16"),
        ({"quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "fp8", "moe_quant_algo": "NVFP4", "quant_algo": "MIXED_PRECISION"}, "nvfp4"),
        (_groups(_group(("int", 4, 32), None)), "int4-w4a16"),
        (_groups(_group(("int", 4, 128), E8)), "w4afp8-int4"),
        (_groups(_group(("float", 4, 16), E4)), "nvfp4"),
        (_groups(_group(("float", 4, 16), None)), "nvfp4-w4a16"),
        (_groups(_group(("float", 4, 32), None)), "mxfp4-w4a16"),
        (_groups(_group(("float", 4, 32), E8)), "mxfp4-w4a8"),
        (_groups(_group(("float", 8, None), E8)), "fp8"),
        (_groups(_group(("float", 8, None), E8, block_structure=[128, 128])), "fp8-block"),
        (_groups(_group(("int", 8, None), ("int", 8))), "int8"),
        (_groups(_group(("float", 8, None), E8, "re:.*self_attn.*"), _group(("float", 4, 16), E4, "re:.*experts.*")), "nvfp4"),
    ],
)
def test_formats(read: Any, quantization: dict[str, Any], format_id: str) -> None:
    spec = read(MOE | {"quantization_config": quantization})
    assert (spec.format, spec.notes) == (format_id, ())


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "hqq"},
        {"quant_algo": "W3A5"},
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "fp8", "weight_block_size": [64, 64]},
        {
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"a.experts.0": {"quant_algo": "FP8"}, "a.experts.1": {"quant_algo": "NVFP4"}},
        },
        {"bits": 4},
        _groups(_group(("int", 3, 32), None)),
        _groups(),
    ],
)
def test_unknown_formats_are_named_not_guessed(read: Any, quantization: dict[str, Any]) -> None:
    spec = read(MOE | {"quantization_config": quantization})
    assert spec.format is None
    assert "not understood" in spec.notes[0]


def test_experts_decide_in_a_mixed_checkpoint(read: Any) -> None:
    layers = {
        "model.layers.0.mlp.shared_experts.up_proj": {"quant_algo": "MXFP8"},
        "model.layers.0.mlp.experts.0.w1": {"quant_algo": "NVFP4", "group_size": 16},
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"},
    }
    mixed = {"quantization_config": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    assert read(MOE | mixed).format == "nvfp4"
    assert read(MOE | mixed | {"num_experts": None}).format is None  # MLPs in two formats


def test_v4_experts_are_fp4(read: Any) -> None:
    fp8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert read(MOE | fp8 | {"expert_dtype": "fp4"}).format == "mxfp4-w4a8"


def test_side_file_goes_first(read: Any, tmp_path: Path) -> None:
    side = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    assert read(MOE | {"quantization_config": {"quant_method": "fp8"}}, side).format == "nvfp4"
    (tmp_path / "config.json").write_text(json.dumps(MOE))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "MXFP8"}}))
    assert load_model(tmp_path).format == load_model(tmp_path / "config.json").format == "mxfp8"
    assert load_model(str(tmp_path)).id == tmp_path.name
