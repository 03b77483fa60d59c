"""Power-of-two scales that spread further than an operand type holds: exact in any case, by splitting weights into levels.

An operand type holds code x 2**k exactly for a window of k. The window is laid below the largest scale of a row or of an expert; blocks
under it form level 1, with a window of their own right below, blocks under that level 2, and so on. Level 0 is the whole matrix with the
other blocks' codes zeroed; of the others only the tiles that hold anything are kept: the rest. As the windows adjoin, the sums of level i
count 2**-(binades * i) of those of level 0, whatever the row: y = alpha (d_0 + 2**-binades d_1 + ..), and all else stays as it is, a fused
activation too. A kernel may take the levels from the deepest up in one set of accumulators, which it multiplies by 2**-binades between
levels; where binades are many (bf16), that would leave the range of single precision, and it takes two sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.kernels.arrays import Array, arange, cast, namespace, pad_to


@dataclass(frozen=True)
class Window:
    """The stored bytes of power-of-two scales that an operand type holds exactly: top - binades + 1 .. top."""

    top: int
    binades: int
    """How many binades the window spans."""

    def levels(self, scales: Array, top: Array) -> Array:
        """Level of each scale below the largest, int32."""
        below = cast(top, "int32") - cast(scales, "int32")
        return namespace(scales).clip(below, 0, 255) // self.binades

    def stored(self, scales: Array, top: Array, levels: Array) -> Array:
        """Stored byte of each scale in the window of its level, uint8. `top`: the scale that is stored as `self.top` in level 0."""
        below = cast(top, "int32") - cast(scales, "int32") - levels * self.binades
        return cast(self.top - namespace(scales).clip(below, 0, self.binades - 1), "uint8")


@dataclass(frozen=True, eq=False)
class Rest:
    """Tiles of the levels below 0, row tile by row tile, each from the deepest level up."""

    tiles: Array
    """uint8 [R, bytes of a tile]"""
    start: Array
    """int32 [E * row tiles + 1]: those of row tile t of expert e are start[i] .. start[i + 1] - 1, i = e * row tiles + t."""
    k_tile: Array
    """int32 [R]: which tile along K."""
    level: Array
    """int32 [R], 1 or more."""
    binades: int
    """Between two levels: sums of level i count 2**-(binades * i)."""


def by_expert(codes: Array, scales: Array, window: Window) -> tuple[Array, Array]:
    """The largest scale over each expert, int32 [E, 1, 1], and the level of each block, int32 like `scales`. Zero blocks do not count."""
    return _top_and_levels(codes, scales, window, (scales.shape[0], 1, -1))


def by_row(codes: Array, scales: Array, window: Window) -> tuple[Array, Array]:
    """The largest scale over each row, int32 [E, N, 1], and the level of each block, int32 like `scales`. Zero blocks do not count."""
    return _top_and_levels(codes, scales, window, (scales.shape[0], scales.shape[1], -1))


def split(codes: Array, levels: Array) -> list[Array]:
    """The codes of each level, 0 first, those of other levels zeroed: their sum is `codes`."""
    deepest = int(levels.max())
    if deepest == 0:
        return [codes]
    level = namespace(codes).stack([levels] * (codes.shape[-1] // levels.shape[-1]), -1).reshape(codes.shape)
    return [codes * cast(level == i, "uint8") for i in range(deepest + 1)]


def occupied(codes: Array, rows: int, tile_k: int) -> Array:
    """Which tiles hold a code that is not zero, bool [E, ceil(N / rows), ceil(K / tile_k)]."""
    experts, n, k = codes.shape
    down, across = -(-n // rows), -(-k // tile_k)
    tiles = pad_to(codes, experts, down * rows, across * tile_k).reshape(experts, down, rows, across, tile_k)
    return (tiles & 7).any(-1).any(2)


def collect_rest(tiles: Sequence[Array], held: Sequence[Array], binades: int) -> Rest | None:
    """The tiles of levels 1, 2, .. that hold anything, in the order in which a kernel takes them; None where there are no such levels.

    tiles: of each level, uint8 [E, row tiles, K tiles, bytes]; held: of each level, bool [E, row tiles, K tiles].
    """
    if not tiles:
        return None
    xp = namespace(tiles[0])
    deepest_first = range(len(tiles) - 1, -1, -1)
    kept = xp.stack([held[i] for i in deepest_first], 2)  # [E, row tiles, level, K tiles]: argwhere then gives the order wanted
    places = xp.argwhere(kept)
    expert, down, order, across = (places[:, i] for i in range(4))
    level = len(tiles) - 1 - order
    row_tile = expert * kept.shape[1] + down
    start = xp.searchsorted(row_tile, arange(kept.shape[0] * kept.shape[1] + 1, places))
    return Rest(
        tiles=xp.stack(list(tiles))[level, expert, down, across],
        start=cast(start, "int32"),
        k_tile=cast(across, "int32"),
        level=cast(level + 1, "int32"),
        binades=binades,
    )


def _top_and_levels(codes: Array, scales: Array, window: Window, by: tuple[int, int, int]) -> tuple[Array, Array]:
    xp = namespace(codes)
    wide = cast(scales, "int32")
    filled = ((codes & 7) != 0).reshape(*scales.shape, -1).any(-1)
    top = xp.amax(xp.where(filled, wide, wide * 0 - 1).reshape(by), -1)[..., None]
    top = xp.where(top < 0, top * 0 + 127, top)  # nothing but zeros: any scale will do
    return top, window.levels(scales, top) * filled
