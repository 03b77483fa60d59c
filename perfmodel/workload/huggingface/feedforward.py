"""Dense MLPs and experts, from the sizes in a config."""

from __future__ import annotations

from collections import Counter
from typing import Any

from perfmodel.workload.huggingface.fields import Fields
from perfmodel.workload.huggingface.layers import EXPERTS, Layer

TOPK = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k")
DENSE_INTER = ("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")
EXPERT_INTER = (
    *("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size", "intermediate_size"),
    "ffn_hidden_size",
)
SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
SHARED_INTER = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim", "shared_intermediate_size")
ACTIVATION = ("mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function")
UNGATED_ACTIVATIONS = {"relu2", "relu_squared"}
UNGATED_MODELS = {"bloom", "falcon", "gpt2", "gpt_neox", "gptj", "mpt", "opt", "phi", "starcoder2"}
"""Model types whose MLP is up, activation, down, which their configs do not say."""


def is_gated(config: Fields) -> bool:
    """Whether an MLP multiplies its up projection by a gate: all do but those with a squared ReLU and a few older models."""
    return config.text(*ACTIVATION) not in UNGATED_ACTIVATIONS and config.text("model_type") not in UNGATED_MODELS


def dense_mlps(config: Fields, plan: list[Layer], hidden: int) -> list[dict[str, Any]]:
    """Fields of a DenseMlp for each width among the layers of `plan` that have one."""
    if not any(layer.dense for layer in plan):
        return []
    widths = _pruned_widths(config, len(plan), hidden) or config.per_layer(len(plan), *DENSE_INTER)
    used = [widths[layer.index] for layer in plan if layer.dense]
    gated = is_gated(config)
    if any(width is None for width in used) and not config.has("block_configs"):
        raise config.error("intermediate_size", "is missing", mend="Add the width of the dense MLPs.")
    many = Counter(width for width in used if width is not None)
    return [{"layers": n, "inter": width} | ({} if gated else {"gated": False}) for width, n in many.items()]


def _pruned_widths(config: Fields, layers: int, hidden: int) -> list[int | None] | None:
    """DeciLM: a multiple of two thirds of the hidden size, rounded up to a multiple of 256; none where the MLP was cut out."""
    blocks = config.tables("block_configs", layers)
    if blocks is None:
        return None
    widths: list[int | None] = []
    for block in blocks:
        ffn = block.table("ffn")
        if ffn is None or ffn.flag("no_op"):
            widths.append(None)
        elif ffn.flag("replace_with_linear") or (factor := ffn.factor("ffn_mult")) is None:
            config.note("block_configs ffn without ffn_mult: its weights are not counted")
            widths.append(None)
        else:
            widths.append(-(-int(2 * factor * hidden / 3) // 256) * 256)
    return widths


def moe_layer(config: Fields, hidden: int) -> dict[str, Any]:
    """Fields of the MoeLayer. Raises PerfModelError where a size is missing or two names contradict each other."""
    inter = config.need(*EXPERT_INTER)
    fields: dict[str, Any] = {
        "hidden": hidden,
        "inter": inter,
        "experts": config.required(config.agreed(*EXPERTS), EXPERTS),
        "topk": config.required(config.agreed(*TOPK), TOPK),
    }
    latent = config.count("moe_latent_size", "routed_expert_hidden_size")
    if latent is not None:
        fields["latent"] = latent
    if not is_gated(config):
        fields["gated"] = False
    return fields | _shared(config, inter) | _groups(config)


def _shared(config: Fields, inter: int) -> dict[str, int]:
    """Shared experts: a number, a width, or both; Llama 4 always has one, which its config does not say."""
    number, width = config.agreed(*SHARED), config.count(*SHARED_INTER)
    if (config.text("model_type") or "").startswith("llama4"):
        number = 1
    if number is None and width is None:
        return {}
    number = number or 1
    if width is None or width == inter:
        return {"shared": number}
    if number > 1:
        config.note(f"{number} shared experts of width {width}: read as the width of each")
    return {"shared": number, "shared_inter": width}


def _groups(config: Fields) -> dict[str, int]:
    """Group-limited routing, unless the method is plain top-k."""
    groups, used = config.agreed("n_group", "num_expert_group"), config.count("topk_group")
    if groups is None or groups == 1 or config.text("topk_method") == "greedy":
        return {}
    return {"n_group": groups, "topk_group": config.required(used, ("topk_group",))}
