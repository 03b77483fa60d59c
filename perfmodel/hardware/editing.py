"""Making, changing and comparing specification files. A file is written whole and valid, or not at all."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml.error import YAMLError

from perfmodel.errors import PerfModelError
from perfmodel.files import is_file, load_yaml, locked_folder, read_text, write_atomic
from perfmodel.hardware.catalog import find_gpu, gpu_ids, schema_path
from perfmodel.hardware.fields import Change, apply_changes, field_kinds, field_values, parse_changes
from perfmodel.hardware.quantity import USER_SOURCE
from perfmodel.hardware.spec import GpuSpec
from perfmodel.hardware.whatif import DRIVERS, consequences
from perfmodel.validated import validate

SCHEMA_LINE = "# yaml-language-server: $schema="


class Edit(NamedTuple):
    """What `set_fields` did to a file."""

    path: Path
    old: str
    new: str
    notes: list[str]
    """What was rescaled beside what was asked for."""

    @property
    def diff(self) -> str:
        """Unified diff, empty where nothing changed."""
        name = self.path.name
        lines = difflib.unified_diff(self.old.splitlines(), self.new.splitlines(), name, name, n=1, lineterm="")
        return "\n".join(lines)


def set_fields(path: str | Path, changes: Sequence[str], *, rescale: bool = False) -> Edit:
    """Write `changes` ("memory.bandwidth_GBps=5000") into a user's specification, with status `user`.

    The fields are validated together, with everything else in the file, before anything is written. With `rescale`, what follows from a
    changed clock, SM count, rate or peak is written too, as a what-if would have it.

    Raises PerfModelError with file, line, field and mend; then the file is as it was.
    """
    file = _users_file(path)
    with locked_folder(file):
        return _set_fields(file, changes, rescale)


def _set_fields(file: Path, changes: Sequence[str], rescale: bool) -> Edit:
    text = read_text(file)
    data = load_yaml(file, text)
    wanted, notes = parse_changes(changes), list[str]()
    if rescale:
        derived, notes = consequences(validate(GpuSpec, data, file=file, text=text), wanted)
        wanted += derived
    try:
        gpu = validate(GpuSpec, apply_changes(data, wanted), file=file, text=text)
    except PerfModelError as error:
        if not rescale and any(change.path.startswith(DRIVERS) for change in wanted):
            error.mend = f"{error.mend} Or add --rescale, which changes what depends on clock, SMs and rate."
        raise
    try:
        new = edited_text(text, wanted)
    except YAMLError as error:
        mend = "Save it with ordinary line ends and without aliases there, or change it by hand."
        raise PerfModelError("cannot be edited in place", file=file, mend=mend) from error
    if validate(GpuSpec, load_yaml(file, new), file=file, text=new) != gpu:
        raise PerfModelError(
            "cannot be edited in place", file=file, mend="Aliases, anchors and tags need an editor: change the file by hand."
        )
    if new != text:
        write_atomic(file, new)
    return Edit(file, text, new, notes)


def edited_text(text: str, changes: Sequence[Change]) -> str:
    """A specification's text with the changes made; all else stays, character by character."""
    from perfmodel.hardware.splice import put

    data = load_yaml("", text)
    for change in changes:
        keys: list[str] = change.keys
        value: object = change.node
        old, parent = _at(data, keys), _at(data, keys[:-1])
        data = apply_changes(data, [change])
        if isinstance(parent, int | float):  # the source of a bare number: it becomes a mapping
            keys, value = keys[:-1], _at(data, keys[:-1])
        elif isinstance(old, int | float) and change.source == USER_SOURCE:  # a bare number stays one
            value = change.value
        text = put(text, keys, value)
    return text


def _at(data: Any, keys: list[str]) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _users_file(path: str | Path) -> Path:
    if (id := str(path).lower()) in gpu_ids() and not is_file(path):
        mend = f"Copy it first: perfmodel spec new --from {id} my-{id}.yaml"
        raise PerfModelError("is a bundled GPU", field="FILE", value=str(path), mend=mend)
    return Path(path)


def new_spec(source: str | Path, path: str | Path, *, force: bool = False) -> GpuSpec:
    """Write a copy of a GPU (id or path) to `path`, comments and all; its id and name become those of the file.

    Raises PerfModelError where the file exists (unless `force`), does not end in .yaml, or cannot be written.
    """
    file = Path(path)
    if file.suffix not in (".yaml", ".yml"):
        raise PerfModelError("must end in .yaml", field="FILE", value=str(path), mend=f"Write {file}.yaml.")
    with locked_folder(file):
        return _new_spec(source, file, force)


def _new_spec(source: str | Path, file: Path, force: bool) -> GpuSpec:
    if is_file(file) and not force:
        raise PerfModelError("exists", file=file, mend="Choose another name, or overwrite it with --force.")
    origin = find_gpu(source)
    first, _, rest = read_text(origin).partition("\n")
    if first.startswith(SCHEMA_LINE):  # editors resolve it from the file's own folder
        beside = file.parent.resolve() == schema_path().parent.resolve()
        first = SCHEMA_LINE + (schema_path().name if beside else str(schema_path()))
    text = edited_text(f"{first}\n{rest}", [Change("id", file.stem), Change("name", file.stem)])
    gpu = validate(GpuSpec, load_yaml(file, text), file=file, text=text)
    write_atomic(file, text)
    return gpu


class Difference(NamedTuple):
    """A field that two GPUs do not share; None where one of them leaves it out."""

    field: str
    first: object
    second: object


def differences(first: GpuSpec, second: GpuSpec) -> list[Difference]:
    """Fields whose value or provenance differs, in the order of the file."""
    mine, theirs = field_values(first), field_values(second)
    pairs = (Difference(field, mine.get(field), theirs.get(field)) for field in field_kinds())
    return [pair for pair in pairs if pair.first != pair.second]
