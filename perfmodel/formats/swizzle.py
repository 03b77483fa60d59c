"""Block scales in the order in which Blackwell's tensor units read them: tiles of 128 rows x 4 scales, 512 B each.

Inside a tile, the scale of row r and column c lies at (r % 32) * 16 + (r // 32) * 4 + c. Tiles are row-major; the edges are zeros.
Source: PTX ISA, scale factor layout of tcgen05.mma; cuBLAS, 1D block scaling factors layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfModelError

TILE_ROWS, TILE_COLUMNS = 128, 4
TILE_BYTES = TILE_ROWS * TILE_COLUMNS


def swizzle_scales(scales: NDArray[Any]) -> NDArray[np.uint8]:
    """Scale codes uint8 [..., R, C] as bytes [..., ceil(R / 128) * ceil(C / 4) * 512].

    Raises PerfModelError for another type or fewer than two axes.
    """
    if scales.dtype != np.uint8 or scales.ndim < 2:
        raise PerfModelError(
            "scales to swizzle must be uint8 [..., R, C]", value=(str(scales.dtype), scales.shape), mend="Pass E4M3 or E8M0 codes."
        )
    lead, (rows, columns) = scales.shape[:-2], scales.shape[-2:]
    down, across = _tiles(rows, columns)
    padding = [(0, 0)] * len(lead) + [(0, down * TILE_ROWS - rows), (0, across * TILE_COLUMNS - columns)]
    tiles = np.pad(scales, padding).reshape(*lead, down, 4, 32, across, TILE_COLUMNS)
    return np.ascontiguousarray(np.moveaxis(tiles, (-5, -2, -3, -4, -1), (-5, -4, -3, -2, -1))).reshape(*lead, -1)


def unswizzle_scales(swizzled: NDArray[Any], rows: int, columns: int) -> NDArray[np.uint8]:
    """The inverse: bytes [..., tiles * 512] as scale codes [..., rows, columns]. Raises PerfModelError where the sizes do not fit."""
    down, across = _tiles(rows, columns)
    if swizzled.dtype != np.uint8 or swizzled.ndim < 1 or swizzled.shape[-1] != down * across * TILE_BYTES:
        raise PerfModelError(
            f"{rows} x {columns} scales fill {down} x {across} tiles of {TILE_BYTES} B in uint8",
            value=(str(swizzled.dtype), swizzled.shape),
            mend="Check rows and columns.",
        )
    lead = swizzled.shape[:-1]
    tiles = swizzled.reshape(*lead, down, across, 32, 4, TILE_COLUMNS)
    plain = np.moveaxis(tiles, (-5, -4, -3, -2, -1), (-5, -2, -3, -4, -1)).reshape(*lead, down * TILE_ROWS, across * TILE_COLUMNS)
    return np.ascontiguousarray(plain[..., :rows, :columns])


def _tiles(rows: int, columns: int) -> tuple[int, int]:
    if rows < 1 or columns < 1:
        raise PerfModelError("scales must have rows and columns", value=(rows, columns), mend="Pass at least one of each.")
    return -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
