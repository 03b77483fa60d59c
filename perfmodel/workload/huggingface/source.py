"""The files of a config: where they are, which belong together, and which table in them describes the language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError
from perfmodel.files import read_text
from perfmodel.workload.huggingface.fields import Fields

TEXT_TABLES = ("text_config", "llm_config", "language_config", "language_model_config", "thinker_config")
"""Where multimodal configs keep their language model, in order of preference."""
NO_TEXT = ("vision", "visual", "audio", "draft", "mtp")
"""Words in the names of tables that describe something else."""
FLATTENED = ("ffn_config", "attn_config")
"""Tables whose fields belong to the model itself (DBRX)."""
DEEPEST = 4


def config_file(path: Path) -> Path:
    """The file at `path`, or config.json in the folder at `path`. Raises PerfModelError where there is neither."""
    mend = "Give the config.json, or the folder that holds it."
    try:
        if not path.is_dir():
            path.stat()
            return path
        inside = path / "config.json"
        if inside.is_file():
            return inside
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise PerfModelError(f"cannot read: {getattr(error, 'strerror', None) or error}", file=path, mend=mend) from error
    raise PerfModelError("is a folder without config.json", file=path, mend=mend)


def model_name(path: Path) -> str:
    """`ORG/MODEL` from ORG--MODEL_config.json or a Hugging Face cache folder, else the folder's or the file's own name."""
    path = path.absolute()
    cached = next((p.name.removeprefix("models--") for p in path.parents if p.name.startswith("models--")), None)
    name = cached or path.stem.removesuffix("config").rstrip("_-.") or path.parent.name or path.stem
    return name.replace("--", "/")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises PerfModelError with the line where it is broken."""
    return parse_json(read_text(path), path)


def parse_json(text: str, path: Path) -> dict[str, Any]:
    """The object in a JSON text; `path` stands in messages. Raises PerfModelError with the line where it is broken."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise PerfModelError(f"is not JSON: {error.msg}", file=path, line=error.lineno, mend="Give the model's config.json.") from error
    except (ValueError, RecursionError) as error:
        raise PerfModelError("is no JSON that can be read: too deep, or a number too long", file=path, mend="Mend the file.") from error
    if not isinstance(data, dict):
        raise PerfModelError("holds no JSON object", file=path, value=data, mend="Give the model's config.json.")
    return data


def side_file(path: Path, notes: list[str]) -> Fields | None:
    """The `quantization` table of the hf_quant_config.json that belongs to the config at `path`, where there is one."""
    if not path.name.endswith("config.json"):
        return None
    beside = path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json")
    if not beside.is_file():
        return None
    return Fields(read_json(beside), beside, notes=notes).table("quantization")


def text_table(root: Fields, depth: int = 0) -> Fields:
    """The table of the language model: `root` itself, or the one nested in it."""
    for name in TEXT_TABLES:
        inner = root.table(name) if depth < DEEPEST and isinstance(root.table_of.get(name), dict) else None
        if inner is not None:
            inner.table_of = inner.table_of | {"model_type": inner.table_of.get("model_type") or root.table_of.get("model_type")}
            return text_table(inner, depth + 1)
    lone = _lone_table(root)
    if lone is not None:
        return lone
    for name in FLATTENED:
        inner = root.table(name)
        if inner is not None:
            root.table_of = inner.table_of | root.table_of
    return root


def _lone_table(root: Fields) -> Fields | None:
    """Where `root` has no sizes of its own: the one table inside it that has, under whatever name; noted, since the name is not known."""
    if "hidden_size" in root.table_of or "num_hidden_layers" in root.table_of:
        return None
    names = [
        name
        for name, value in root.table_of.items()
        if isinstance(value, dict) and {"hidden_size", "num_hidden_layers"} <= value.keys() and not any(word in name for word in NO_TEXT)
    ]
    if len(names) != 1:
        return None
    root.note(f"{names[0][:40]!r} was taken for the language model: it alone has its sizes")
    return root.table(names[0])
