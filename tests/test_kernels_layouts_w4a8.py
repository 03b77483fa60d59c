"""Weights packed for W4A8: every spread of block scales is exact."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_problems import E2M1, e8m0, random, restored

from perfmodel.errors import PerfModelError
from perfmodel.formats.elements import get_element
from perfmodel.kernels import layouts_w4a8


class TestW4A8:
    @staticmethod
    def values(tiles):
        codes, powers = layouts_w4a8.unpack_codes(tiles, 128), layouts_w4a8.unpack_scale_bytes(tiles, 128)
        magnitudes = layouts_w4a8.E4M3_TABLE.view(np.uint8).reshape(15, 8)[np.repeat(powers, 32, -1), codes & 7]
        return get_element("e4m3").values[magnitudes | (codes & 8) << 4]

    @settings(deadline=None, max_examples=25)
    @given(
        st.integers(0, 99),
        st.integers(1, 150),
        st.integers(1, 9),
        st.sampled_from([(0, 255), (100, 105), (120, 140), (0, 3)]),
        st.integers(1, 15),
    )
    def test_every_spread_is_exact(self, seed, n, blocks, scales, binades):
        codes, exponents = random(seed, 2, n, 32 * blocks, 32, scales)
        packed = layouts_w4a8.pack_mxfp4_w4a8(codes, exponents, binades=binades)
        got = restored(packed, self.values, 128, packed.row_scale.astype(np.float64)[:, :, None])
        assert np.array_equal(got[:, :n, : 32 * blocks], E2M1[codes] * e8m0(exponents, 32))
        assert layouts_w4a8.unpack_scale_bytes(packed.tiles, 128)[:, :n, :blocks].min() >= 15 - binades
        assert not packed.row_scale[:, n:].any()

    def test_the_table_follows_two_lines_from_byte_3(self):
        for byte in range(3, 15):
            low, high = (byte * 0x08080800 + 0xFBF7F000) % 2**32, (byte * 0x08080808 + 0x0C080400) % 2**32
            assert layouts_w4a8.E4M3_TABLE[byte].tolist() == [low, high]

    def test_the_table_is_exact(self):
        table = get_element("e4m3").values[layouts_w4a8.E4M3_TABLE.view(np.uint8).reshape(15, 8)]
        assert np.array_equal(table, E2M1[:8] * 2.0 ** (np.arange(15)[:, None] - 8))

    def test_fifteen_binades_need_no_rest_and_sixteen_do(self):
        codes, exponents = np.full((1, 16, 64), 1, np.uint8), np.full((1, 16, 2), 120, np.uint8)
        exponents[0, 3, 1] = 106
        assert layouts_w4a8.pack_mxfp4_w4a8(codes, exponents).rest is None
        assert layouts_w4a8.pack_mxfp4_w4a8(codes, exponents, binades=12).rest is not None
        exponents[0, 3, 1] = 105
        rest = layouts_w4a8.pack_mxfp4_w4a8(codes, exponents).rest
        assert (rest.k_tile.tolist(), rest.level.tolist(), rest.start.tolist()) == ([0], [1], [0, 1])

    def test_wrong_binades(self):
        with pytest.raises(PerfModelError, match=r"binades.*1 to 15"):
            layouts_w4a8.pack_mxfp4_w4a8(np.zeros((1, 16, 32), np.uint8), np.zeros((1, 16, 1), np.uint8), binades=16)
