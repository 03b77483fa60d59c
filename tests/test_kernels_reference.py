"""The float64 references against dense formulas, hand-made numbers and `perfmodel.formats`; NumPy and torch alike."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import PerfModelError
from perfmodel.formats import get_format
from perfmodel.formats.blocks import decode, encode
from perfmodel.formats.format import Scheme
from perfmodel.kernels import reference
from perfmodel.kernels.quantise import dequantise_tokens, quantise_tokens
from perfmodel.kernels.rounding import round_bf16, round_e4m3
from perfmodel.kernels.weights import FORMATS, Weights

SCHEMES = {form: get_format(form).weights for form in FORMATS}
ASYMMETRIC = Scheme(element="int4", per="group", block=(1, 32), scale="fp16", zero_point=True)


def weights_of(form, experts=3, n=8, k=128, seed=0, scheme=None):
    values = np.random.default_rng(seed).standard_normal((experts, n, k))
    encoded = encode(values, scheme or SCHEMES[form])
    return Weights.of(encoded, form), decode(encoded)


class TestDequantise:
    @pytest.mark.parametrize("form", FORMATS)
    def test_equals_the_formats(self, form):
        weights, values = weights_of(form)
        assert np.array_equal(reference.dequantise(weights), values)

    def test_zero_points(self):
        weights, values = weights_of("int4-w4a16", scheme=ASYMMETRIC)
        assert weights.zeros is not None
        assert np.array_equal(reference.dequantise(weights), values)

    def test_by_hand(self):
        codes = np.zeros((1, 1, 32), np.uint8)
        codes[0, 0, :3] = 7, 9, 1  # 6, -0.5, 0.5
        got = reference.dequantise(Weights("mxfp4-w4a16", codes, np.full((1, 1, 1), 129, np.uint8)))
        assert got[0, 0, :4].tolist() == [24.0, -2.0, 2.0, 0.0]

    def test_both_ends_of_e8m0(self):
        codes = np.full((1, 1, 64), 2, np.uint8)
        got = reference.dequantise(Weights("mxfp4-w4a16", codes, np.array([[[0, 254]]], np.uint8)))
        assert (got[0, 0, 0], got[0, 0, 63]) == (2.0**-127, 2.0**127)

    def test_nvfp4_without_its_tensor_scale(self):
        weights, _ = weights_of("nvfp4-w4a16")
        with pytest.raises(PerfModelError, match="tensor_scale"):
            reference.dequantise(Weights("nvfp4-w4a16", weights.codes, weights.scales))


class TestGroupedGemm:
    @pytest.mark.parametrize("form", FORMATS)
    def test_equals_a_loop(self, form):
        weights, values = weights_of(form)
        x = np.random.default_rng(1).standard_normal((5, 128))
        y = reference.grouped_gemm(x, weights, np.array([0, 2, 2, 5]))
        for t, expert in enumerate([0, 0, 2, 2, 2]):
            assert np.allclose(y[t], values[expert] @ x[t], rtol=1e-13)

    def test_no_tokens(self):
        weights, _ = weights_of("nf4-w4a16")
        assert reference.grouped_gemm(np.zeros((0, 128)), weights, np.zeros(4, int)).shape == (0, 8)

    @settings(deadline=None, max_examples=20)
    @given(st.permutations(range(4)), st.lists(st.integers(0, 3), min_size=4, max_size=4))
    def test_renaming_experts_changes_nothing(self, order, counts):
        weights, _ = weights_of("mxfp4-w4a16", experts=4, n=4, k=32)
        x = np.random.default_rng(2).standard_normal((sum(counts), 32))
        offsets = np.concatenate([[0], np.cumsum(counts)])
        y = reference.grouped_gemm(x, weights, offsets)
        renamed = Weights(weights.format, weights.codes[order], weights.scales[order])
        rows = np.concatenate([np.arange(offsets[e], offsets[e + 1]) for e in order])
        moved = reference.grouped_gemm(x[rows], renamed, np.concatenate([[0], np.cumsum([counts[e] for e in order])]))
        assert np.array_equal(moved, y[rows])

    @pytest.mark.parametrize(
        ("offsets", "words"),
        [([0, 1, 2, 4], "rise from 0 to 5"), ([0, 3, 2, 5], "rise"), ([1, 2, 3, 5], "rise"), ([0, 5], "in 4 steps")],
    )
    def test_wrong_offsets(self, offsets, words):
        weights, _ = weights_of("mxfp4-w4a16")
        with pytest.raises(PerfModelError, match=f"offsets.*{words}"):
            reference.grouped_gemm(np.zeros((5, 128)), weights, np.array(offsets))

    def test_wrong_k(self):
        weights, _ = weights_of("mxfp4-w4a16")
        with pytest.raises(PerfModelError, match=r"x: must be \[T, 128\]"):
            reference.grouped_gemm(np.zeros((5, 64)), weights, np.array([0, 1, 2, 5]))

    def test_swiglu_by_hand(self):
        got = reference.swiglu(np.array([[0.0, 5.0, 2.0, 3.0, -1.0, 4.0]]))
        assert np.allclose(got, [[0.0, 2 / (1 + np.exp(-2)) * 3, -1 / (1 + np.e) * 4]], rtol=1e-15)

    def test_gather_activate_and_scatter(self):
        weights, values = weights_of("mxfp4-w4a16", experts=2)
        x, rows, offsets = np.random.default_rng(3).standard_normal((3, 128)), np.array([2, 0, 2, 1]), np.array([0, 3, 4])
        plain = np.stack([values[e] @ x[r] for e, r in zip([0, 0, 0, 1], rows, strict=True)])
        assert np.allclose(reference.grouped_gemm_swiglu(x, weights, offsets, rows), reference.swiglu(plain))
        out = reference.grouped_gemm_scatter(x[rows], weights, offsets, np.array([3, 1, 0, 2]), np.array([1.0, 2.0, 3.0, 4.0]))
        assert np.allclose(out[[3, 1, 0, 2]], plain * np.array([[1], [2], [3], [4]]))


class TestRouting:
    def test_by_hand(self):
        experts, weights = reference.route(np.log(np.array([[1.0, 4.0, 2.0, 4.0]])), 3)
        assert experts.tolist() == [[1, 3, 2]]
        assert np.allclose(weights, [[0.4, 0.4, 0.2]])

    def test_huge_logits(self):
        _, weights = reference.route(np.array([[1e4, -1e4, 9e3]]), 2)
        assert weights.tolist() == [[1.0, 0.0]]

    @settings(deadline=None, max_examples=20)
    @given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 4))
    def test_permutation_sorts_pairs_and_keeps_their_order(self, seed, tokens, topk):
        experts = np.stack([np.random.default_rng([seed, t]).permutation(6)[:topk] for t in range(tokens)])
        pairs, offsets = reference.permutation(experts, 6)
        assert sorted(pairs) == list(range(tokens * topk))
        for expert in range(6):
            mine = pairs[offsets[expert] : offsets[expert + 1]]
            assert sorted(mine) == mine.tolist() == np.flatnonzero(experts.reshape(-1) == expert).tolist()


class TestLayer:
    def layer(self, form="mxfp4-w4a16"):
        gate_up, down = weights_of(form, 4, 128, 64)[0], weights_of(form, 4, 64, 64, seed=1)[0]
        x = np.random.default_rng(4).standard_normal((6, 64))
        return x, reference.route(np.random.default_rng(5).standard_normal((6, 4)), 2), gate_up, down

    def test_equals_a_loop_over_tokens(self):
        x, routing, gate_up, down = self.layer()
        first, second = reference.dequantise(gate_up), reference.dequantise(down)
        wanted = np.zeros_like(x)
        for t in range(len(x)):
            for expert, weight in zip(routing[0][t], routing[1][t], strict=True):
                rows = first[expert] @ x[t]
                hidden = rows[0::2] / (1 + np.exp(-rows[0::2])) * rows[1::2]
                wanted[t] += weight * (second[expert] @ hidden)
        assert np.allclose(reference.moe_layer(x, routing, gate_up, down), wanted, rtol=1e-12)

    def test_tokens_do_not_know_each_other(self):
        x, (experts, weights), gate_up, down = self.layer("nvfp4-w4a16")
        alone = [reference.moe_layer(x[t : t + 1], (experts[t : t + 1], weights[t : t + 1]), gate_up, down) for t in range(len(x))]
        assert np.allclose(reference.moe_layer(x, (experts, weights), gate_up, down), np.concatenate(alone), rtol=1e-12)

    @pytest.mark.parametrize("rounding", [reference.FUSED, reference.UNFUSED])
    def test_roundings_are_small_and_end_in_bf16(self, rounding):
        x, routing, gate_up, down = self.layer()
        exact, rounded = (reference.moe_layer(x, routing, gate_up, down, how) for how in (reference.EXACT, rounding))
        assert 1e-4 < reference.relative_error(rounded, exact) < 1e-2
        assert np.array_equal(round_bf16(rounded), rounded)

    def test_quantised_operands_cost_what_e4m3_does(self):
        x, routing, gate_up, down = self.layer()
        exact, coarse = (reference.moe_layer(x, routing, gate_up, down, how) for how in (reference.EXACT, reference.QUANTISED))
        assert 0.02 < reference.relative_error(coarse, exact) < 0.06

    def test_a_small_difference_before_e4m3_is_a_larger_one_behind(self):
        draw = np.random.default_rng(3)
        hidden, weights = draw.standard_normal((64, 2048)), draw.standard_normal((2048, 256))
        other = hidden * (1 + 0.002 * draw.standard_normal(hidden.shape))
        error = reference.relative_error(reference.quantised(other) @ weights, reference.quantised(hidden) @ weights)
        assert 0.01 < error < 0.02  # what layers in W4A8 are off by (`MOST_ERROR_QUANTISED`)

    def test_relative_error(self):
        assert reference.relative_error(np.array([3.0, 4.4]), np.array([3.0, 4.0])) == pytest.approx(0.08)
        assert reference.relative_error(np.array([0.5]), np.zeros(1)) == 0.5
        assert np.isnan(reference.relative_error(np.array([np.nan]), np.ones(1)))


class TestRounding:
    @settings(deadline=None)
    @given(st.floats(width=32, allow_nan=False, allow_infinity=False))
    def test_equals_ml_dtypes_on_single_precision(self, value):
        with np.errstate(over="ignore"):
            assert round_bf16(np.array(value)) == float(ml_dtypes.bfloat16(value))

    @settings(deadline=None)
    @given(st.floats(width=32, allow_nan=False, allow_infinity=False))
    def test_e4m3_equals_ml_dtypes_and_saturates(self, value):
        assert round_e4m3(np.array(value)) == float(ml_dtypes.float8_e4m3fn(np.clip(value, -448, 448)))

    def test_quantised_tokens_are_those_of_the_kernel(self):
        x = (np.random.default_rng(2).standard_normal((9, 96)) * 10.0 ** np.arange(-4, 5)[:, None]).astype(np.float32)
        x[3] = 0
        kernels = dequantise_tokens(*quantise_tokens(x))
        assert np.allclose(reference.quantised(x), kernels, rtol=1e-6, atol=0)

    def test_rounds_once(self):
        just_over = 1 + 2.0**-8 + 2.0**-40  # single precision would drop the last bit, and the tie go to even
        assert round_bf16(np.array(just_over)) == 1 + 2.0**-7
        assert float(ml_dtypes.bfloat16(np.float32(just_over))) == 1

    def test_ends(self):
        largest = (2 - 2.0**-7) * 2.0**127
        values = np.array([2.0**-133, 2.0**-134, 1.5 * 2.0**-134, largest, 2.0**128, -1e40, np.inf, -0.0])
        assert round_bf16(values).tolist() == [2.0**-133, 0.0, 2.0**-133, largest, np.inf, -np.inf, np.inf, 0.0]
        assert np.signbit(round_bf16(values)[-1])
        assert np.isnan(round_bf16(np.array(np.nan)))


class TestTorch:
    @pytest.mark.parametrize("form", FORMATS)
    def test_the_same_numbers(self, form):
        torch = pytest.importorskip("torch")
        weights, _ = weights_of(form)
        assert np.array_equal(reference.dequantise(weights.to_torch()).numpy(), reference.dequantise(weights))
        x = np.random.default_rng(1).standard_normal((5, 128))
        theirs = reference.grouped_gemm(torch.from_numpy(x), weights.to_torch(), torch.tensor([0, 2, 2, 5], dtype=torch.int32))
        assert np.allclose(theirs.numpy(), reference.grouped_gemm(x, weights, np.array([0, 2, 2, 5])), rtol=1e-12)

    def test_the_same_layer(self):
        torch = pytest.importorskip("torch")
        x, routing, gate_up, down = TestLayer().layer()
        theirs = reference.moe_layer(
            torch.from_numpy(x), tuple(torch.from_numpy(part) for part in routing), gate_up.to_torch(), down.to_torch(), reference.FUSED
        )
        assert np.allclose(theirs.numpy(), reference.moe_layer(x, routing, gate_up, down, reference.FUSED), rtol=2**-7)

    def test_the_same_routes(self):
        torch = pytest.importorskip("torch")
        logits = np.random.default_rng(6).integers(0, 3, (20, 8)).astype(np.float32)  # many ties
        ours, theirs = reference.route(logits, 4), reference.route(torch.from_numpy(logits), 4)
        assert np.array_equal(ours[0], theirs[0].numpy())
        assert all(
            np.array_equal(a, b.numpy())
            for a, b in zip(reference.permutation(ours[0], 8), reference.permutation(theirs[0], 8), strict=True)
        )
