"""pydantic models read from YAML: the base class and the translation of validation errors into PerfModelError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.files import line_finder, load_yaml, read_text


class Strict(BaseModel):
    """Frozen, no unknown fields, no silent conversion, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


Changes = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given), Field(strict=False)]
"""What-ifs, such as "memory.bandwidth_GBps=9600": several, or a single one as text."""
LineOf = Callable[[tuple[object, ...]], int | None]
M = TypeVar("M", bound=BaseModel)


def load_model(kind: type[M], path: str | Path, **extra: Any) -> M:
    """The YAML file at `path` as a `kind`; `extra` fields are added first. Raises PerfModelError with file, line, field and mend."""
    text = read_text(path)
    return validate(kind, load_yaml(path, text) | extra, file=path, text=text)


def validate(kind: type[M], data: dict[str, Any], *, file: str | Path | None = None, text: str | None = None) -> M:
    """`data` as a `kind`. Raises PerfModelError that names every broken field (the first in full)."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise explain(error, kind, file=file, text=text) from error


def explain(error: ValidationError, kind: type[BaseModel], *, file: str | Path | None = None, text: str | None = None) -> PerfModelError:
    """The first of pydantic's complaints as a PerfModelError; further ones are counted and named in the mend."""
    first, *rest = _details(error)
    found = _explained(first, kind, file, _finder(text))
    others = list(dict.fromkeys(".".join(str(p) for p in d["loc"] if not _is_tag(p)) for d in rest))
    others = [o for o in others if o != (found.field or "")][:4]
    if others:
        return PerfModelError(
            found.problem, file=file, line=found.line, field=found.field, value=found.value,
            mend=f"{found.mend} Also wrong: {', '.join(others)}.",
        )  # fmt: skip
    return found


def explain_all(
    error: ValidationError, kind: type[BaseModel], *, file: str | Path | None = None, text: str | None = None, most: int = 20
) -> list[PerfModelError]:
    """pydantic's complaints, up to `most`, as a PerfModelError each."""
    line_of = _finder(text)
    return [_explained(detail, kind, file, line_of) for detail in _details(error)[:most]]


def _details(error: ValidationError) -> list[Any]:
    """What pydantic complains of. A misspelt field comes before the one that it leaves missing."""
    return sorted(error.errors(include_url=False), key=lambda d: d["type"] == "missing")


def _finder(text: str | None) -> LineOf:
    return line_finder(text) if text else lambda location: None


def _explained(detail: Any, kind: type[BaseModel], file: str | Path | None, line_of: LineOf) -> PerfModelError:
    context = detail.get("ctx", {})  # validators of ours may name field, value and mend in a PydanticCustomError
    location = tuple(context["field"].split(".")) if "field" in context else tuple(part for part in detail["loc"] if not _is_tag(part))
    field = ".".join(str(part) for part in location)
    message = detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:] if message[:1].isupper() and not message[:2].isupper() else message
    shown = context.get("value", detail["input"])
    value = shown if detail["type"] != "missing" and not isinstance(shown, dict | BaseModel) else None
    mend = context.get("mend") or _mend(detail, kind, location)
    return PerfModelError(message, file=file, line=line_of(location), field=field or None, value=value, mend=mend)


def _is_tag(part: object) -> bool:
    """pydantic puts the names of union members and validators into a location; fields of ours never hold these characters."""
    return isinstance(part, str) and any(c in part for c in "[](),")


def _mend(detail: Any, kind: type[BaseModel], location: tuple[object, ...]) -> str:
    if detail["type"] == "extra_forbidden" and location:
        return did_you_mean(str(location[-1]), _fields_at(kind, location[:-1]))
    if detail["type"] == "missing":
        return "Add the field."
    return "Mend the value."


def _fields_at(kind: type[BaseModel], location: tuple[object, ...]) -> list[str]:
    """Names of the fields that the model at `location` inside `kind` has."""
    for part in location:
        info = kind.model_fields.get(str(part))
        inner = info.annotation if info else None
        candidates = (getattr(a, "__origin__", a) for a in (inner, *getattr(inner, "__args__", ())))  # Optional and Annotated taken off
        models = [a for a in candidates if isinstance(a, type) and issubclass(a, BaseModel)]
        if not models:
            return []
        kind = models[0]
    return [info.alias or name for name, info in kind.model_fields.items()]
