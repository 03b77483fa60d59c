"""Files: written whole or not at all, and read as YAML with the line of every field at hand for error messages."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError

MAX_YAML = 256 * 2**10
"""A hundred times a specification; finding the line of an error in more would take minutes."""
MAX_MERGED = 4 * 2**20
"""Merges (`<<`) times characters: each merge copies fields, and a few KiB of them could fill the memory."""
MAX_BYTES = 16 * 2**20
"""A spec, profile or config over this size is a mistake, not a file of ours."""


def is_file(path: str | Path) -> bool:
    """Whether there is such a file; a name that no file can have (too long, a null byte, a loop of links) is none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def is_folder(path: str | Path) -> bool:
    """Whether there is such a folder."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError, RuntimeError):
        return False


@contextmanager
def locked_folder(path: str | Path) -> Iterator[None]:
    """Let one process at a time read, change and write files in the folder of `path`; others wait. No lock file is left behind."""
    try:
        import fcntl

        folder = os.open(Path(path).resolve().parent, os.O_RDONLY)
    except (ImportError, OSError, RuntimeError, ValueError):  # no locks on Windows; a folder that is not there fails at the next step
        yield
        return
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def write_atomic(path: str | Path, data: str | bytes) -> None:
    """Write `data` to `path` so that a reader, or a crash at any moment, sees the old file or the new one, never a part.

    Raises PerfModelError where the folder is missing or not writable, and for what is no ordinary file (a device, a pipe, a folder) or is
    write-protected: it is left as it was.
    """
    path = Path(path)
    raw = data.encode() if isinstance(data, str) else data
    try:
        target = path.resolve()
        old = target.stat() if target.exists() else None
        if old is not None and not stat.S_ISREG(old.st_mode):
            raise PerfModelError("is no ordinary file", file=path, mend="Name a file; to send text elsewhere, redirect the output.")
        if old is not None and not old.st_mode & 0o222:
            raise PerfModelError("is write-protected", file=path, mend="Allow writing (chmod u+w) or choose another name.")
        _replace(target, raw, old)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PerfModelError(f"cannot write: {reason}", file=path, mend="Choose a folder that exists and is writable.") from error


def _replace(target: Path, raw: bytes, old: os.stat_result | None) -> None:
    """Write beside `target`, then put it in its place, with the mode and, where allowed, the owner of the old file."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        if old is not None and hasattr(os, "chown"):
            with suppress(PermissionError):
                os.chown(temporary, old.st_uid, old.st_gid)
        Path(temporary).chmod(old.st_mode & 0o777 if old is not None else 0o666 & ~_umask())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_bytes(path: str | Path, most: int) -> bytes:
    """The first `most` bytes of a file, which is opened once: it may be a pipe that the shell opened, as `<(command)` or /dev/stdin.

    Raises PerfModelError for what cannot be read, and for a named pipe, which would wait for a writer.
    """
    path = Path(path)
    try:
        if path.is_fifo() and not str(path).startswith(("/dev/fd/", "/dev/stdin", "/proc/")):
            raise PerfModelError("is a pipe", file=path, mend="Give an ordinary file.")
        with path.open("rb") as stream:  # bounded, so that a device such as /dev/zero ends too
            return stream.read(most)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PerfModelError(f"cannot read: {reason}", file=path, mend="Check the path.") from error


def as_text(raw: bytes, path: str | Path) -> str:
    """UTF-8 bytes of a file as text, without a byte order mark. Raises PerfModelError."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PerfModelError("is not UTF-8 text", file=path, mend="Save it as UTF-8.") from error


def read_text(path: str | Path, *, most: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file of at most `most` bytes. Raises PerfModelError for a missing, unreadable, binary or larger one."""
    raw = read_bytes(path, most + 1)
    if len(raw) > most:
        raise PerfModelError(f"is larger than {most >> 20} MiB", file=path, mend="Is it the right file?")
    return as_text(raw, path)


def load_yaml(path: str | Path, text: str | None = None) -> dict[str, Any]:
    """The mapping in a YAML file. Raises PerfModelError with file and line for broken YAML, duplicate keys or another shape."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    text = read_text(path) if text is None else text
    if len(text) > MAX_YAML:
        raise PerfModelError(f"is larger than {MAX_YAML >> 10} KiB", file=path, mend="Specifications are a few KiB: is it the right file?")
    try:
        if "<<" in text or "!" in text:  # a merge may be spelt !!merge
            _refuse_merges(YAML(typ="safe").compose(text), path, most=MAX_MERGED // len(text))
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


def _refuse_merges(node: Any, path: str | Path, *, most: int) -> None:
    """Raise PerfModelError for more than `most` merges, or one of a list (`<<: [*a, *a]`): nested, a few lines take for ever to load."""
    from ruamel.yaml.nodes import MappingNode, SequenceNode

    seen: set[int] = set()
    waiting, merges = [node], 0
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, SequenceNode):
            waiting += node.value
        elif isinstance(node, MappingNode):
            for key, value in node.value:
                merges += (is_merge := key.value == "<<" or str(key.tag).endswith(":merge"))
                line = key.start_mark.line + 1 if key.start_mark else None
                if is_merge and isinstance(value, SequenceNode):
                    raise PerfModelError("merges a list of mappings", file=path, line=line, mend="Merge one mapping: `<<: *name`.")
                if merges > most:
                    raise PerfModelError("merges too many mappings for its length", file=path, line=line, mend="Write the fields out.")
                waiting += [key, value]


def line_of(text: str, location: tuple[object, ...]) -> int | None:
    """The line (from 1) at which the field at `location`, such as ("memory", "bandwidth_GBps"), or its nearest parent, stands."""
    return line_finder(text)(location)


def line_finder(text: str) -> Callable[[tuple[object, ...]], int | None]:
    """`line_of` for many fields of one text, which is parsed once."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        root = YAML(typ="safe").compose(text)
    except YAMLError:
        return lambda location: None
    return lambda location: _line_in(root, location)


def _line_in(node: Any, location: tuple[object, ...]) -> int | None:
    from ruamel.yaml.nodes import MappingNode, SequenceNode

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
