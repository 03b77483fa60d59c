"""From the words of the page to objects of the library. Only bundled ids and pasted text: no word names a file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.files import MAX_YAML, load_yaml
from perfmodel.hardware import GpuSpec, load_gpu
from perfmodel.hardware.catalog import bundled_gpu, gpu_from
from perfmodel.page.state import YOURS
from perfmodel.profiles.profile import profile_ids
from perfmodel.workload import named_model
from perfmodel.workload.huggingface import import_object
from perfmodel.workload.huggingface.source import parse_json
from perfmodel.workload.model import ModelSpec

SPEC_NAME, CONFIG_NAME = "my-gpu.yaml", "config.json"
"""What pasted texts are called in messages, and when they are saved."""


def gpu_of(word: str, spec: str) -> GpuSpec:
    """The bundled GPU with this id, or the one that the YAML text `spec` describes. Raises PerfModelError."""
    return read_spec(spec) if word == YOURS else _bundled_gpu(word)


@lru_cache(maxsize=64)
def _bundled_gpu(word: str) -> GpuSpec:
    return load_gpu(bundled_gpu(word))


@lru_cache(maxsize=64)
def _named_model(word: str) -> ModelSpec:
    return named_model(word)


@lru_cache(maxsize=16)
def read_spec(text: str) -> GpuSpec:
    """The GPU that a YAML text describes. Raises PerfModelError with line, field and mend."""
    if not text.strip():
        raise PerfModelError("is empty", file=SPEC_NAME, mend="Start from a bundled GPU.")
    return gpu_from(load_yaml(SPEC_NAME, text), file=SPEC_NAME, text=text)


def model_of(word: str, config: str) -> ModelSpec:
    """The bundled model with this id, a `layer:...`, or the one that the text `config` describes. Raises PerfModelError."""
    return read_config(config) if word == YOURS else _named_model(word)


@lru_cache(maxsize=16)
def read_config(text: str) -> ModelSpec:
    """The model that a pasted config.json, or `layer:hidden=...`, describes. Raises PerfModelError with line or field."""
    text = text.strip()
    if text.startswith("layer:"):
        return named_model(text)
    if not text:
        raise PerfModelError("is empty", file=CONFIG_NAME, mend="Paste a config.json.")
    if len(text) > MAX_YAML:
        raise PerfModelError(f"is larger than {MAX_YAML >> 10} KiB", file=CONFIG_NAME, mend="Paste the model's config.json alone.")
    return import_object(parse_json(text, Path(CONFIG_NAME)), id=CONFIG_NAME)


def whole(word: str, field: str) -> int:
    """A whole number from 1. Raises PerfModelError."""
    digits = word.strip().replace(",", "")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 12 and int(digits) > 0):
        raise PerfModelError("must be a whole number from 1", field=field, value=word, mend="Give the number, such as 8.")
    return int(digits)


def number(word: str, field: str) -> float:
    """A positive number. Raises PerfModelError."""
    try:
        value = float(word.strip().replace(",", ""))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise PerfModelError("must be a positive number", field=field, value=word, mend="Give the number alone, such as 30.")
    return value


def token_counts(words: str) -> list[int]:
    """`1,64,4096` as numbers, each once, rising. Raises PerfModelError as the command line does."""
    counts = set()
    for word in (part.strip() for part in words.split(",")):
        if not (word.isascii() and word.isdigit() and len(word) <= 12):
            raise PerfModelError(
                "must be whole numbers from 1", field="tokens", value=word, mend="Give numbers with commas between, such as 1,64,4096."
            )
        counts.add(int(word))
    return sorted(counts)


def check_routing(word: str) -> str | None:
    """The routing, None where it is left to the model. Raises PerfModelError for one that would read a file."""
    if word.partition(":")[0] == "counts":
        mend = "Run `perfmodel gap --routing counts:FILE` where the file is."
        raise PerfModelError("reads no files here", field="routing", value=word, mend=mend)
    return word.strip() or None


def check_kernel(word: str) -> str:
    """The id of a bundled kernel profile, or auto; no path. Raises PerfModelError with a did-you-mean."""
    if word != "auto" and word not in profile_ids():
        raise PerfModelError("no such kernel profile", field="kernel", value=word, mend=did_you_mean(word, ["auto", *profile_ids()]))
    return word
