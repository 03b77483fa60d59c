"""numba for the loop of the simulation: compiled once, kept on disk, and compiled again where any of its sources changes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

COMPILED = ("compiled", "engine", "queues", "state", "table")
"""Modules of this folder whose code, or whose tuples, the loop consists of."""
F = TypeVar("F", bound=Callable[..., Any])


def njit(function: F) -> F:
    """A function that compiled code calls. It is not kept on disk by itself, only as a part of what calls it."""
    return cast(F, numba.njit(error_model="numpy")(function))


def kept(function: F) -> F:
    """A function that Python calls, whose machine code is kept on disk. numba notices when its file changes or what its closure holds."""
    try:
        return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    except RuntimeError:  # neither the package's folder nor the user's is writable: compiled in every process
        return njit(function)


def sources() -> int:
    """A number that changes with the sources that are compiled."""
    return zlib.crc32(b"".join((Path(__file__).parent / f"{name}.py").read_bytes() for name in COMPILED))
