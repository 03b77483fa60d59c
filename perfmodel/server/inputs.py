"""What a request says, as objects of the library. The one door between strings from outside and files: it has none.

A model is a bundled id, a `layer:` text, or the object of a config.json; a GPU is a bundled id, or a whole specification as an object.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec
from perfmodel.hardware.catalog import bundled_gpu, gpu_from, load_gpu
from perfmodel.profiles.profile import profile_ids
from perfmodel.workload import named_model
from perfmodel.workload.huggingface import import_object
from perfmodel.workload.model import ModelSpec

Body = dict[str, Any]
FILES = ("trace", "prices")
"""Fields of request types that name files: not over HTTP."""
BESIDE = ("math_types", "notes")
"""What a GPU's JSON has beside the fields of its file."""
MOST_CHANGES = 64
DEEPEST = 50
"""Levels of a body. No config.json has ten."""
INLINE_MODEL = "Give a bundled id (GET /v1/models), layer:hidden=..,inter=..,experts=..,topk=.., or the object of a config.json."
INLINE_GPU = "Give a bundled id (GET /v1/gpus), or a whole specification as an object (GET /v1/gpus/b200 shows one)."


def read_object(raw: bytes) -> Body:
    """The JSON object of a body. Raises PerfModelError, with the line, for what is none."""
    try:
        data = json.loads(raw)
    except json.JSONDecodeError as error:
        problem = f"the body is no JSON: {error.msg[0].lower()}{error.msg[1:]}"
        raise PerfModelError(problem, line=error.lineno, mend="Send one JSON object.") from error
    except UnicodeDecodeError as error:
        raise PerfModelError("the body is not UTF-8 text", mend="Send one JSON object in UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise PerfModelError("the body is no JSON that can be read: too deep, or a number too long", mend="Send a plainer one.") from error
    if not isinstance(data, dict):
        raise PerfModelError("the body is no JSON object", value=data, mend='Send {"model": ..., "gpu": ...}, say.')
    if _too_deep(data):
        raise PerfModelError(f"the body is nested deeper than {DEEPEST} levels", mend="Send a plainer one.")
    return data


def _too_deep(data: Body) -> bool:
    """Whether code that walks `data` by recursion might not reach its end."""
    level: list[Any] = [data]
    for _ in range(DEEPEST):
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one) if isinstance(inner, dict | list)]
    return bool(level)


def checked(data: Body) -> Body:
    """`data` without anything that could name a file. Raises PerfModelError for fields that would."""
    for field in FILES:
        if data.get(field) is not None:
            raise PerfModelError("files cannot be named over HTTP", field=field, value=data[field], mend="Leave it out.")
    if isinstance(data.get("anchors"), str):
        mend = "Send the list of measurements itself."
        raise PerfModelError("files cannot be named over HTTP", field="anchors", value=data["anchors"], mend=mend)
    routing, kernel = data.get("routing"), data.get("kernel")
    if isinstance(routing, str) and routing.partition(":")[0] == "counts":
        raise PerfModelError("files cannot be named over HTTP", field="routing", value=routing, mend="Choose another routing.")
    if isinstance(kernel, str) and kernel.endswith((".yaml", ".yml")) and kernel not in profile_ids():
        raise PerfModelError("no such kernel profile", field="kernel", value=kernel, mend="Choose one of GET /v1/profiles.")
    return {name: value for name, value in data.items() if name not in FILES}


def need(data: Body, field: str, mend: str) -> Any:
    """A field that must be there. Raises PerfModelError."""
    if data.get(field) is None:
        raise PerfModelError("field required", field=field, mend=mend)
    return data[field]


def changes_of(data: Body) -> tuple[str, ...]:
    """The what-ifs of a request. Raises PerfModelError for what is no list of text."""
    changes = data.get("changes") or []
    changes = [changes] if isinstance(changes, str) else changes
    if not isinstance(changes, list) or not all(isinstance(change, str) for change in changes) or len(changes) > MOST_CHANGES:
        mend = 'Give ["memory.bandwidth_GBps=9000"], say.'
        raise PerfModelError(f"must be a list of at most {MOST_CHANGES} texts", field="changes", value=changes, mend=mend)
    return tuple(changes)


def model_of(value: Any) -> ModelSpec:
    """The model that a request names or holds. Raises PerfModelError."""
    if isinstance(value, str):
        return _named(value)
    if isinstance(value, dict):
        return _imported(json.dumps(value))
    raise PerfModelError("is no model", field="model", value=value, mend=INLINE_MODEL)


def gpu_of(value: Any, changes: tuple[str, ...] = ()) -> GpuSpec:
    """The GPU that a request names or holds, with `changes` made. Raises PerfModelError."""
    if isinstance(value, str):
        return _catalogued(value, changes)
    if isinstance(value, dict):
        return _described(json.dumps(as_file(value)), changes)
    raise PerfModelError("is no GPU", field="gpu", value=value, mend=INLINE_GPU)


def as_file(spec: Body) -> Body:
    """A specification without what GET /v1/gpus/{id} shows beside the fields of the file, so that its answer can be sent back."""
    return {name: value for name, value in spec.items() if name not in BESIDE}


@lru_cache(maxsize=64)
def _named(text: str) -> ModelSpec:
    try:
        return named_model(text)
    except PerfModelError as error:
        if error.field == "MODEL" and error.problem == "no such model" and error.mend:
            error.mend = error.mend.replace("a path to a config.json", "the object of a config.json")
            raise PerfModelError(error.problem, field=error.field, value=error.value, mend=error.mend) from None
        raise


@lru_cache(maxsize=64)
def _imported(text: str) -> ModelSpec:
    return import_object(json.loads(text))


@lru_cache(maxsize=256)
def _catalogued(text: str, changes: tuple[str, ...]) -> GpuSpec:
    return load_gpu(bundled_gpu(text), changes)


@lru_cache(maxsize=64)
def _described(text: str, changes: tuple[str, ...]) -> GpuSpec:
    try:
        return gpu_from(json.loads(text), changes)
    except PerfModelError as error:
        field = "gpu" if error.field is None else f"gpu.{error.field}"
        raise PerfModelError(error.problem, field=field, value=error.value, mend=error.mend) from error
