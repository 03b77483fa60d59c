"""POST /v1/specs/validate: a specification in the body, or what would be changed in a bundled one. Every mistake is named."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from perfmodel.errors import PerfModelError
from perfmodel.files import line_finder, load_yaml, read_text
from perfmodel.hardware import GpuSpec
from perfmodel.hardware.catalog import bundled_gpu
from perfmodel.hardware.fields import apply_changes, parse_changes
from perfmodel.hardware.whatif import consequences
from perfmodel.report.gpus import gpu_data
from perfmodel.server.diffs import merged, patched
from perfmodel.server.inputs import MOST_CHANGES, as_file, read_object
from perfmodel.server.problem import Problem, problem_of
from perfmodel.validated import Strict, explain_all, validate


class SpecRequest(Strict):
    """A specification as it stands (`spec`), or a bundled GPU (`gpu`) with a `diff`; then `changes`."""

    spec: str | dict[str, Any] | None = None
    """The whole specification: YAML as text, or an object."""
    gpu: str | None = None
    """Id of the bundled GPU that `diff` and `changes` are against."""
    diff: str | dict[str, Any] | None = None
    """A unified diff of the bundled YAML as text, or an object with the fields that differ."""
    changes: tuple[str, ...] = Field(default=(), strict=False, max_length=MOST_CHANGES)
    """Further fields, such as "memory.bandwidth_GBps=9600"; peaks that depend on clock, SMs and rate follow."""


class SpecResult(BaseModel):
    """What is wrong with a specification, or the GPU that it describes."""

    ok: bool
    errors: list[Problem]
    """All mistakes of the kind that was found first: lines are those of the YAML that was sent, or of the bundled one with the diff."""
    gpu: dict[str, Any] | None = None
    """The specification with provenance, as GET /v1/gpus/{id} has it; null where it is wrong."""


def validate_spec(raw: bytes) -> dict[str, Any]:
    """A JSON body. Raises PerfModelError where it is no SpecRequest; what is wrong with the specification is the answer."""
    return _result(validate(SpecRequest, read_object(raw)), raw)


def validate_yaml(raw: bytes) -> dict[str, Any]:
    """A body that is the YAML itself."""
    try:
        return _result(SpecRequest(spec=raw.decode("utf-8-sig")), raw)
    except UnicodeDecodeError as error:
        raise PerfModelError("the body is not UTF-8 text", mend="Send YAML in UTF-8.") from error


def _result(request: SpecRequest, raw: bytes) -> dict[str, Any]:
    if (request.spec is None) == (request.gpu is None):
        raise PerfModelError("one of spec and gpu is needed", field="spec", mend="Send a whole spec, or a gpu with a diff or changes.")
    if request.spec is not None and request.diff is not None:
        raise PerfModelError("goes with a bundled gpu, not with spec", field="diff", mend="Send one of them.")
    try:
        gpu = _loaded(request)
    except ValidationError as error:
        problems = _all(error, request, raw)
    except PerfModelError as error:
        if error.field == "GPU":
            raise
        problems = [problem_of(error)]
    else:
        return SpecResult(ok=True, errors=[], gpu=gpu_data(gpu)).model_dump()
    return SpecResult(ok=False, errors=problems).model_dump()


def _all(error: ValidationError, request: SpecRequest, raw: bytes) -> list[Problem]:
    """Every mistake. Of a specification that is an object, lines are those of the request: JSON is YAML too."""
    text = _text(request)
    problems = [problem_of(each) for each in explain_all(error, GpuSpec, text=text)]
    place = None if text is not None else "spec" if request.spec is not None else "diff"
    if place is None or raw.count(b"\n") == 0:
        return problems
    line_of = line_finder(raw.decode(errors="replace"))
    return [p.model_copy(update={"line": line_of((place, *(p.field or "").split(".")))}) for p in problems]


def _loaded(request: SpecRequest) -> GpuSpec:
    """The GPU. Raises ValidationError or PerfModelError."""
    text = _text(request)
    data = load_yaml("spec", text) if text is not None else _data(request)
    gpu = GpuSpec.model_validate(data)
    if not request.changes:
        return gpu
    asked = parse_changes(request.changes)
    derived, notes = consequences(gpu, asked)
    return validate(GpuSpec, apply_changes(data, [*asked, *derived])).with_notes(notes)


def _text(request: SpecRequest) -> str | None:
    """The YAML, where the specification is text."""
    if isinstance(request.spec, str):
        return request.spec
    if request.gpu is not None and not isinstance(request.diff, dict):
        bundled = read_text(bundled_gpu(request.gpu))
        return patched(bundled, request.diff) if request.diff else bundled
    return None


def _data(request: SpecRequest) -> dict[str, Any]:
    """The fields, where the specification or the diff is an object."""
    if isinstance(request.spec, dict):
        return as_file(request.spec)
    assert request.gpu is not None
    assert isinstance(request.diff, dict)
    file = bundled_gpu(request.gpu)
    return merged(load_yaml(file), json.loads(json.dumps(request.diff)))
