"""A profile of one op (a GEMM, attention, a collective, ...) in one library: few numbers an architecture and format, with provenance.

What the numbers mean is said by the op itself (`perfmodel.ops.op.Op.parameters`); here they are names and values.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.profiles.profile import Interval, Provenance
from perfmodel.validated import Strict, load_model

FOLDER = Path(__file__).parent / "ops"
"""One YAML a profile; the file's name is its id."""

Regime = Literal["launch", "compute", "memory"]
"""What bounds an op."""


MenuSize = Annotated[int, Field(ge=1, le=2**20)]


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


class OpFit(Strict):
    """Architectures and formats that share menus and parameters."""

    architectures: Annotated[tuple[str, ...], BeforeValidator(_tuple), Field(min_length=1)]
    formats: Annotated[tuple[str, ...], BeforeValidator(_tuple), Field(min_length=1)]
    menus: dict[str, Annotated[tuple[MenuSize, ...], BeforeValidator(_tuple), Field(min_length=1, max_length=16)]] = Field(
        default_factory=dict
    )
    """Sizes that the library can choose from, by name."""
    parameters: dict[str, Annotated[float, Field(ge=0, le=1e9)]] = Field(default_factory=dict)
    """By name; those that are absent hold what the op expects."""
    intervals: dict[Regime, Interval] = Field(default_factory=dict)
    """By what bounds the op, where it differs from `interval`."""
    interval: Interval
    provenance: Provenance


class OpProfile(Strict):
    """One op of one library."""

    id: str
    op: str
    """Id of the op."""
    name: str
    summary: str
    pool: str | None = None
    """Profiles of one pool are fitted together: they share parameters and differ in menus."""
    fits: Annotated[tuple[OpFit, ...], BeforeValidator(_tuple), Field(min_length=1)]

    def find_fit(self, architecture: str, format_id: str) -> OpFit | None:
        """The fit for an architecture and a format."""
        return next((fit for fit in self.fits if architecture in fit.architectures and format_id in fit.formats), None)


def op_profile_ids() -> list[str]:
    """Ids of all bundled profiles of ops, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def pooled_ids(names: Iterable[str]) -> list[str]:
    """Ids of these profiles and of all that share a pool with one of them. Raises PerfModelError for one that is not there."""
    chosen = [load_op_profile(name) for name in names]
    pools = {profile.pool for profile in chosen} - {None}
    members = [name for name in op_profile_ids() if load_op_profile(name).pool in pools] if pools else []
    return sorted({profile.id for profile in chosen} | set(members))


@lru_cache(maxsize=256)
def load_op_profile(name: str) -> OpProfile:
    """The profile with this id. Raises PerfModelError with the nearest ids."""
    if name not in op_profile_ids():
        raise PerfModelError("no such profile of an op", field="kernel", value=name, mend=did_you_mean(name, op_profile_ids()))
    return load_model(OpProfile, FOLDER / f"{name}.yaml", id=name)
