"""Tokens per expert from a file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.files import read_text
from perfmodel.workload.expectation import Array
from perfmodel.workload.layer import MOST_EXPERTS

MEND = "Give a CSV (one count a line or comma-separated, or a header `tokens`) or a one-dimensional .npy."


def read_counts(path: str, experts: int) -> Array:
    """Counts [experts] from a CSV or .npy. Raises PerfModelError for words, negatives, another length, or no token at all."""
    try:
        state = Path(path).resolve().stat()
    except OSError as error:
        raise PerfModelError(f"cannot read: {error.strerror}", file=path, mend=MEND) from error
    return _read(path, experts, (state.st_ino, state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=16)
def _read(path: str, experts: int, state: tuple[int, int, int]) -> Array:
    """The counts of a file in this state: read once for all chunks of a call, and again when the file has changed."""
    values = _from_npy(path) if path.endswith(".npy") else _from_csv(path)
    if values.ndim != 1 or values.size != experts:
        raise PerfModelError(f"holds {values.size} counts, the layer has {experts} experts", file=path, mend=MEND)
    wrong = ~((values >= 0) & (values <= 1e15))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise PerfModelError("a count is negative or not finite", file=path, field=f"expert {at}", value=float(values[at]), mend=MEND)
    if values.sum() <= 0:
        raise PerfModelError("holds no token", file=path, mend="At least one expert must have tokens.")
    values.setflags(write=False)
    return values


def _from_npy(path: str) -> Array:
    try:
        array = np.load(Path(path), allow_pickle=False, mmap_mode="r")
        if array.dtype.kind not in "iuf" or array.size > MOST_EXPERTS:
            raise ValueError("no counts of experts")
        return np.asarray(array, dtype=float)
    except (OSError, ValueError, TypeError, EOFError, MemoryError, OverflowError) as error:
        raise PerfModelError("is not a NumPy array of numbers", file=path, mend=MEND) from error


def _from_csv(path: str) -> Array:
    values: list[float] = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        words = [word.strip() for word in line.split(",") if word.strip()]
        if not words or line.lstrip().startswith("#") or (number == 1 and words == ["tokens"]):
            continue
        try:
            values += [float(word) for word in words]
        except ValueError as error:
            raise PerfModelError("is not a number", file=path, line=number, value=line.strip(), mend=MEND) from error
    return np.asarray(values)
