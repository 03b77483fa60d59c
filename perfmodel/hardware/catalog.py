"""The GPUs that come with the project, and loading one of them or a user's own file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.files import is_file, load_yaml, read_text
from perfmodel.hardware.fields import apply_changes, parse_changes
from perfmodel.hardware.spec import GpuSpec
from perfmodel.hardware.whatif import consequences
from perfmodel.validated import validate


@cache
def _folder() -> Path:
    return Path(str(files("perfmodel.gpu_specs")))


def gpu_ids() -> list[str]:
    """Ids of the bundled GPUs, sorted."""
    return sorted(p.stem for p in _folder().glob("*.yaml"))


def schema_path() -> Path:
    """The JSON schema that editors check a specification against."""
    return _folder() / ".schema.json"


def find_gpu(id_or_path: str | Path) -> Path:
    """The file of a GPU: an id of the catalog in whatever case, else a path. Raises PerfModelError with a did-you-mean for neither."""
    text = str(id_or_path)
    if text not in gpu_ids() and (isinstance(id_or_path, Path) or "/" in text or text.endswith((".yaml", ".yml")) or is_file(text)):
        return Path(id_or_path)
    return bundled_gpu(text)


def bundled_gpu(id: str) -> Path:
    """The file of a GPU of the catalog. Raises PerfModelError with a did-you-mean for anything else."""
    if id.lower() in gpu_ids():
        return _folder() / f"{id.lower()}.yaml"
    raise PerfModelError("no such GPU", field="GPU", value=id, mend=did_you_mean(id.lower(), gpu_ids()))


def load_gpu(id_or_path: str | Path, changes: Sequence[str] = ()) -> GpuSpec:
    """The GPU with this id, or that a YAML file describes, with `changes` such as "memory.bandwidth_GBps=9000" made for this call.

    Raises PerfModelError with file, line, field and mend for an unknown id, a broken file or change, or facts that contradict each other.
    """
    path = find_gpu(id_or_path)
    text = read_text(path)
    return gpu_from(load_yaml(path, text), changes, file=path, text=text)


def gpu_from(data: dict[str, Any], changes: Sequence[str] = (), *, file: str | Path | None = None, text: str | None = None) -> GpuSpec:
    """The GPU that the fields in `data` describe, with `changes` made. `file` and `text` are where errors say that `data` stands."""
    gpu = validate(GpuSpec, data, file=file, text=text)
    if not changes:
        return gpu
    asked = parse_changes(changes)
    derived, notes = consequences(gpu, asked)
    return validate(GpuSpec, apply_changes(data, [*asked, *derived])).with_notes(notes)
