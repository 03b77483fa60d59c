"""What the name of a measured kernel says: its profile and the tile that it runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

OURS = re.compile(r"(numba-[a-z]+)-.*-n(\d{1,6})((?:-[a-z]+){0,2})", re.ASCII)
"""Kind, format, tokens of a tile; epilogue, and `gather` where the kernel finds the rows of its tokens itself."""
TORCH = {"torch-grouped-mm": "torch-grouped-mm", "torch-scaled-grouped-mm": "torch-grouped-mm"}


@dataclass(frozen=True)
class Named:
    """A kernel profile, and the rows (tokens) of the tile that runs; None where the library chooses."""

    profile: str | None
    tile: int | None
    ours: bool


def named(kernel: str) -> Named:
    """What a kernel's name says. Of a layer, `first+second`, the profile of both and the tile if it is the same."""
    parts = kernel.split("+")
    found = [_named(part) for part in parts]
    first = found[0]
    profiles, tiles = {one.profile for one in found}, {one.tile for one in found}
    return Named(first.profile if len(profiles) == 1 else _slower(profiles), first.tile if len(tiles) == 1 else None, first.ours)


def _named(kernel: str) -> Named:
    match = OURS.fullmatch(kernel)
    if match:
        return Named(match[1], int(match[2]), True)
    return Named(TORCH.get(kernel), None, kernel.startswith("numba-"))


def _slower(profiles: set[str | None]) -> str | None:
    """Of a layer whose two GEMMs run on different kernels: wgmma's, for it gathers by a kernel of its own."""
    return "numba-wgmma" if "numba-wgmma" in profiles else None
