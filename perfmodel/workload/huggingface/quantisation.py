"""The FORMAT of a model's experts (or else of its other linear layers), from what its checkpoint says about quantisation.

Read in this order: the layers that a mixed checkpoint lists, ModelOpt's algorithm, compressed-tensors' groups, the method's own fields.
Sources: the config classes of ModelOpt, compressed-tensors and transformers' quantizers.
"""

from __future__ import annotations

from perfmodel.workload.huggingface.fields import Fields

ALGORITHMS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_BLOCK_SCALES": "fp8-block",
    "FP8_PB_WO": "fp8-block",
    "FP8_PB_REAL": "fp8-block",
    "MXFP8": "mxfp8",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "nvfp4-w4a16",
    "MXFP4": "mxfp4",
    "W4A8_MXFP4_FP8": "mxfp4-w4a8",
    "W4A16_MXFP4": "mxfp4-w4a16",
    "INT4_AWQ": "int4-w4a16",
    "W4A16_AWQ": "int4-w4a16",
    "W4A8_AWQ": "w4afp8-int4",
    "INT8_SQ": "int8",
    "W8A8_SQ_PER_CHANNEL": "int8",
}
"""ModelOpt's `quant_algo` and the FORMAT it means."""

GROUPS: dict[tuple[str, int, int | None, tuple[str, int] | None], str] = {
    ("float", 4, 16, ("float", 4)): "nvfp4",
    ("float", 4, 16, None): "nvfp4-w4a16",
    ("float", 4, 32, ("float", 4)): "mxfp4",
    ("float", 4, 32, ("float", 8)): "mxfp4-w4a8",
    ("float", 4, 32, None): "mxfp4-w4a16",
    ("float", 8, 32, ("float", 8)): "mxfp8",
    ("float", 8, None, ("float", 8)): "fp8",
    ("int", 8, None, ("int", 8)): "int8",
}
"""compressed-tensors: type, bits and group size of the weights, type and bits of the activations."""

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16"}


def weight_format(config: Fields, quantization: Fields | None, side_file: Fields | None, has_experts: bool) -> str | None:
    """The FORMAT id; None with a note where it is not understood.

    `quantization` is the config's own table, `side_file` the `quantization` table of hf_quant_config.json, which goes first.
    """
    for table in (side_file, quantization):
        if table is not None:
            return _format_of(table, config, has_experts)
    dtype = config.text("dtype", "torch_dtype")
    if dtype is None:
        config.note("neither dtype nor quantization_config: the format of the weights is not given")
    elif dtype not in DTYPES:
        config.note(f"dtype {dtype[:40]!r} is no format that is modelled")
    return DTYPES.get(dtype or "")


def _format_of(table: Fields, config: Fields, has_experts: bool) -> str | None:
    algorithm = table.text("moe_quant_algo") if has_experts else None
    algorithm = algorithm or table.text("quant_algo")
    if algorithm == "MIXED_PRECISION":
        algorithm = _listed_algorithm(table, has_experts)
    if algorithm is not None:
        return _known(table, f"quant_algo {algorithm[:40]}", ALGORITHMS.get(algorithm.upper()))
    if table.has("config_groups"):
        return _compressed_tensors(table, has_experts)
    method = table.text("quant_method")
    if method is None:
        table.note("quantization_config without quant_method or quant_algo: the format of the weights is not understood")
        return None
    return _known(table, f"quant_method {method[:40]}", _by_method(table, config, method, has_experts))


def _known(table: Fields, what: str, format_id: str | None) -> str | None:
    if format_id is None:
        table.note(f"{what}: its format is not understood")
    return format_id


def _listed_algorithm(table: Fields, has_experts: bool) -> str:
    """The algorithm that a mixed checkpoint lists for its routed experts, else for its MLPs."""
    layers = table.table("quantized_layers")
    if layers is None:
        return "MIXED_PRECISION"
    entries = [layers.table(name) for name in layers.table_of if _is_wanted(name, has_experts)]
    found = {entry.text("quant_algo") for entry in entries if entry}
    return (found.pop() if len(found) == 1 else None) or "MIXED_PRECISION"


def _compressed_tensors(table: Fields, has_experts: bool) -> str | None:
    """The format of the group that holds the experts (or the MLPs), which a lone group does."""
    groups = table.table("config_groups")
    entries = [groups.table(name) for name in groups.table_of] if groups else []
    tables = [entry for entry in entries if entry]
    wanted = [t for t in tables if _targets(t, has_experts)] if len(tables) > 1 else tables
    found = {_group_format(t) for t in wanted}
    return _known(table, "config_groups", found.pop() if len(found) == 1 else None)


def _targets(group: Fields, has_experts: bool) -> bool:
    names = [name for name in group.items("targets") or [] if isinstance(name, str)]
    return "Linear" in names or any(_is_wanted(name, has_experts) for name in names)


def _is_wanted(name: str, has_experts: bool) -> bool:
    """Whether a layer's name is that of routed experts, or of an MLP where there are none."""
    return "expert" in name and "shared" not in name if has_experts else "mlp" in name


def _group_format(group: Fields) -> str | None:
    weights, activations = group.table("weights"), group.table("input_activations")
    if weights is None:
        return None
    kind, bits = weights.text("type") or "", weights.count("num_bits") or 0
    size = weights.count("group_size")
    reads = (activations.text("type") or "", activations.count("num_bits") or 0) if activations else None
    if kind == "int" and bits == 4:
        return {None: "int4-w4a16", ("float", 8): "w4afp8-int4"}.get(reads)
    if weights.has("block_structure"):  # a list, or "128x128" in early files
        return "fp8-block" if (kind, bits) == ("float", 8) and weights.raw("block_structure") in ([128, 128], "128x128") else None
    return GROUPS.get((kind, bits, size, reads))


def _by_method(table: Fields, config: Fields, method: str, has_experts: bool) -> str | None:
    """Methods whose fields name no algorithm."""
    if method == "fp8":
        if has_experts and config.text("expert_dtype") == "fp4":  # DeepSeek-V4: E2M1 experts, a UE8M0 scale per 32, FP8 activations
            return "mxfp4-w4a8"
        block = table.numbers("weight_block_size")
        return "fp8" if block is None else "fp8-block" if block == [128, 128] else None
    if method == "mxfp4":
        return "mxfp4-w4a16"
    if method in ("gptq", "awq"):
        return "int4-w4a16" if table.count("bits", "w_bit") == 4 else None
    if method == "fbgemm_fp8":
        return "fp8"
    if method == "bitsandbytes" and table.flag("load_in_4bit", "_load_in_4bit"):
        return "nf4-w4a16" if table.text("bnb_4bit_quant_type") == "nf4" else None
    return None
