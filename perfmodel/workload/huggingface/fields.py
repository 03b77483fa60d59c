"""One table of a config, read field by field: every size checked, every field that was read remembered, every doubt noted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from perfmodel.errors import PerfModelError, did_you_mean

LARGEST_SIZE = 10**9
T = TypeVar("T")


def printable(text: str) -> str:
    """`text` with control characters and lone surrogates escaped: a config may hold any, a terminal should get none."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Fields:
    """A JSON object of a config file. Null counts as absent; a size of 0 does too, since configs write it for "none"."""

    def __init__(self, table: dict[str, Any], file: Path, prefix: str = "", notes: list[str] | None = None) -> None:
        self.table_of, self.file, self.prefix = table, file, prefix
        self.notes: list[str] = [] if notes is None else notes
        """What was not understood; one list for a table and those inside it."""
        self.read: set[str] = set()

    def raw(self, name: str) -> Any:
        """The value as it stands, None where it is absent."""
        self.read.add(name)
        return self.table_of.get(name)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.raw(name) is not None

    def error(self, name: str, problem: str, value: object = None, mend: str = "Mend the config.") -> PerfModelError:
        """A mistake in the field `name`, to be raised."""
        return PerfModelError(problem, file=self.file, field=self.prefix + name, value=value, mend=mend)

    def note(self, text: str) -> None:
        """Remember something that was not understood or not counted."""
        if (text := printable(text)) not in self.notes:
            self.notes.append(text)

    def count(self, *names: str) -> int | None:
        """The first of `names` that holds a size over 0; None where none does. A list counts if all its items agree."""
        for name in names:
            value = self.raw(name)
            sizes = {self._size(name, item) for item in value} if isinstance(value, list) else {self._size(name, value)}
            if len(sizes) > 1:
                raise self.error(name, "differs from layer to layer, which is not understood", value, "Give one size for all layers.")
            size = sizes.pop() if sizes else None
            if size:
                return size
        return None

    def need(self, *names: str) -> int:
        """As `count`, but a missing size is a mistake."""
        return self.required(self.count(*names), names)

    def agreed(self, *names: str) -> int | None:
        """As `count` for names that mean the same: a contradiction between two of them is a mistake."""
        found = {name: size for name in names if (size := self.count(name))}
        if len(set(found.values())) > 1:
            raise self.error(" and ".join(found), "contradict each other", list(found.values()), "Keep the one that is right.")
        return next(iter(found.values()), None)

    def required(self, size: int | None, names: Iterable[str]) -> int:
        """`size`, or the mistake that none of `names` gives one."""
        first, *others = names
        if size is None:
            known = did_you_mean(first, list(self.table_of)[:500]) if self.table_of else ""
            also = f" (or {', '.join(others)})" if others else ""
            near = f" {known}" if known.startswith("Did") else ""
            raise self.error(first, "is missing", mend=f"Add the size {first}{also}.{near}")
        return size

    def per_layer(self, layers: int, *names: str) -> list[int | None]:
        """One size a layer: the first of `names` that is there, its items if it is a list (None for null and 0), else repeated."""
        for name in names:
            value = self.raw(name)
            if isinstance(value, list) and value:
                self.long_enough(name, value, layers)
                return [self._size(name, item) or None for item in value[:layers]]
            if value is not None and not isinstance(value, list) and (size := self._size(name, value)):
                return [size] * layers
        return [None] * layers

    def items(self, name: str, layers: int | None = None) -> list[Any] | None:
        """A list, with at least one item a layer where `layers` is given; None where it is absent or empty."""
        value = self.raw(name)
        if value is None or value == []:
            return None
        if not isinstance(value, list):
            raise self.error(name, "must be a list", value)
        if layers is not None:
            self.long_enough(name, value, layers)
            return value[:layers]
        return value

    def long_enough(self, name: str, value: list[Any], layers: int) -> None:
        """A list a layer may be longer (prediction heads have their entries at its end), never shorter."""
        if len(value) < layers:
            raise self.error(name, f"has {len(value)} entries for {layers} layers")

    def numbers(self, name: str, layers: int | None = None) -> list[int] | None:
        """A list of whole numbers of 0 or more."""
        value = self.items(name, layers)
        return None if value is None else [self._size(name, item) or 0 for item in value]

    def flag(self, *names: str, default: bool = False) -> bool:
        """The first of `names` that is there, as true or false."""
        for name in names:
            value = self.raw(name)
            if value is None:
                continue
            if value not in (True, False):
                raise self.error(name, "must be true or false", value)
            return bool(value)
        return default

    def text(self, *names: str) -> str | None:
        """The first of `names` that is there, as text."""
        for name in names:
            value = self.raw(name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise self.error(name, "must be text", value)
            return value
        return None

    def factor(self, name: str) -> float | None:
        """A positive, finite number."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST_SIZE:
            raise self.error(name, "must be a positive number", value)
        return float(value)

    def table(self, name: str) -> Fields | None:
        """A table inside this one; None where it is absent or empty."""
        value = self.raw(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "must be a table", value)
        return Fields(value, self.file, f"{self.prefix}{name}.", self.notes)

    def tables(self, name: str, layers: int) -> list[Fields] | None:
        """A list of tables, one a layer."""
        value = self.items(name, layers)
        if value is None:
            return None
        for i, item in enumerate(value):
            if not isinstance(item, dict):
                raise self.error(f"{name}.{i}", "must be a table", item)
        return [Fields(item, self.file, f"{self.prefix}{name}.{i}.", self.notes) for i, item in enumerate(value)]

    def _size(self, name: str, value: Any) -> int | None:
        """A whole number from 0 to a billion; digits in quotes and 4096.0 count, since real configs hold them."""
        if value is None:
            return None
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, "must be a whole number", value)
        if not 0 <= value <= LARGEST_SIZE:
            raise self.error(name, f"must be between 0 and {LARGEST_SIZE:,}", value)
        return value
