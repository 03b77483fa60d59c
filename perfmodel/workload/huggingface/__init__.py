"""Import of a Hugging Face config.json. What is not understood ends in the model's notes, by name; nothing is guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfmodel.validated import validate
from perfmodel.workload.huggingface.attention import mixers
from perfmodel.workload.huggingface.doubts import note_doubts
from perfmodel.workload.huggingface.feedforward import dense_mlps, moe_layer
from perfmodel.workload.huggingface.fields import Fields, printable
from perfmodel.workload.huggingface.layers import layer_plan
from perfmodel.workload.huggingface.quantisation import weight_format
from perfmodel.workload.huggingface.source import config_file, model_name, read_json, side_file, text_table
from perfmodel.workload.model import ModelSpec


def import_config(path: str | Path) -> ModelSpec:
    """The model that a config.json (or the folder that holds it) describes, with hf_quant_config.json beside it.

    Raises PerfModelError that names the file and the field.
    """
    file = config_file(Path(path))
    return _model(Fields(read_json(file), file), model_name(file), str(file), beside=True)


def import_object(config: dict[str, Any], *, id: str = "config.json") -> ModelSpec:
    """The model that the object in a config.json describes; no file is looked at. Raises PerfModelError that names the field."""
    return _model(Fields(config, Path("config.json")), id, "the request", beside=False)


def _model(root: Fields, id: str, source: str, *, beside: bool) -> ModelSpec:
    """`beside`: whether a hf_quant_config.json next to the file is read with it."""
    config, file = text_table(root), root.file
    plan = layer_plan(config)
    hidden = config.need("hidden_size", "n_embd", "d_model")
    moe_layers = sum(layer.moe for layer in plan)
    data: dict[str, Any] = {
        "id": printable(id),
        "source": printable(source),
        "hidden": hidden,
        "layers": len(plan),
        "vocab": config.need("vocab_size", "padded_vocab_size"),
        "tied_embeddings": _tied(root, config),
        "attention": mixers(config, plan),
        "dense": dense_mlps(config, plan, hidden),
        "moe_layers": moe_layers,
        "moe": moe_layer(config, hidden) if moe_layers else None,
        "format": _format(root, config, side_file(file, config.notes) if beside else None, moe_layers > 0),
    }
    note_doubts(root, config)
    return validate(ModelSpec, data | {"notes": config.notes}, file=file)


def _tied(root: Fields, config: Fields) -> bool:
    """Whether the output head is the embedding. Gemma ties where nothing is said; elsewhere a silent config is noted."""
    for table in (config, root):
        if table.has("tie_word_embeddings"):
            return table.flag("tie_word_embeddings")
    if (config.text("model_type") or "").startswith("gemma"):
        return True
    config.note("tie_word_embeddings is not given: an output head of its own is counted")
    return False


def _format(root: Fields, config: Fields, side: Fields | None, has_experts: bool) -> str | None:
    """The format of the weights; quantisation and dtype may stand in the language model's table or in the root."""
    quantization = root.table("quantization_config") or config.table("quantization_config")
    dtypes = config if config.has("dtype") or config.has("torch_dtype") else root
    return weight_format(dtypes, quantization, side, has_experts)
