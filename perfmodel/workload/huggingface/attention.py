"""The block that mixes tokens in one layer, from the sizes in a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfmodel.workload.attention import CompressedAttention, Indexer, LatentAttention, SoftmaxAttention, softmax_kind
from perfmodel.workload.huggingface.fields import Fields
from perfmodel.workload.huggingface.layers import Layer
from perfmodel.workload.model import Attention
from perfmodel.workload.recurrent import GatedDeltaNet, KimiDeltaAttention, Mamba2

HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num")


def mixers(config: Fields, plan: list[Layer]) -> list[Attention]:
    """The mixing blocks of the layers in `plan`, equal ones together with their number, in order of first appearance."""
    found: dict[Attention, int] = {}
    for layer in plan:
        block = _mixer(config, layer, len(plan)) if layer.mixer else None
        if block is not None:
            found[block] = found.get(block, 0) + 1
    return [block.model_copy(update={"layers": many}) for block, many in found.items()]


def _mixer(config: Fields, layer: Layer, layers: int) -> Attention | None:
    if layer.mixer == "kda":
        return _kimi_delta(config)
    if layer.mixer == "linear":
        return _gated_delta(config)
    if layer.mixer == "mamba":
        return _mamba(config)
    ratios = config.numbers("compress_ratios", layers)
    if ratios is not None:
        return _compressed(config, layer, layers, ratios[layer.index])
    if config.count("kv_lora_rank"):
        return _latent(config, layer, layers)
    return _softmax(config, layer, layers)


def _softmax(config: Fields, layer: Layer, layers: int) -> SoftmaxAttention:
    """MHA, GQA or MQA. Sliding layers of MiMo (`swa_`) and full ones of Gemma 4 (`global`) have sizes of their own."""
    full = layer.mixer == "full"
    own = ("" if full else "swa_num_attention_heads", *HEADS)
    heads = config.required(config.per_layer(layers, *filter(None, own))[layer.index], HEADS)
    kv_heads = _kv_heads(config, layer, layers, heads)
    head_dim = config.count("global_head_dim" if full else "swa_head_dim", "head_dim", "attention_head_dim", "kv_channels")
    value = config.count("v_head_dim") if full else config.count("swa_v_head_dim", "v_head_dim")
    head_dim = head_dim or _even_head_dim(config, heads)
    return SoftmaxAttention(
        layers=1,
        kind=softmax_kind(heads, kv_heads),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=None if value == head_dim else value,
        window=_window(config, layer),
        bias=config.flag("attention_bias", "use_bias"),
        output_gate=config.flag("attn_output_gate", "attention_output_gate"),
        shared_kv=full and config.flag("attention_k_eq_v"),
        indexer=_block_indexer(config, layer, layers),
    )


def _kv_heads(config: Fields, layer: Layer, layers: int, heads: int) -> int:
    """Key-value heads; as many as heads where none are given, which is what the loaders of such configs take."""
    blocks = config.tables("block_configs", layers)
    if blocks is not None:  # DeciLM gives the heads per group
        attention = blocks[layer.index].table("attention")
        group = attention.count("n_heads_in_group") if attention else None
        return max(heads // group, 1) if group else heads
    own = "num_global_key_value_heads" if layer.mixer == "full" else "swa_num_key_value_heads"
    listed = config.per_layer(layers, own, *KV_HEADS)
    kv_heads = listed[layer.index]
    if kv_heads is None and not any(listed):
        return 1 if config.flag("multi_query") else heads
    if kv_heads is None:
        raise config.error(f"num_key_value_heads.{layer.index}", "is missing in a list that gives others")
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"must divide the {heads} heads", kv_heads)
    return kv_heads


def _even_head_dim(config: Fields, heads: int) -> int:
    hidden = config.need("hidden_size", "n_embd", "d_model")
    if hidden % heads:
        raise config.error("head_dim", f"is missing, and {heads} heads do not divide hidden_size {hidden}", mend="Add head_dim.")
    return hidden // heads


def _window(config: Fields, layer: Layer) -> int | None:
    if layer.mixer == "sliding":
        return config.need("sliding_window", "sliding_window_size")
    return config.need("attention_chunk_size") if layer.mixer == "chunked" else None


def _block_indexer(config: Fields, layer: Layer, layers: int) -> Indexer | None:
    """MiniMax-M3's choice of blocks."""
    sparse = config.table("sparse_attention_config")
    if sparse is None or not sparse.flag("use_sparse_attention", default=True):
        return None
    marks = sparse.numbers("sparse_attention_freq", layers)
    if marks is not None and not marks[layer.index]:
        return None
    return Indexer(
        heads=sparse.need("sparse_num_index_heads"),
        head_dim=sparse.need("sparse_index_dim"),
        topk=sparse.need("sparse_topk_blocks"),
        block=sparse.need("sparse_block_size"),
    )


def _token_indexer(config: Fields, layer: Layer, layers: int) -> Indexer | None:
    """DeepSeek's choice of tokens; GLM-5.2 uses one choice in several layers."""
    heads = config.count("index_n_heads")
    if heads is None:
        return None
    types = config.items("indexer_types", layers)
    shared = types is not None and types[layer.index] == "shared"
    return Indexer(heads=heads, head_dim=config.need("index_head_dim"), topk=config.need("index_topk"), shared=shared)


def _latent(config: Fields, layer: Layer, layers: int) -> LatentAttention:
    return LatentAttention(
        layers=1,
        kind="mla",
        heads=config.need(*HEADS),
        q_lora_rank=config.count("q_lora_rank"),
        kv_lora_rank=config.need("kv_lora_rank"),
        nope_head_dim=config.need("qk_nope_head_dim"),
        rope_head_dim=config.count("qk_rope_head_dim") or 0,
        v_head_dim=config.need("v_head_dim"),
        output_gate=config.flag("mla_use_output_gate"),
        indexer=_token_indexer(config, layer, layers),
    )


def _compressed(config: Fields, layer: Layer, layers: int, ratio: int) -> CompressedAttention:
    """DeepSeek-V4: `ratio` tokens make one entry, 0 means the window alone; the indexer chooses runs of 4, longer ones are all read."""
    return CompressedAttention(
        layers=1,
        kind="csa",
        heads=config.need(*HEADS),
        head_dim=config.need("head_dim"),
        q_lora_rank=config.need("q_lora_rank"),
        o_lora_rank=config.need("o_lora_rank"),
        o_groups=config.need("o_groups"),
        window=config.need("sliding_window"),
        compress=ratio or None,
        indexer=_token_indexer(config, layer, layers) if ratio == 4 else None,
    )


def _sizes(config: Fields, what: str, names: Mapping[str, tuple[str, ...]]) -> dict[str, Any] | None:
    """The sizes of a recurrent block; None with a note where one is missing."""
    sizes = {key: config.count(*aliases) for key, aliases in names.items()}
    missing = [names[key][0] for key, size in sizes.items() if size is None]
    if missing:
        config.note(f"{what}: {', '.join(missing)} missing, so its weights are not counted")
        return None
    return {"layers": 1, **sizes}


def _gated_delta(config: Fields) -> GatedDeltaNet | None:
    names = {
        "key_heads": ("linear_num_key_heads",),
        "value_heads": ("linear_num_value_heads",),
        "key_head_dim": ("linear_key_head_dim",),
        "value_head_dim": ("linear_value_head_dim",),
        "conv_kernel": ("linear_conv_kernel_dim",),
    }
    sizes = _sizes(config, "linear attention", names)
    return GatedDeltaNet(kind="gdn", **sizes) if sizes else None


def _kimi_delta(config: Fields) -> KimiDeltaAttention | None:
    linear = config.table("linear_attn_config")
    if linear is None:
        return None
    names = {"heads": ("num_heads",), "head_dim": ("head_dim",), "conv_kernel": ("short_conv_kernel_size",)}
    sizes = _sizes(linear, "linear attention", names)
    return KimiDeltaAttention(kind="kda", full_rank_gate=linear.flag("use_full_rank_gate"), **sizes) if sizes else None


def _mamba(config: Fields) -> Mamba2 | None:
    names = {
        "heads": ("mamba_num_heads", "mamba_n_heads"),
        "head_dim": ("mamba_head_dim", "mamba_d_head"),
        "state": ("ssm_state_size", "mamba_d_state"),
        "groups": ("n_groups", "mamba_n_groups"),
        "conv_kernel": ("conv_kernel", "mamba_d_conv"),
    }
    sizes = _sizes(config, "mamba", names)
    return Mamba2(kind="mamba2", **sizes) if sizes else None
