"""Files: written whole or not at all, and read as YAML with the line of every field at hand for error messages."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError

MAX_YAML = 256 * 2**10
"""A hundred times a specification; finding the line of an error in more would take minutes."""
MAX_BYTES = 16 * 2**20
"""A spec, profile or config over this size is a mistake, not a file of ours."""


def write_atomic(path: str | Path, data: str | bytes) -> None:
    """Write `data` to `path` so that a reader, or a crash at any moment, sees the old file or the new one, never a part.

    Raises PerfModelError where the folder is missing or not writable.
    """
    path = Path(path)
    raw = data.encode() if isinstance(data, str) else data
    try:
        target = path.resolve() if path.is_symlink() else path
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(raw)
                stream.flush()
                os.fsync(stream.fileno())
            Path(temporary).chmod(mode)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise PerfModelError(f"cannot write: {error.strerror}", file=path, mend="Choose a folder that exists and is writable.") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_text(path: str | Path) -> str:
    """The text of a small UTF-8 file. Raises PerfModelError for a missing, unreadable, binary or huge one, or a folder."""
    path = Path(path)
    try:
        with path.open("rb") as stream:  # bounded, so that a device such as /dev/zero ends too
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise PerfModelError(f"is larger than {MAX_BYTES >> 20} MiB", file=path, mend="Give the specification file itself.")
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PerfModelError("is not UTF-8 text", file=path, mend="Save it as UTF-8.") from error
    except OSError as error:
        raise PerfModelError(f"cannot read: {error.strerror}", file=path, mend="Check the path.") from error


def load_yaml(path: str | Path, text: str | None = None) -> dict[str, Any]:
    """The mapping in a YAML file. Raises PerfModelError with file and line for broken YAML, duplicate keys or another shape."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    text = read_text(path) if text is None else text
    if len(text) > MAX_YAML:
        raise PerfModelError(f"is larger than {MAX_YAML >> 10} KiB", file=path, mend="Specifications are a few KiB: is it the right file?")
    try:
        data = YAML(typ="safe").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = (error.problem or "cannot be parsed").splitlines()[0]
        raise PerfModelError(
            f"broken YAML: {problem}", file=path, line=mark.line + 1 if mark else None, mend="Mend the syntax at or just above this line."
        ) from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise PerfModelError(f"broken YAML: {str(error).splitlines()[0][:120]}", file=path, mend="Mend the syntax.") from error
    if not isinstance(data, dict):
        raise PerfModelError("holds no mapping of fields", file=path, value=type(data).__name__, mend="Write `field: value` lines.")
    return data


def line_of(text: str, location: tuple[object, ...]) -> int | None:
    """The line (from 1) at which the field at `location`, such as ("memory", "bandwidth_GBps"), or its nearest parent, stands."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.nodes import MappingNode, SequenceNode

    try:
        node = YAML(typ="rt").compose(text)
    except YAMLError:
        return None
    line: int | None = None
    for key in location:
        if isinstance(node, MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(key)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line + 1
        else:
            break
    return line
