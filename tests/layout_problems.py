"""Random weights for the tests of packed layouts, and what a kernel makes of what was packed."""

import ml_dtypes
import numpy as np

from perfmodel.formats.elements import get_element
from perfmodel.kernels import layouts

E2M1 = get_element("e2m1").values
BF16 = ml_dtypes.bfloat16


def random(seed, experts, n, k, block, scales=(0, 255)):
    """Codes [E, N, K] and scale bytes [E, N, K / block]."""
    source = np.random.default_rng(seed)
    return source.integers(0, 16, (experts, n, k), np.uint8), source.integers(*scales, (experts, n, k // block), np.uint8)


def e8m0(scales, block):
    return np.repeat(np.ldexp(1.0, scales.astype(int) - 127), block, -1)


def bf16_bits(values):
    """float64 of the bf16 whose bits these are."""
    return values.astype(np.uint16).view(BF16).astype(np.float64)


def exact_in_bf16(values):
    return np.array_equal(values.astype(np.float32).astype(BF16).astype(np.float64), values)


def as_numpy(value):
    return value if isinstance(value, str | int | None) else np.asarray(value)


def main_values(packed):
    """What a kernel makes of MXFP4 tiles: bf16 weights / alpha, float64 [E, N padded, K padded], and checks that they are exact."""
    codes = layouts.unpack_codes(packed, "e2m1", 128)
    powers = bf16_bits((layouts.unpack_scale_bytes(packed, 32, 128).astype(np.uint32) * 0x00800080) & 0xFFFF)
    products = E2M1[codes] * 2.0**-126 * np.repeat(powers, 32, -1)
    assert exact_in_bf16(products)
    return products


def restored(packed, values, tile_k, factor):
    """Weights as a kernel sums them up: those of the tiles plus those of the rest, in the order and with the factors of `levels`."""
    total = values(packed.tiles)
    if packed.rest is not None:
        row_tiles, rest = packed.tiles.shape[1], packed.rest
        for i in range(len(rest.start) - 1):
            levels = rest.level[rest.start[i] : rest.start[i + 1]].tolist()
            assert levels == sorted(levels, reverse=True)  # from the deepest up
            for j in range(rest.start[i], rest.start[i + 1]):
                rows, columns = (
                    slice(i % row_tiles * 128, (i % row_tiles + 1) * 128),
                    slice(rest.k_tile[j] * tile_k, (rest.k_tile[j] + 1) * tile_k),
                )
                total[i // row_tiles, rows, columns] += np.ldexp(
                    values(rest.tiles[j][None, None, None])[0], -rest.binades * int(rest.level[j])
                )
    return total * factor
