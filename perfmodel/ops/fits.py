"""Whether a fit of a profile has what its op needs: told with file, line, field and mend before anything is computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.files import line_of, read_text
from perfmodel.ops.op import Op
from perfmodel.profiles.op_profile import OpFit, OpProfile

Location = tuple[object, ...]
"""Of a field in a profile's file."""
ENTRIES_BY_RANKS = (1, 3)
"""One for all, or those of up to 2, up to 4 and more ranks."""


def check_profile(op: Op, profile: OpProfile, file: Path) -> None:
    """Raises PerfModelError that names `file` and line for the first fit that `op` cannot take."""
    for number, fit in enumerate(profile.fits):
        for at, problem, mend in _faults(op, fit):
            location = ("fits", number, *at)
            field = ".".join(map(str, location))
            raise PerfModelError(problem, file=file, line=line_of(read_text(file), location), field=field, mend=mend)


def check_fit(op: Op, fit: OpFit) -> None:
    """Raises PerfModelError for a fit that `op` cannot take; its file is not known here."""
    for at, problem, mend in _faults(op, fit):
        raise PerfModelError(problem, field=".".join(map(str, at)), mend=mend)


def _faults(op: Op, fit: OpFit) -> Iterator[tuple[Location, str, str]]:
    """(field, problem, mend) of all that is wrong."""
    yield from _misnamed("menus", fit.menus, op.menus)
    yield from _misnamed("parameters", fit.parameters, op.parameters)
    for either in op.needs:
        if not any(name in fit.menus for name in either):
            yield ("menus", either[0]), f"{op.id} needs this menu", f"Add {' or '.join(either)}, `{either[0]}: [...]` say."
    for name in op.by_ranks:
        if name in fit.menus and len(fit.menus[name]) not in ENTRIES_BY_RANKS:
            mend = "Give one number for all ranks, or three: up to 2 ranks, up to 4 and more."
            yield ("menus", name), f"has {len(fit.menus[name])} entries", mend


def _misnamed(field: str, given: Iterable[str], known: Iterable[str]) -> Iterator[tuple[Location, str, str]]:
    names = list(known)
    for name in given:
        if name not in names:
            yield (field, name), "the op has none of this name", did_you_mean(name, names)
