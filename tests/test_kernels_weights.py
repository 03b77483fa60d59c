"""Weights as packing takes them: mistakes have their own messages; NumPy and torch give the same."""

from dataclasses import fields, replace

import numpy as np
import pytest
from layout_problems import as_numpy, main_values

from perfmodel.errors import PerfModelError
from perfmodel.formats import get_format
from perfmodel.formats.blocks import decode, encode
from perfmodel.kernels import layouts, layouts_w4a8
from perfmodel.kernels.weights import FORMATS, Weights, pack, unpack_nibbles


class TestMistakes:
    codes, scales = np.zeros((1, 16, 64), np.uint8), np.zeros((1, 16, 2), np.uint8)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"scales": np.array([[[0, 255]]] * 1, np.uint8).repeat(16, 1)}, r"scales.*NaN \(byte 255\).*\(0, 0, 1\)"),
            ({"codes": codes + 16}, "codes.*four bits"),
            ({"codes": codes[:, :, :48]}, "codes.*multiple of the block of 32"),
            ({"scales": scales[:, :, :1]}, r"scales.*\(1, 16, 2\)"),
            ({"codes": codes[0]}, "codes.*three axes"),
            ({"scales": scales.astype(np.float32)}, "scales.*uint8"),
            ({"codes": codes[:, :0], "scales": scales[:, :0]}, "nothing empty"),
            ({"rows": 24}, "rows.*multiple of 16"),
        ],
    )
    @pytest.mark.parametrize("packer", [layouts.pack_mxfp4_w4a16, layouts_w4a8.pack_mxfp4_w4a8])
    def test_mxfp4(self, packer, change, words):
        with pytest.raises(PerfModelError, match=words):
            packer(**({"codes": self.codes, "scales": self.scales} | change))

    @pytest.mark.parametrize(
        ("scale", "tensor_scale", "words"),
        [
            (0x7F, 1.0, "NaN"), (0xFF, 1.0, "NaN"), (0x81, 1.0, "negative"), (1, 0.0, "positive FP32"), (1, 2.0**121, "under 2"),
            (1, np.nan, "positive FP32"),
        ],
    )  # fmt: skip
    def test_nvfp4(self, scale, tensor_scale, words):
        with pytest.raises(PerfModelError, match=words):
            layouts.pack_nvfp4_w4a16(self.codes, np.full((1, 16, 4), scale, np.uint8), np.float32([tensor_scale]))

    def test_minus_zero_is_zero(self):
        packed = layouts.pack_nvfp4_w4a16(self.codes + 7, np.full((1, 16, 4), 0x80, np.uint8), np.ones(1))
        assert not packed.tiles[..., :512].any()

    @pytest.mark.parametrize(
        ("scales", "words"),
        [
            (np.ones((1, 16, 4)), "group.*16"),
            (np.ones((1, 16, 3)), "K / group"),
            (np.full((1, 16, 1), np.inf), "not finite"),
            (np.ones((1, 15, 1)), "must be"),
        ],
    )
    def test_groups(self, scales, words):
        with pytest.raises(PerfModelError, match=words):
            layouts.pack_nf4_w4a16(self.codes, scales)

    def test_fused_rows_of_odd_number(self):
        with pytest.raises(PerfModelError, match="multiple of 16"):
            layouts.fused_rows(self.codes[:, :8])

    def test_unknown_format(self):
        with pytest.raises(PerfModelError, match="mxfp4-w4a16"):
            Weights("mxfp4-w4a61", self.codes, self.scales)


class TestWeights:
    @pytest.mark.parametrize("form", FORMATS)
    def test_expert_by_expert_is_the_whole(self, form):
        weights = Weights.of(encode(np.random.default_rng(0).standard_normal((3, 32, 128)), get_format(form).weights), form)
        whole, second = pack(weights), pack(weights.expert(1))
        assert np.array_equal(whole.tiles[1:2], second.tiles)

    def test_one_matrix_is_one_expert(self):
        encoded = encode(np.ones((16, 64)), get_format("nvfp4").weights)
        assert Weights.of(encoded, "nvfp4-w4a16").codes.shape == (1, 16, 64)

    def test_nibbles(self):
        assert unpack_nibbles(np.array([[0x21, 0x43]], np.uint8)).tolist() == [[1, 2, 3, 4]]

    @pytest.mark.parametrize("form", FORMATS)
    def test_torch_packs_the_same(self, form):
        torch = pytest.importorskip("torch")
        spread = np.exp(12 * np.random.default_rng(1).standard_normal((2, 48, 256)))  # so that W4A8 has a rest
        weights = Weights.of(encode(spread, get_format(form).weights), form)
        ours, theirs = pack(weights.fused()), pack(weights.to_torch().fused())
        assert isinstance(theirs.tiles, torch.Tensor)
        for field in fields(ours):
            if field.name != "rest":
                assert np.array_equal(as_numpy(getattr(ours, field.name)), as_numpy(getattr(theirs, field.name))), field.name
        assert (ours.rest is None) == (theirs.rest is None)
        for field in fields(ours.rest) if ours.rest is not None else ():
            assert np.array_equal(as_numpy(getattr(ours.rest, field.name)), as_numpy(getattr(theirs.rest, field.name))), field.name
        assert form != "mxfp4-w4a8" or ours.rest is not None

    def test_torch_unpacks_nibbles(self):
        torch = pytest.importorskip("torch")
        packed = np.random.default_rng(0).integers(0, 256, (2, 3, 8), np.uint8)
        assert np.array_equal(unpack_nibbles(torch.from_numpy(packed)).numpy(), unpack_nibbles(packed))

    def test_decoding_what_was_packed(self):
        """Values of `perfmodel.formats`, tile by tile: the whole way from a matrix."""
        encoded = encode(np.random.default_rng(5).standard_normal((1, 128, 64)), get_format("mxfp4").weights)
        packed = pack(Weights.of(encoded, "mxfp4-w4a16"))
        assert np.array_equal(main_values(packed.tiles) * float(packed.alpha[0]), decode(replace(encoded)))
