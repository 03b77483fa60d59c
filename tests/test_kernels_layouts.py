"""Packed weights: where each code lies, that masks give its exact value, and that nothing is lost on the way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_problems import BF16, E2M1, bf16_bits, e8m0, exact_in_bf16, main_values, random, restored

from perfmodel.formats import get_format
from perfmodel.formats.blocks import encode
from perfmodel.formats.elements import get_element
from perfmodel.kernels import layouts, layouts_w4a8
from perfmodel.kernels.fragments import NIBBLES, pack_word, unpack_word, words_together
from perfmodel.kernels.weights import Weights, pack


class TestWords:
    @pytest.mark.parametrize("order", NIBBLES)
    def test_every_bit_is_used_once(self, order):
        assert sorted(bit for bits in NIBBLES[order] for bit in bits) == list(range(32 * words_together(order)))

    @pytest.mark.parametrize("order", NIBBLES)
    def test_round_trip(self, order):
        codes = np.random.default_rng(0).integers(0, 16, (8 * words_together(order), 1000), np.uint8)
        assert np.array_equal(unpack_word(pack_word(codes, order), order), codes)

    def test_masks_make_bf16_of_e2m1(self):
        """The steps of `dequant_e2m1`, in NumPy, on random pairs of words."""

        def rotated(words, by):
            return words << np.uint32(by) | words >> np.uint32(32 - by)

        codes = np.random.default_rng(0).integers(0, 16, (16, 1000), np.uint8)
        first, second = pack_word(codes, "e2m1").view(np.uint32).reshape(-1, 2).T
        keep = np.uint32(0x06030603)
        rest = first & keep | second << np.uint32(2) & ~keep
        sources = [first, rotated(first, 4), rotated(first, 10), rotated(rest, 6)]
        sources += [second, rotated(second, 4), rotated(second, 10), rotated(rest, 12)]
        for register, source in enumerate(sources):
            got = source & np.uint32(0x81C081C0)
            assert np.array_equal(bf16_bits(got & 0xFFFF), E2M1[codes[2 * register]] * 2.0**-126)
            assert np.array_equal(bf16_bits(got >> 16), E2M1[codes[2 * register + 1]] * 2.0**-126)

    def test_masks_take_int4_out(self):
        codes = np.random.default_rng(1).integers(0, 16, (8, 100), np.uint8)
        x = pack_word(codes, "int4").view(np.uint32)
        for register in range(4):
            got = x >> np.uint32(4 * register) & 0x000F000F
            assert np.array_equal(got & 0xFFFF, codes[2 * register])
            assert np.array_equal(got >> 16, codes[2 * register + 1])

    def test_a_byte_permutation_makes_e4m3_of_e2m1(self):
        codes = np.random.default_rng(2).integers(0, 16, (8, 1000), np.uint8)
        x = pack_word(codes, "e2m1-to-e4m3").view(np.uint32)
        table = layouts_w4a8.E4M3_TABLE.view(np.uint8).reshape(15, 8)
        for register in (0, 1):
            selector = (x & 0x77777777) >> np.uint32(16 * register)
            signs = x & 0x80808080 if register == 0 else x << np.uint32(4) & 0x80808080
            for byte in range(4):
                magnitude = table[8][selector >> np.uint32(4 * byte) & 7]  # 2**0
                got = get_element("e4m3").values[magnitude | (signs >> np.uint32(8 * byte) & 0x80)]
                assert np.array_equal(got, E2M1[codes[4 * register + byte]])


class TestPlace:
    def test_one_code_by_hand(self):
        """Row 9, k 5 of a tile: lane 4 * 1 + 2, word 0, register a1 (h = 1, K 0-7), high half. Code 15 is -6."""
        codes = np.zeros((1, 128, 64), np.uint8)
        codes[0, 9, 5] = 15
        words = layouts.pack_codes(codes, "e2m1", 128)[0, 0, 0].view(np.uint32)
        (place,) = np.flatnonzero(words)
        assert place == 6 * 4
        assert words[place] == 1 << 18 | 1 << 19 | 1 << 20 | 1 << 27

    def test_another_by_hand(self):
        """Row 16 * 3 + 2, k 16 * 2 + 8 + 6: sixteen 3, lane 4 * 2 + 3, word 2, register a2, low half."""
        codes = np.zeros((1, 128, 64), np.uint8)
        codes[0, 50, 46] = 1
        words = layouts.pack_codes(codes, "int4", 128)[0, 0, 0].view(np.uint32)
        (place,) = np.flatnonzero(words)
        assert place == 3 * 128 + 11 * 4 + 2
        assert words[place] == 1 << 8

    def test_scale_bytes_by_hand(self):
        """MXFP4 scales of row 8 (h = 1, r = 0) and 1, for K 32-63."""
        scales = np.full((1, 128, 2), 100, np.uint8)
        scales[0, 8, 1], scales[0, 1, 1] = 99, 98
        packed = layouts.pack_mxfp4_w4a16(np.ones((1, 128, 64), np.uint8), scales)
        tail = packed.tiles[0, 0, 0, 4096:]
        assert tail.shape == (256,)
        assert {int(i): int(tail[i]) for i in np.flatnonzero(tail != 254)} == {3: 253, 4 + 2: 252}
        assert packed.alpha.tolist() == [2.0 ** (100 - 128)]

    def test_w4a8_by_hand(self):
        """Row 16 + 8, k 64 + 32 + 16 + 4 + 1: sixteen 1, c = 1, lane 1, f = 1, h = 1; register a3, byte 1."""
        codes = np.zeros((1, 128, 128), np.uint8)
        codes[0, 24, 117] = 9
        words = layouts_w4a8.pack_codes(codes, 128)[0, 0, 0].view(np.uint32)
        (place,) = np.flatnonzero(words)
        assert place == 256 + 128 + 1 * 4 + 3
        assert words[place] == 1 << 20 | 1 << 11

    @pytest.mark.parametrize(("form", "bits"), [("mxfp4-w4a16", 4.25), ("nvfp4-w4a16", 4.5), ("int4-w4a16", 4.25), ("mxfp4-w4a8", 4.25)])
    def test_bits_per_weight(self, form, bits):
        weights = Weights.of(encode(np.ones((1, 128, 128)), get_format(form).weights), form)
        packed = pack(weights)
        size = packed.tiles.nbytes + (packed.group_scales.nbytes if getattr(packed, "group_scales", None) is not None else 0)
        assert size * 8 / weights.codes.size == bits

    def test_fused_rows_bring_gate_and_up_into_one_lane(self):
        rows = np.arange(32, dtype=np.uint8).reshape(1, 32, 1)  # gate i is row 2 i, up i row 2 i + 1
        order = layouts.fused_rows(rows)[0, :, 0]
        for sixteen in (0, 1):
            for r in range(8):
                assert order[16 * sixteen + r] == 2 * (8 * sixteen + r)
                assert order[16 * sixteen + r + 8] == 2 * (8 * sixteen + r) + 1


class TestMxfp4:
    @settings(deadline=None, max_examples=25)
    @given(
        st.integers(0, 99),
        st.integers(1, 3),
        st.integers(1, 150),
        st.integers(1, 5),
        st.sampled_from([(0, 255), (100, 140), (190, 255), (0, 3)]),
    )
    def test_every_scale_is_exact(self, seed, experts, n, blocks, scales):
        codes, exponents = random(seed, experts, n, 32 * blocks, 32, scales)
        packed = layouts.pack_mxfp4_w4a16(codes, exponents)
        got = restored(packed, main_values, 64, packed.alpha.astype(np.float64)[:, None, None])
        assert np.array_equal(got[:, :n, : 32 * blocks], E2M1[codes] * e8m0(exponents, 32))
        assert not got[:, n:].any()
        assert not got[:, :, 32 * blocks :].any()

    def test_no_rest_within_134_binades(self):
        codes, exponents = np.full((1, 16, 64), 7, np.uint8), np.array([[[3, 136]]] * 1, np.uint8).repeat(16, 1)
        assert layouts.pack_mxfp4_w4a16(codes, exponents).rest is None
        assert layouts.pack_mxfp4_w4a16(codes, exponents - np.array([1, 0], np.uint8)).rest is not None

    def test_zero_blocks_need_no_window(self):
        codes, exponents = np.zeros((1, 16, 64), np.uint8), np.full((1, 16, 2), 254, np.uint8)
        codes[:, :, :32], exponents[:, :, 0] = 9, 1
        packed = layouts.pack_mxfp4_w4a16(codes, exponents)
        assert packed.rest is None
        assert packed.alpha.tolist() == [2.0**-127]

    def test_all_zeros(self):
        packed = layouts.pack_mxfp4_w4a16(np.zeros((2, 16, 32), np.uint8), np.zeros((2, 16, 1), np.uint8))
        assert packed.alpha.tolist() == [0.5, 0.5]
        assert not main_values(packed.tiles).any()

    def test_alpha_is_by_expert(self):
        codes, exponents = random(3, 4, 16, 64, 32, (120, 130))
        packed = layouts.pack_mxfp4_w4a16(codes, exponents)
        alone = [layouts.pack_mxfp4_w4a16(codes[e : e + 1], exponents[e : e + 1]) for e in range(4)]
        assert np.array_equal(packed.tiles, np.concatenate([part.tiles for part in alone]))
        assert np.array_equal(packed.alpha, np.concatenate([part.alpha for part in alone]))


class TestNvfp4:
    def test_every_e4m3_scale(self):
        codes = np.arange(127, dtype=np.uint8)
        stored = layouts.normalised_e4m3(codes)
        got = bf16_bits((stored.astype(np.uint32) * 0x00100010 + 0x70007000) & 0xFFFF)
        assert np.array_equal(got[1:], get_element("e4m3").values[codes[1:]] * 2.0**119)

    @settings(deadline=None, max_examples=15)
    @given(st.integers(0, 99), st.integers(1, 150), st.integers(1, 9))
    def test_weights_are_exact(self, seed, n, blocks):
        codes, scales = random(seed, 2, n, 16 * blocks, 16, (0, 127))
        tensor_scale = np.array([3e-5, 0.7], np.float32)
        packed = layouts.pack_nvfp4_w4a16(codes, scales, tensor_scale)
        stored = layouts.unpack_scale_bytes(packed.tiles, 16, 128).astype(np.uint32)
        factors = bf16_bits((stored * 0x00100010 + 0x70007000) & 0xFFFF)
        products = E2M1[layouts.unpack_codes(packed.tiles, "e2m1", 128)] * 2.0**-126 * np.repeat(factors, 16, -1)
        assert exact_in_bf16(products)
        wanted = E2M1[codes] * np.repeat(get_element("e4m3").values[scales], 16, -1) * tensor_scale.astype(np.float64)[:, None, None]
        assert np.array_equal((products * packed.alpha.astype(np.float64)[:, None, None])[:, :n, : 16 * blocks], wanted)


class TestInt4AndNf4:
    def test_scale_and_zero_share_a_word(self):
        source = np.random.default_rng(0)
        codes, zeros = source.integers(0, 16, (2, 40, 256), np.uint8), source.integers(0, 16, (2, 40, 2), np.uint8)
        scales = (source.standard_normal((2, 40, 2)) * 1e-4).astype(np.float16)
        packed = layouts.pack_int4_w4a16(codes, scales, zeros)
        words = packed.group_scales.transpose(0, 1, 3, 2).reshape(2, 128, 2)[:, :40]
        assert np.array_equal((words & ~15).view(np.float32), scales.astype(np.float32))
        assert np.array_equal(words & 15, zeros ^ 8)
        assert np.array_equal(layouts.unpack_codes(packed.tiles, "int4", 128)[:, :40], codes ^ 8)

    def test_fp32_scales_are_rounded_to_20_bits(self):
        scales = np.float32([1 + 2**-23, 1 + 2**-20, np.pi]).reshape(1, 3, 1)
        packed = layouts.pack_int4_w4a16(np.zeros((1, 3, 64), np.uint8), scales)
        got = (packed.group_scales[0, 0, 0, :3] & ~15).view(np.float32)
        assert np.all(np.abs(got - scales.reshape(-1)) <= 2.0**-20 * scales.reshape(-1))
        assert np.all(packed.group_scales[0, 0, 0, :3] & 15 == 8)

    def test_long_groups_are_cut_to_a_power_of_two(self):
        scales = np.arange(1, 3, dtype=np.float32).reshape(1, 1, 2).repeat(16, 1)
        packed = layouts.pack_nf4_w4a16(np.zeros((1, 16, 2 * 448), np.uint8), scales)  # 448 = 7 x 64
        assert (packed.group, packed.group_shift) == (64, 0)
        assert packed.group_scales[0, 0, :, 0].view(np.float32).tolist() == [1.0] * 7 + [2.0] * 7
        packed = layouts.pack_nf4_w4a16(np.zeros((1, 16, 768), np.uint8), scales[:, :, :1])  # 768 = 3 x 256
        assert (packed.group, packed.group_shift, packed.group_scales.shape[2]) == (256, 2, 3)

    def test_short_groups_come_in_pairs(self):
        packed = layouts.pack_int4_w4a16(np.zeros((1, 16, 96), np.uint8), np.ones((1, 16, 3), np.float32))
        assert packed.group == 32
        assert packed.group_scales[0, 0, :, 0].tolist() == [0x3F800008] * 3 + [0]

    @pytest.mark.parametrize("kind", [np.float16, BF16, np.float32])
    def test_scale_types(self, kind):
        packed = layouts.pack_int4_w4a16(np.zeros((1, 16, 64), np.uint8), np.full((1, 16, 1), 0.75, kind))
        assert (packed.group_scales[0, 0, 0, 0] & ~15).view(np.float32) == 0.75
