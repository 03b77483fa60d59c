"""The fields of a specification by their dotted path, and `FIELD=VALUE` parsed against them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from math import isfinite
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.hardware.quantity import NUMBER_ALONE, USER_SOURCE, Count, Quantity
from perfmodel.hardware.spec import GpuSpec

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")


class Change(NamedTuple):
    """A new value for one field. For a quantity, `source` and `status` are its new provenance."""

    path: str
    value: float | int | str | list[str]
    source: str = USER_SOURCE
    status: str = "user"

    @property
    def keys(self) -> list[str]:
        """The path in parts."""
        return self.path.split(".")

    @property
    def is_quantity(self) -> bool:
        """Does the field carry provenance?"""
        return issubclass(field_kinds()[self.path], Quantity)

    @property
    def node(self) -> dict[str, Any] | str | list[str]:
        """What stands in the file afterwards."""
        return {"value": self.value, "source": self.source, "status": self.status} if self.is_quantity else self.value  # type: ignore[return-value]


@cache
def field_kinds() -> dict[str, type]:
    """Every path that can be set, such as "memory.bandwidth_GBps", with Quantity, Count, str or tuple for its kind."""
    return dict(_walk(GpuSpec, ""))


def _walk(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, type]]:
    for name, info in model.model_fields.items():
        kind = _bare_type(info.annotation)
        path = prefix + name
        if issubclass(kind, Quantity):
            yield path, kind
            yield from ((f"{path}.{part}", str) for part in ("source", "status"))
        elif issubclass(kind, BaseModel):
            yield from _walk(kind, path + ".")
        else:
            yield path, kind


def _bare_type(annotation: Any) -> type:
    """The class inside Optional, Annotated, Literal and tuple[...]."""
    if isinstance(annotation, type):
        return annotation
    inner = getattr(annotation, "__origin__", None)
    if inner is tuple:
        return tuple
    first = get_args(annotation)[0]
    return str if isinstance(first, str) else _bare_type(first)


def field_values(gpu: GpuSpec) -> dict[str, Quantity | str | tuple[str, ...]]:
    """The fields that a GPU gives, by path in the order of the file, each with its provenance where it carries any."""
    paths = (path for path in field_kinds() if not path.endswith((".source", ".status")))
    return {path: value for path in paths if (value := field_value(gpu, path)) not in (None, ())}


def field_value(gpu: GpuSpec, path: str) -> Any:
    """The value at a path, None where the GPU leaves it out."""
    value: Any = gpu
    for key in path.split("."):
        value = getattr(value, key, None)
    return value


def parse_changes(texts: Sequence[str]) -> list[Change]:
    """ "memory.bandwidth_GBps=9000" and the like as Changes. Raises PerfModelError naming the field, the value and the mend."""
    changes = [_parse(text) for text in texts]
    paths = [c.path for c in changes]
    for path in paths:
        if paths.count(path) > 1:
            raise PerfModelError("given twice", field=path, mend="Give each field once.")
    return sorted(changes, key=lambda change: change.path.endswith((".source", ".status")))  # after the value, which sets both


def _parse(text: str) -> Change:
    path, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise PerfModelError("is no FIELD=VALUE", value=text, mend="Write memory.bandwidth_GBps=9000, say.")
    kind = field_kinds().get(path)
    if kind is None:
        below = [p for p in field_kinds() if p.startswith(path + ".")]
        raise PerfModelError("is a section" if below else "no such field", field=path, mend=suggest_field(path))
    if issubclass(kind, Quantity):
        return Change(path, _parse_number(path, value, whole=kind is Count))
    return Change(path, [word.strip() for word in value.strip("[]").split(",")] if kind is tuple else value)


def _parse_number(path: str, text: str, *, whole: bool) -> float | int:
    if not NUMBER.fullmatch(text) or not isfinite(float(text)):
        raise PerfModelError("must be a number", field=path, value=text, mend=NUMBER_ALONE)
    number = float(text)
    if number.is_integer():
        return int(number)
    if whole:
        raise PerfModelError("must be a whole number", field=path, value=text, mend=f"Write {path}={round(number)}, say.")
    return number


def expand_fields(paths: Sequence[str]) -> list[str]:
    """The fields that `paths` name, sections spelled out. Raises PerfModelError with a did-you-mean."""
    fields: list[str] = []
    for path in paths:
        found = [known for known in field_kinds() if known == path or known.startswith(path + ".")]
        if not found:
            raise PerfModelError("no such field", field=path, mend=suggest_field(path))
        fields += found
    return fields


def suggest_field(path: str) -> str:
    """A sentence naming the fields below `path` where it is a section, else those with its last part, else the nearest ones."""
    paths = [p for p in field_kinds() if not p.endswith((".source", ".status"))]
    below = [p for p in paths if p.startswith(path + ".")]
    if below:
        return f"Set one of its fields: {', '.join(below)}."
    same_name = [p for p in paths if p.rpartition(".")[2] == path.rpartition(".")[2]]
    return did_you_mean(path, same_name or paths)


def apply_changes(data: dict[str, Any], changes: Sequence[Change]) -> dict[str, Any]:
    """A copy of a specification's plain data with the changes made; sections that were absent are added."""
    for change in changes:
        data = _with(data, change.keys, change.node)
    return data


def _with(data: Any, keys: list[str], node: object) -> dict[str, Any]:
    """`data` with `node` at `keys`; a bare number on the way becomes a quantity, so that its source can be set."""
    if data is not None and not isinstance(data, dict):
        data = {"value": data, "source": USER_SOURCE, "status": "user"}
    head, *rest = keys
    below = (data or {}).get(head)
    return {**(data or {}), head: _with(below, rest, node) if rest else node}
