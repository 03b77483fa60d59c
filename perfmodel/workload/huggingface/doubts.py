"""What an import says about itself: parts that were not counted, fields that were not read, architectures that were never checked."""

from __future__ import annotations

import re
from typing import Any

from perfmodel.workload.huggingface.fields import Fields

_CHECKED = """
dbrx deepseek_ref deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 ernie4_5_moe gemma4 glm4_moe glm_moe_dsa gpt_oss granitemoe
hunyuan_v1_moe kimi_k2 kimi_k25 kimi_linear llama llama4 mimo mimo_v2_flash minimax_m2 minimax_m3 minimax_m3_vl mixtral nemotron-nas
nemotron_h olmoe phimoe qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe step3p7
"""
CHECKED = frozenset(_CHECKED.split())
"""Model types whose parameter count from the config was held against the published one."""

UNCOUNTED = (
    "vision_config",
    "audio_config",
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "num_mtp_modules",
    "hidden_size_per_layer_input",
)
"""Encoders beside the language model, layers for speculative decoding, and per-layer embeddings."""

STRUCTURAL = re.compile(
    r"(^|_)(size|dim|rank|layer|head|expert|freq|frequency|interval|period|pattern|type|group|mult|block|kernel|latent|width|module)s?(_|$)"
)
"""Words in a field's name that make it look like a size; such a field is named where it was not read."""

_SAID_ELSEWHERE = """
attention_chunk_size expand first_k_dense_replace full_attention_interval head_dim index_skip_topk_offset index_topk_freq index_topk_pattern
intermediate_size intermediate_size_mlp max_window_layers moe_layer_freq n_group num_key_value_heads qk_head_dim qk_rope_head_dim
sliding_window_size topk_group
"""
_WITHOUT_INFLUENCE = """
chunk_size chunk_size_feed_forward ep_size moe_shared_expert_overlap num_beam_groups rotary_dim time_step_rank use_mamba_kernels
vocab_size_per_layer_input
"""
_OF_UNCOUNTED_PARTS = """
image_grid_pinpoints mtp_hybrid_override_pattern mtp_layers_block_type mtp_transformer_layers projector_hidden_size vision_feature_layer
"""
ELSEWHERE = frozenset((_SAID_ELSEWHERE + _WITHOUT_INFLUENCE + _OF_UNCOUNTED_PARTS).split())
"""Fields that look like sizes but need no note."""


def note_doubts(root: Fields, config: Fields) -> None:
    """Add the notes about `root` and its language model `config`; call it when all that is understood has been read."""
    _note_architecture(config)
    for table in _both(root, config):
        for name in UNCOUNTED:
            value = table.table_of.get(name)
            if value:
                config.note(f"{table.prefix}{name}{f' {value}' if isinstance(value, int) else ''}: not counted")
    unread = [
        table.prefix + name for table in _both(root, config) for name, value in table.table_of.items() if _is_unread(table, name, value)
    ]
    if unread:
        config.note(
            f"not read, though they may be sizes: {', '.join(name[:60] for name in unread[:12])}{', ...' if len(unread) > 12 else ''}"
        )


def _both(root: Fields, config: Fields) -> tuple[Fields, ...]:
    return (config,) if root is config else (root, config)


def _note_architecture(config: Fields) -> None:
    name = (config.text("model_type") or "").removesuffix("_text")
    if name not in CHECKED:
        which = f"model_type {name[:40]!r}" if name else "model_type is not given"
        config.note(f"{which}: an architecture that was never checked; its sizes were read by their usual names")


def _is_unread(table: Fields, name: str, value: Any) -> bool:
    if name in table.read or name in ELSEWHERE or name in UNCOUNTED or not STRUCTURAL.search(name):
        return False
    if isinstance(value, bool | list | dict):
        return bool(value)
    return isinstance(value, int | float) and value > 1
