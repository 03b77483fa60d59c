"""Which layer of a config holds which blocks: the kind of attention, a dense MLP, experts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from perfmodel.workload.huggingface.fields import Fields

MOST_LAYERS = 1000
EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_routed_experts")
MIXERS = {
    "full_attention": "full",
    "attention": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear",
    "mamba": "mamba",
}
"""Names in `layer_types` and what they are here."""
BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Letters of Nemotron-H's `hybrid_override_pattern`."""


@dataclass(frozen=True)
class Layer:
    """What one layer holds; `mixer` is a value of MIXERS, "kda", or None where nothing mixes tokens."""

    index: int
    mixer: str | None
    dense: bool
    moe: bool


def layer_plan(config: Fields) -> list[Layer]:
    """The layers in order. Raises PerfModelError where their number is missing or a pattern contradicts it."""
    blocks = _single_blocks(config)
    if blocks is not None:
        return [Layer(i, MIXERS.get(block), block == "mlp", block == "moe") for i, block in enumerate(blocks)]
    names = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
    layers = config.need(*names)
    if layers > MOST_LAYERS:
        raise config.error(names[0], f"must be at most {MOST_LAYERS:,}", layers)
    mixers = _mixers(config, layers)
    experts = _moe_layers(config, layers) if has_experts(config) else set()
    beside = _dense_beside_experts(config)
    return [Layer(i, mixers[i], i not in experts or beside, i in experts) for i in range(layers)]


def has_experts(config: Fields) -> bool:
    """Whether the model has experts at all; Gemma 4 says so apart from their number."""
    return config.count(*EXPERTS) is not None and config.flag("enable_moe_block", default=True)


def _dense_beside_experts(config: Fields) -> bool:
    """Gemma 4 runs a dense MLP beside the experts of every layer."""
    return (config.text("model_type") or "").startswith("gemma4")


def _single_blocks(config: Fields) -> list[str] | None:
    """Nemotron-H: each layer is one block, of the kinds in BLOCKS."""
    pattern = config.text("hybrid_override_pattern")
    names = config.items("layers_block_type")
    if pattern is None and names is None:
        return None
    field = "hybrid_override_pattern" if pattern is not None else "layers_block_type"
    blocks = [BLOCKS.get(letter, letter) for letter in pattern] if pattern is not None else names or []
    for block in blocks:
        if block not in BLOCKS.values():
            raise config.error(field, "names a block that is not understood", block, f"Known are {', '.join(BLOCKS.values())}.")
    layers = config.count("num_hidden_layers")
    if not 0 < len(blocks) <= MOST_LAYERS or (layers is not None and layers != len(blocks)):
        raise config.error(field, f"holds {len(blocks)} blocks for {layers} layers")
    return blocks


def _mixers(config: Fields, layers: int) -> list[str | None]:
    """The kind of attention of each layer, from whichever field says it."""
    for rule in (_by_names, _by_lists, _by_period):
        found = rule(config, layers)
        if found is not None:
            return found
    return _by_window(config, layers)


def _by_names(config: Fields, layers: int) -> list[str | None] | None:
    """`layer_types` names each layer; DeciLM's `block_configs` leave attention out of some."""
    types = config.items("layer_types", layers)
    if types is not None:
        unknown = Counter(str(t) for t in types if not isinstance(t, str) or t not in MIXERS)
        for name, many in unknown.items():
            config.note(
                f"layer_types {name[:40]!r} of {many} layers: what mixes their tokens is not understood and its weights are not counted"
            )
        return [MIXERS.get(t) if isinstance(t, str) else None for t in types]
    blocks = config.tables("block_configs", layers)
    if blocks is None:
        return None
    attention = [block.table("attention") for block in blocks]
    if any(a is not None and a.flag("replace_with_linear") for a in attention):
        config.note("block_configs attention replaced by a linear layer: its weights are not counted")
    return [None if a is None or a.flag("no_op") or a.flag("replace_with_linear") else "full" for a in attention]


def _by_lists(config: Fields, layers: int) -> list[str | None] | None:
    """Kimi Linear lists its KDA layers from 1; MiMo marks sliding layers with 1; MiniMax marks linear ones with 0."""
    linear = config.table("linear_attn_config")
    if linear is not None:
        kda = set(linear.numbers("kda_layers") or [])
        linear.read.add("full_attn_layers")
        return ["kda" if i + 1 in kda else "full" for i in range(layers)]
    pattern = config.numbers("hybrid_layer_pattern", layers)
    if pattern is not None:
        return ["sliding" if mark else "full" for mark in pattern]
    pattern = config.numbers("attn_type_list", layers)
    if pattern is not None:
        return ["full" if mark else "linear" for mark in pattern]
    return None


def _by_period(config: Fields, layers: int) -> list[str | None] | None:
    """Every n-th layer attends to everything: Qwen3-Next, Gemma 3, Jamba, and Llama 4 by its own default of 4."""
    period = config.count("full_attention_interval")
    if period:
        return ["linear" if (i + 1) % period else "full" for i in range(layers)]
    period = config.count("sliding_window_pattern")
    if period:
        return ["sliding" if (i + 1) % period else "full" for i in range(layers)]
    period = config.count("attn_layer_period")
    if period:
        offset = config.count("attn_layer_offset") or 0
        return ["full" if i % period == offset else "mamba" for i in range(layers)]
    if (config.text("model_type") or "").startswith("llama4") and config.count("attention_chunk_size"):
        period = config.count("no_rope_layer_interval") or 4
        return ["chunked" if (i + 1) % period else "full" for i in range(layers)]
    return None


def _by_window(config: Fields, layers: int) -> list[str | None]:
    """One kind for all, or a window from the layer `max_window_layers` on (Qwen2)."""
    if config.count("sliding_window") is None or not config.flag("use_sliding_window", default=True):
        return ["full"] * layers
    first = (config.count("max_window_layers") or 0) if config.flag("use_sliding_window") else 0
    return ["sliding" if i >= first else "full" for i in range(layers)]


def _moe_layers(config: Fields, layers: int) -> set[int]:
    """Indices of the layers with experts; all of them where nothing says otherwise."""
    for rule in (_listed_experts, _frequent_experts, _periodic_experts):
        found = rule(config, layers)
        if found is not None:
            return found
    return set(range(layers))


def _listed_experts(config: Fields, layers: int) -> set[int] | None:
    """A list a layer (`mlp_layer_types`, `moe_layer_freq`), or of indices (`moe_layers`, and Step's text `moe_layers_enum`)."""
    types = config.items("mlp_layer_types", layers)
    if types is not None:
        for i, name in enumerate(types):
            if name not in ("sparse", "dense"):
                raise config.error(f"mlp_layer_types.{i}", "must be sparse or dense", name)
        return {i for i, name in enumerate(types) if name == "sparse"}
    if isinstance(config.raw("moe_layer_freq"), list):
        marks = config.numbers("moe_layer_freq", layers) or []
        return {i for i, mark in enumerate(marks) if mark}
    listed = config.numbers("moe_layers")
    if listed is not None:
        return {i for i in listed if i < layers}
    text = config.text("moe_layers_enum")
    if text:
        parts = text.split(",")
        if not all(p.strip().isascii() and p.strip().isdigit() and len(p) < 9 for p in parts):
            raise config.error("moe_layers_enum", "must be layer numbers with commas between", text)
        return {int(p) for p in parts if int(p) < layers}
    return None


def _frequent_experts(config: Fields, layers: int) -> set[int] | None:
    """DeepSeek: dense layers first, then experts every `moe_layer_freq`. Qwen: every `decoder_sparse_step`, less `mlp_only_layers`."""
    first, every = config.count("first_k_dense_replace"), config.count("moe_layer_freq")
    if first is not None or every is not None:
        return {i for i in range(first or 0, layers) if i % (every or 1) == 0}
    step, only = config.count("decoder_sparse_step"), config.numbers("mlp_only_layers")
    if step is not None or only is not None:
        return {i for i in range(layers) if (i + 1) % (step or 1) == 0 and i not in (only or [])}
    return None


def _periodic_experts(config: Fields, layers: int) -> set[int] | None:
    """Llama 4, Jamba and ERNIE 4.5."""
    step = config.count("interleave_moe_layer_step")
    if step:
        return set(range(step - 1, layers, step))
    period = config.count("expert_layer_period")
    if period:
        offset = config.count("expert_layer_offset") or 0
        return {i for i in range(layers) if i % period == offset}
    start, end, interval = (config.count(f"moe_layer_{name}") for name in ("start_index", "end_index", "interval"))
    if start is not None or end is not None or interval is not None:
        last = layers - 1 if end is None else end
        return {i for i in range(start or 0, layers) if i <= last and (i + 1) % (interval or 1) == 0}
    return None
