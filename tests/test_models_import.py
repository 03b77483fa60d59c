"""Import of Hugging Face configs: each way of saying which layers hold what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.workload import load_model
from perfmodel.workload.attention import LatentAttention, SoftmaxAttention
from perfmodel.workload.model import ModelSpec
from perfmodel.workload.recurrent import GatedDeltaNet, KimiDeltaAttention, Mamba2

DENSE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MOE = DENSE | {"model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32}
MLA = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    """Writes a config (and the side file) and imports it; a field that is `...` is left out."""

    def import_(config: dict[str, Any]) -> ModelSpec:
        path = tmp_path / "acme--tiny_config.json"
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
        return load_model(path)

    return import_


def test_dense_model(read: Any) -> None:
    spec = read(DENSE)
    assert (spec.id, spec.hidden, spec.layers, spec.moe_layers, spec.moe, spec.inter) == ("acme/tiny", 64, 8, 0, None, 96)
    assert spec.attention == (SoftmaxAttention(layers=8, kind="gqa", heads=8, kv_heads=2, head_dim=8),)
    assert (spec.format, spec.notes) == ("bf16", ())
    layer = 64 * (64 + 2 * 16) + 64 * 64 + 3 * 64 * 96 + 2 * 64
    assert spec.params_total == 8 * layer + 64 + 2 * 100 * 64


def test_missing_kv_heads_are_as_many_as_heads(read: Any) -> None:
    assert read(DENSE | {"num_key_value_heads": None}).attention_kind == "mha"
    assert read(DENSE | {"num_key_value_heads": 1}).attention_kind == "mqa"


def test_other_spellings(read: Any) -> None:
    old = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "hidden_size"), ...)
    spec = read(DENSE | old | {"n_layer": "8", "n_head": 8.0, "n_embd": 64, "n_head_kv": 2, "n_inner": 96})
    assert spec.params_total == read(DENSE).params_total


@pytest.mark.parametrize("act", ["relu2", "silu"])
def test_ungated_mlps_and_experts(read: Any, act: str) -> None:
    factor = 2 if act == "relu2" else 3
    spec = read(MOE | {"mlp_only_layers": [0], "mlp_hidden_act": act})
    assert spec.dense[0].gated == spec.moe.gated == (act == "silu")
    assert spec.moe.weights_per_expert == factor * 64 * 32


@pytest.mark.parametrize(
    ("fields", "moe_layers"),
    [
        ({}, 8),
        ({"first_k_dense_replace": 3}, 5),
        ({"first_k_dense_replace": 3, "moe_layer_freq": 2}, 2),  # layers 4 and 6
        ({"moe_layer_freq": [0, 1, 1, 0, 1, 1, 1, 1, 1]}, 6),  # the ninth entry is a prediction layer's
        ({"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 6}, 6),
        ({"decoder_sparse_step": 2, "mlp_only_layers": []}, 4),
        ({"decoder_sparse_step": 1, "mlp_only_layers": [0, 7]}, 6),
        ({"interleave_moe_layer_step": 2}, 4),
        ({"interleave_moe_layer_step": 1}, 8),
        ({"moe_layers": [1, 3]}, 2),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, 4),
        ({"moe_layer_start_index": 1, "moe_layer_end_index": 6, "moe_layer_interval": 1}, 6),
        ({"moe_layers_enum": "2,3,4"}, 3),
    ],
)
def test_which_layers_have_experts(read: Any, fields: dict[str, Any], moe_layers: int) -> None:
    spec = read(MOE | fields)
    assert spec.moe_layers == moe_layers
    assert sum(d.layers for d in spec.dense) == 8 - moe_layers
    assert spec.notes == ()


def test_experts_of_width_intermediate_size(read: Any) -> None:
    spec = read(DENSE | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2})
    assert (spec.moe.inter, spec.moe.experts, spec.moe.topk, spec.dense) == (96, 4, 2, ())


@pytest.mark.parametrize(
    ("fields", "shared", "shared_inter"),
    [
        ({"n_shared_experts": 2}, 2, None),
        ({"n_shared_experts": None}, 0, None),
        ({"n_shared_experts": 0, "shared_intermediate_size": 0}, 0, None),
        ({"shared_expert_intermediate_size": 48}, 1, 48),
        ({"shared_expert_intermediate_size": 32}, 1, None),
        ({"moe_shared_expert_intermediate_size": 64, "n_shared_experts": 1}, 1, 64),
        ({"share_expert_dim": 48, "n_shared_experts": 1}, 1, 48),
    ],
)
def test_shared_experts(read: Any, fields: dict[str, Any], shared: int, shared_inter: int | None) -> None:
    moe = read(MOE | fields).moe
    assert (moe.shared, moe.shared_inter) == (shared, shared_inter)


def test_llama_4_has_a_shared_expert_and_chunks(read: Any) -> None:
    llama = {"model_type": "llama4_text", "intermediate_size_mlp": 128, "interleave_moe_layer_step": 2, "attention_chunk_size": 256}
    spec = read(MOE | llama | {"moe_intermediate_size": ...})
    assert (spec.moe.inter, spec.moe.shared, spec.dense[0].inter) == (96, 1, 128)
    assert [(a.layers, a.window) for a in spec.attention] == [(6, 256), (2, None)]


def test_groups_and_latent_experts(read: Any) -> None:
    moe = read(MOE | {"n_group": 4, "topk_group": 2, "moe_latent_size": 16}).moe
    assert (moe.n_group, moe.topk_group, moe.latent) == (4, 2, 16)
    assert moe.weights_per_expert == 3 * 16 * 32
    assert read(MOE | {"n_group": 4, "topk_group": 2, "topk_method": "greedy"}).moe.n_group == 1


def test_latent_attention(read: Any) -> None:
    index = {"index_n_heads": 4, "index_head_dim": 8, "index_topk": 64, "indexer_types": ["full"] * 2 + ["shared"] * 6}
    spec = read(MOE | MLA | index)
    sizes = {"kind": "mla", "heads": 8, "q_lora_rank": 24, "kv_lora_rank": 16, "nope_head_dim": 8, "rope_head_dim": 4, "v_head_dim": 8}
    own, reused = spec.attention
    assert own == LatentAttention(layers=2, **sizes, indexer=own.indexer)
    assert (own.indexer.topk, own.indexer.shared, reused.layers, reused.indexer.shared) == (64, False, 6, True)
    assert spec.attention_kind == "mla"


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"sliding_window": 128}, [(8, 128)]),
        ({"sliding_window": 128, "use_sliding_window": False}, [(8, None)]),
        ({"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 6}, [(6, None), (2, 128)]),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 4}, [(4, 128), (4, None)]),
        ({"sliding_window": 128, "sliding_window_pattern": 4}, [(6, 128), (2, None)]),
        ({"sliding_window": 128, "hybrid_layer_pattern": [0, 1, 1, 1] * 2}, [(2, None), (6, 128)]),
    ],
)
def test_sliding_windows(read: Any, fields: dict[str, Any], windows: list[tuple[int, int | None]]) -> None:
    assert [(a.layers, a.window) for a in read(DENSE | fields).attention] == windows


def test_layers_with_sizes_of_their_own(read: Any) -> None:
    pattern = {"hybrid_layer_pattern": [0, 1] * 4, "sliding_window": 128}
    mimo = read(
        DENSE | pattern | {"head_dim": 24, "v_head_dim": 16, "swa_num_key_value_heads": 4, "swa_head_dim": 24, "swa_v_head_dim": 16}
    )
    assert [(a.kv_heads, a.head_dim, a.v_head_dim) for a in mimo.attention] == [(2, 24, 16), (4, 24, 16)]
    types = {"layer_types": ["sliding_attention", "full_attention"] * 4, "sliding_window": 128}
    gemma = read(DENSE | types | {"global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": True})
    assert [(a.kind, a.head_dim, a.shared_kv) for a in gemma.attention] == [("gqa", 8, False), ("mqa", 32, True)]
    assert {d.inter for d in read(DENSE | {"intermediate_size": [96, 48] * 4}).dense} == {96, 48}
    assert [a.kv_heads for a in read(DENSE | {"num_key_value_heads": [2, 4] * 4}).attention] == [2, 4]


def test_gemma_4_runs_an_mlp_beside_the_experts(read: Any) -> None:
    spec = read(MOE | {"model_type": "gemma4_text", "num_experts_per_tok": ..., "top_k_experts": 4, "enable_moe_block": True})
    assert (spec.moe_layers, spec.dense[0].layers) == (8, 8)
    off = read(MOE | {"enable_moe_block": False})
    assert (off.moe_layers, off.moe, off.dense[0].layers) == (0, None, 8)


def test_linear_attention(read: Any) -> None:
    sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
    delta = GatedDeltaNet(layers=6, kind="gdn", key_heads=2, value_heads=4, key_head_dim=8, value_head_dim=8, conv_kernel=4)
    kinds = {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2}
    for way in ({"full_attention_interval": 4}, kinds, kinds | {"full_attention_interval": 4}):
        spec = read(DENSE | sizes | {"linear_conv_kernel_dim": 4} | way)
        assert (spec.attention[0], spec.attention[1].layers, spec.attention_kind) == (delta, 2, "hybrid")
    unknown = read(DENSE | kinds)
    assert [a.layers for a in unknown.attention] == [2]
    assert "linear_num_key_heads" in unknown.notes[0]


def test_kimi_linear(read: Any) -> None:
    linear = {"kda_layers": [1, 2, 3, 5, 6, 7], "full_attn_layers": [4, 8], "num_heads": 8, "head_dim": 8, "short_conv_kernel_size": 4}
    spec = read(MOE | MLA | {"linear_attn_config": linear, "mla_use_output_gate": True})
    assert spec.attention[0] == KimiDeltaAttention(layers=6, kind="kda", heads=8, head_dim=8, conv_kernel=4)
    assert (spec.attention[1].kind, spec.attention[1].layers, spec.attention[1].output_gate) == ("mla", 2, True)


MAMBA = {"mamba_num_heads": 16, "mamba_head_dim": 8, "ssm_state_size": 4, "n_groups": 2, "conv_kernel": 4}


@pytest.mark.parametrize("layers", [8, ...])
def test_nemotron_h(read: Any, layers: Any) -> None:
    names = ["mamba", "moe", "mamba", "moe", "mamba", "attention", "mlp", "moe"]
    for way in ({"hybrid_override_pattern": "MEMEM*-E"}, {"layers_block_type": names}):
        spec = read(MOE | MAMBA | way | {"num_hidden_layers": layers, "model_type": "nemotron_h", "mlp_hidden_act": "relu2"})
        assert spec.attention[0] == Mamba2(layers=3, kind="mamba2", heads=16, head_dim=8, state=4, groups=2, conv_kernel=4)
        assert (spec.layers, spec.moe_layers, spec.attention[1].layers, spec.dense[0].layers) == (8, 3, 1, 1)


def test_pruned_blocks(read: Any) -> None:
    """DeciLM: 2 x 5.25 x 64 / 3 = 224, rounded up to 256."""
    full = {"attention": {"n_heads_in_group": 4, "no_op": False}, "ffn": {"ffn_mult": 5.25}}
    cut = {"attention": {"no_op": True}, "ffn": {"no_op": True}}
    bare = {"num_key_value_heads": None, "intermediate_size": None}
    spec = read(DENSE | bare | {"model_type": "nemotron-nas", "block_configs": [full] * 5 + [cut] * 3})
    assert [(a.layers, a.kv_heads) for a in spec.attention] == [(5, 2)]
    assert [(d.layers, d.inter) for d in spec.dense] == [(5, 256)]


def test_compressed_attention(read: Any) -> None:
    v4 = {"compress_ratios": [0, 4, 128, 4, 128, 4, 128, 4, 0], "head_dim": 16, "q_lora_rank": 24, "o_lora_rank": 16, "o_groups": 2}
    index = {"index_n_heads": 4, "index_head_dim": 8, "index_topk": 64, "sliding_window": 32, "qk_rope_head_dim": 4}
    spec = read(MOE | v4 | index | {"model_type": "deepseek_v4"})
    assert [(a.layers, a.compress, a.indexer is not None) for a in spec.attention] == [(1, None, False), (4, 4, True), (3, 128, False)]
    assert spec.attention_kind == "csa"


@pytest.mark.parametrize("path", [["text_config"], ["llm_config"], ["thinker_config", "text_config"], ["some_tower"]])
def test_nested_language_models(read: Any, path: list[str]) -> None:
    nested = MOE
    for name in reversed(path):
        nested = {name: nested, "vision_config": {"hidden_size": 7, "num_hidden_layers": 3}}
    spec = read(nested | {"model_type": "qwen3_moe"})
    assert (spec.moe, spec.params_total) == (read(MOE).moe, read(MOE).params_total)
    assert any("vision_config: not counted" in note for note in spec.notes)
    assert any("some_tower" in note for note in spec.notes) == (path == ["some_tower"])


def test_fields_of_the_root_serve_a_nested_model(read: Any) -> None:
    inner = {k: v for k, v in MOE.items() if k not in ("tie_word_embeddings", "torch_dtype", "model_type")}
    root = {"text_config": inner, "tie_word_embeddings": True, "dtype": "float16", "model_type": "llama4"}
    spec = read(root)
    assert (spec.tied_embeddings, spec.format, spec.moe.shared) == (True, "fp16", 1)
    quantised = read(root | {"quantization_config": {"quant_method": "mxfp4"}})
    assert quantised.format == "mxfp4-w4a16"


def test_doubts_are_named(read: Any) -> None:
    spec = read(
        MOE | {"model_type": "brand_new", "hyper_blocks": 3, "tie_word_embeddings": ..., "torch_dtype": ..., "num_nextn_predict_layers": 1}
    )
    notes = "\n".join(spec.notes)
    assert spec.format is None
    for word in ("'brand_new'", "hyper_blocks", "tie_word_embeddings", "dtype", "num_nextn_predict_layers 1"):
        assert word in notes
    unknown = read(DENSE | {"layer_types": ["conv"] * 6 + ["full_attention"] * 2})
    assert [a.layers for a in unknown.attention] == [2]
    assert "'conv' of 6 layers" in unknown.notes[0]


def test_name_from_a_download_cache(tmp_path: Path) -> None:
    folder = tmp_path / "models--acme--tiny" / "snapshots" / "0123abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(DENSE))
    assert load_model(folder).id == "acme/tiny"
