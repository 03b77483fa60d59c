"""Which kernel for how many tokens: the menu of tiles of a format, and a simple table where nobody says which tile to take.

The performance model can choose better, by shape and GPU; its choice comes in as a `Tile`. This module only knows what there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from perfmodel.errors import PerfModelError
from perfmodel.kernels.layouts import W4A16
from perfmodel.kernels.layouts_w4a8 import W4A8
from perfmodel.kernels.variants import Variant

Kind = Literal["mma", "decode", "wgmma"]
"""By its tensor-core instruction; `decode` is mma.sync for few tokens (`decode`)."""
MODULES = tuple(f"perfmodel.kernels.{name}" for name in ("mma_w4a16", "decode", "decode_ring", "wgmma_w4a16", "wgmma_w4a8"))
"""Where grouped GEMMs are: each has CONFIGS and, in the same order, VARIANTS."""


@dataclass(frozen=True, order=True)
class Tile:
    """A kernel by its tensor-core instruction and the tokens of a tile."""

    kind: Kind
    columns: int


@dataclass(frozen=True)
class Problem:
    """A grouped GEMM: `experts` weights [n, k] of a format, `tokens` of each on the mean."""

    format: str
    experts: int
    n: int
    k: int
    tokens: float


@dataclass(frozen=True)
class Choice:
    """A kernel that is there."""

    variant: Variant
    config: Any

    @property
    def kind(self) -> Kind:
        """Its tensor-core instruction."""
        return self.variant.kind  # type: ignore[return-value]

    @property
    def columns(self) -> int:
        """Tokens of a tile."""
        return self.config.columns  # type: ignore[no-any-return]

    @property
    def tile(self) -> Tile:
        """What to ask for to get this kernel."""
        return Tile(self.kind, self.columns)

    @property
    def gathers(self) -> bool:
        """Whether it takes the rows of x from a list."""
        return getattr(self.config, "gather", False)


MMA_TABLE = ((8, Tile("mma", 8)), (16, Tile("mma", 16)), (32, Tile("mma", 32)), (64, Tile("mma", 64)), (1 << 62, Tile("mma", 128)))
WGMMA_TABLE = (
    (8, Tile("decode", 8)),
    (16, Tile("decode", 16)),
    (32, Tile("wgmma", 32)),
    (64, Tile("wgmma", 64)),
    (128, Tile("wgmma", 128)),
    (1 << 62, Tile("wgmma", 256)),
)
"""Up to how many tokens per expert which tile. For few tokens mma.sync on Hopper too: its tiles are as small as 8."""


def tile_for(tokens_per_expert: float, arch: str = "sm_90a") -> Tile:
    """A tile that suits this mean number of tokens of the experts that have any."""
    table = WGMMA_TABLE if arch == "sm_90a" else MMA_TABLE
    return next(tile for most, tile in table if tokens_per_expert <= most)


def menu(format_id: str, epilogue: str, arch: str, *, rest: bool = False, short_groups: bool = False) -> tuple[Choice, ...]:
    """All kernels for weights of a format: with a rest (`levels`) or not, in groups of 32 or not."""
    return tuple(
        choice
        for choice in _choices()
        if choice.config.format == format_id
        and choice.config.epilogue == epilogue
        and arch in choice.variant.archs
        and getattr(choice.config, "rest", False) == rest
        and getattr(choice.config, "short_groups", False) == short_groups
    )


def choose(weights: W4A16 | W4A8, epilogue: str, tile: Tile, arch: str) -> Choice:
    """The kernel of a menu that is `nearest` to a tile. Raises PerfModelError where nothing takes such weights."""
    rest, short = weights.rest is not None, getattr(weights, "group", 0) == 32
    there = menu(weights.format, epilogue, arch, rest=rest, short_groups=short)
    if not there:
        what = [f"with the epilogue {epilogue}", *["with scales over more than 134 binades"] * rest, *["in groups of 32"] * short]
        raise PerfModelError(
            f"no kernel for {arch} takes weights {', '.join(what)}",
            field="weights",
            value=weights.format,
            mend="`perfmodel kernels list` shows what there is.",
        )
    return nearest(there, tile)


def nearest(menu: Sequence[Choice], tile: Tile) -> Choice:
    """The kernel of this tile, or else the nearest of its kind, or else of any kind; `menu` must not be empty."""
    return min(menu, key=lambda choice: (choice.kind != tile.kind, abs(choice.columns - tile.columns)))


def _choices() -> Iterator[Choice]:
    for name in MODULES:
        module = import_module(name)
        yield from (Choice(variant, config) for config, variant in zip(module.CONFIGS, module.VARIANTS, strict=True))
