"""The folder beside the output that holds the finished chunks of a sweep, so that an interrupted one goes on where it stopped."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from perfmodel.errors import PerfModelError
from perfmodel.files import write_atomic

NAME = re.compile(r"(\d{7})-([0-9a-f]{16})-([0-9a-f]{16})\.parquet")
"""Number of the chunk, identity of the sweep, digest of number and contents."""
JOINED = ".joined.tmp"
GROUP = 16
"""Chunks that become one row group of the output."""


class Parts:
    """The finished chunks of one sweep: number -> file. Open them with `open_parts`."""

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder, self.identity = folder, identity
        self.done: dict[int, Path] = {}
        self.damaged = 0

    def add(self, number: int, data: bytes) -> None:
        """Keep a chunk: whole or not at all."""
        path = self.folder / f"{number:07d}-{self.identity}-{_digest(number, data)}.parquet"
        write_atomic(path, data)
        self.done[number] = path

    def find(self, restart: bool) -> None:
        """Take up what an earlier run left; what is damaged goes. Raises PerfModelError for parts of another sweep, unless `restart`."""
        found = [(path, match) for path in self._files() if (match := NAME.fullmatch(path.name))]
        others = [path for path, match in found if match[2] != self.identity]
        if others and not restart:
            raise PerfModelError(
                f"holds {len(others)} chunks of an unfinished sweep of another grid, or by another version of perfmodel",
                file=self.folder,
                mend="Choose another --out, or drop them with --restart.",
            )
        for path, match in found:
            if restart or _digest(int(match[1]), path.read_bytes()) != match[3]:
                self.damaged += not restart
                path.unlink()
            else:
                self.done[int(match[1])] = path

    def join(self, out: Path, about: Mapping[str, str]) -> Counter[str]:
        """All parts, one after the other, as the file `out`, whole or not at all. Returns how often each error occurs.

        Raises PerfModelError where a part was damaged since it was found.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        from perfmodel.sweeps.table import WRITING, schema

        errors: Counter[str] = Counter()
        joined, order = self.folder / JOINED, sorted(self.done)
        with pq.ParquetWriter(joined, schema().with_metadata(dict(about)), **WRITING) as writer:
            for start in range(0, len(order), GROUP):
                tables = [pq.read_table(io.BytesIO(self._read(number)), schema=schema()) for number in order[start : start + GROUP]]
                for table in tables:
                    counted = table["error"].drop_null().value_counts().to_pylist()
                    errors.update({item["values"]: item["counts"] for item in counted})
                writer.write_table(pa.concat_tables(tables))
        with joined.open("rb") as stream:
            os.fsync(stream.fileno())
        joined.replace(out)
        return errors

    def _read(self, number: int) -> bytes:
        path = self.done[number]
        data = path.read_bytes()
        if not path.name.endswith(f"-{_digest(number, data)}.parquet"):
            raise PerfModelError("was damaged", file=path, mend="Give the same command again: it computes this chunk anew.")
        return data

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.iterdir() if path.is_file())

    def remove(self) -> None:
        """Delete the parts and what a crash left half written; the folder, too, unless it holds something else."""
        for path in self._files():
            if NAME.fullmatch(path.name) or (path.name.startswith(".") and path.suffix == ".tmp"):
                path.unlink()
        self.done = {}


@contextmanager
def open_parts(out: Path, identity: str, *, restart: bool = False) -> Iterator[Parts]:
    """The parts of `out`, for one process at a time. An empty folder is removed at the end.

    Raises PerfModelError where the folder cannot be made, another process works in it, or it holds parts of another sweep.
    """
    folder = out.with_name(out.name + ".parts")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise PerfModelError(f"cannot make the folder: {error.strerror}", file=folder, mend="Choose another --out.") from error
    with _alone(folder):
        parts = Parts(folder, identity)
        parts.find(restart)
        try:
            yield parts
        finally:
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder against other processes; the system lets go of it when this one dies, however it does."""
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PerfModelError("another sweep is at work here", file=folder, mend="Wait for it, or choose another --out.") from error
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(handle)


def _digest(number: int, data: bytes) -> str:
    return hashlib.sha256(b"%d " % number + data).hexdigest()[:16]
