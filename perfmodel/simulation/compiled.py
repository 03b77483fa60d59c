"""numba for the loop of the simulation: compiled once, kept on disk, and compiled again where any of its sources changes."""

from __future__ import annotations

import os
import tempfile
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
    """A function that Python calls, whose machine code is kept on disk. numba notices when its file changes or what its closure holds.

    It is kept in `cache_folder`, in a part of its own for each folder of sources. Not in the package: pip does not know those files,
    and the folder they would leave behind hides the next installation.
    """
    folder, before = cache_folder(), numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder or "")
    try:
        return cast(F, numba.njit(cache=folder is not None, nogil=True, error_model="numpy")(function))
    finally:
        numba.config.CACHE_DIR = before


def cache_folder() -> Path | None:
    """$NUMBA_CACHE_DIR, $XDG_CACHE_HOME/perfmodel/simulation or ~/.cache/perfmodel/simulation; None where it is not writable."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(numba.config.CACHE_DIR or Path(home) / "perfmodel" / "simulation")
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError):  # RuntimeError: nobody's home
        return None
    return folder


def sources() -> int:
    """A number that changes with the sources that are compiled."""
    return zlib.crc32(b"".join((Path(__file__).parent / f"{name}.py").read_bytes() for name in COMPILED))
