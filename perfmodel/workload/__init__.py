"""What is computed: MoE layers and models by their sizes, and the tokens that reach each expert."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.workload.model import ModelSpec

_SOURCE = re.compile(r"^source: https://huggingface\.co/([^/\s]+/[^/\s]+)", re.MULTILINE)
_MOE = re.compile(r"^moe:", re.MULTILINE)


def model_ids() -> list[str]:
    """The ids of the bundled models, sorted."""
    return sorted(path.name.removesuffix(".yaml") for path in _bundled().iterdir() if path.name.endswith(".yaml"))


def moe_ids() -> list[str]:
    """The ids of the bundled models that have MoE layers, sorted."""
    return [name for name in model_ids() if _MOE.search((_bundled() / f"{name}.yaml").read_text(encoding="utf-8"))]


def load_model(name: str | Path) -> ModelSpec:
    """The model behind a bundled id, a `layer:hidden=...` text, or a path to a Hugging Face config.json or its folder.

    The id may be the Hugging Face one (openai/gpt-oss-20b) where there is no such folder.

    Raises PerfModelError that names the file and the field, or the nearest bundled id.
    """
    text = str(name)
    if not text.startswith("layer:") and text not in model_ids() and _looks_like_path(text) and (_exists(text) or not bundled_id(text)):
        from perfmodel.workload.huggingface import import_config

        return import_config(text)
    return named_model(text)


def named_model(text: str) -> ModelSpec:
    """The model behind a bundled id, its Hugging Face id or a `layer:hidden=...` text; never a file.

    Raises PerfModelError with the nearest id.
    """
    if text.startswith("layer:"):
        return _single_layer(text)
    if (found := bundled_id(text)) is not None:
        from perfmodel.validated import load_model as read
        from perfmodel.workload.model import ModelSpec

        return read(ModelSpec, _bundled() / f"{found}.yaml", id=found)
    from perfmodel.errors import PerfModelError, did_you_mean

    mend = f"{did_you_mean(text.lower(), model_ids())} Or give a path to a config.json, or layer:hidden=..,inter=..,experts=..,topk=..."
    raise PerfModelError("no such model", field="MODEL", value=text, mend=mend)


def bundled_id(text: str) -> str | None:
    """The bundled id that `text` is in whatever case, or that has it as its Hugging Face id; None for anything else."""
    word = text.lower()
    return word if word in model_ids() else _repositories().get(word)


@cache
def _repositories() -> dict[str, str]:
    """Hugging Face id in small letters -> bundled id, of the line `source:` of each file."""
    found = ((_SOURCE.search((_bundled() / f"{id}.yaml").read_text(encoding="utf-8")), id) for id in model_ids())
    return {match[1].lower(): id for match, id in found if match}


def _looks_like_path(text: str) -> bool:
    """Anything with a separator or the suffix of a config, so that a mistyped path is reported as such; else a file that is there."""
    if "/" in text or "\\" in text or text.endswith(".json"):
        return True
    return _exists(text)


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):  # a name too long, a null byte
        return False


def _bundled() -> Path:
    return Path(__file__).parent / "bundled"


def _single_layer(text: str) -> ModelSpec:
    from perfmodel.workload.layer import MoeLayer
    from perfmodel.workload.model import ModelSpec

    moe = MoeLayer.parse(text)
    return ModelSpec(id=text, source="command line", hidden=moe.hidden, layers=1, moe_layers=1, moe=moe)
