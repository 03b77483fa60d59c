"""What the kernels must compute, in float64, readable: dequantisation, grouped GEMMs, the whole layer. NumPy arrays or torch tensors.

Tokens lie sorted by expert: those of expert e are rows offsets[e] .. offsets[e + 1] - 1, and there may be none. Where a kernel rounds, the
reference says so: `Rounding` names each place, and EXACT rounds nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfmodel.errors import PerfModelError
from perfmodel.formats.elements import get_element
from perfmodel.formats.format import ElementName
from perfmodel.kernels.arrays import Array, arange, cast, constant, namespace, stable_order
from perfmodel.kernels.quantise import LEAST_POWER
from perfmodel.kernels.rounding import E4M3_MAX, round_bf16, round_e4m3
from perfmodel.kernels.weights import Weights

ELEMENTS: dict[str, ElementName] = {
    "mxfp4-w4a16": "e2m1", "nvfp4-w4a16": "e2m1", "mxfp4-w4a8": "e2m1", "int4-w4a16": "int4", "nf4-w4a16": "nf4",
}  # fmt: skip
"""Format -> type of the weights' codes."""
E8M0_BIAS = 127


@dataclass(frozen=True)
class Rounding:
    """Where the layer rounds to bfloat16. Sums inside a GEMM are FP32 on the GPU, whose error is far below these."""

    gate_up: bool = False
    """Gate and up before the activation: only where GEMM and activation are two kernels."""
    hidden: bool = False
    """The activated hidden state, operand of the second GEMM."""
    expert: bool = False
    """Each expert's output, with its routing weight, before the sum over experts."""
    output: bool = False
    """The sum over experts."""
    operands: bool = False
    """Tokens that enter either GEMM, to E4M3 with one scale a token, as `quantise.quantise_tokens` does."""


EXACT = Rounding()
QUANTISED = Rounding(hidden=True, operands=True)
"""Of the activations that W4A8 kernels multiply, and of nothing else."""
FUSED = Rounding(hidden=True, expert=True, output=True)
"""Of kernels that activate in the epilogue of the first GEMM and weigh in that of the second."""
UNFUSED = Rounding(gate_up=True, hidden=True, expert=True, output=True)


def dequantise(weights: Weights) -> Array:
    """What weights stand for, float64 [E, N, K]."""
    values = _look_up(weights.codes, ELEMENTS[weights.format])
    if weights.zeros is not None:
        values = values - _spread(_look_up(weights.zeros, "int4"), values)
    return values * _spread(_factors(weights), values)


def grouped_gemm(x: Array, weights: Weights, offsets: Array) -> Array:
    """y[t] = W[e] x[t] for the tokens t of each expert e: float64 [T, N].

    x: [T, K], the activations that are multiplied, after any quantisation; offsets: [E + 1]. Raises PerfModelError where they do not fit.
    """
    _check_tokens(x, weights, offsets)
    rows = []
    for expert, first, last in _runs(offsets):
        if last > first:
            rows.append(cast(x[first:last], "float64") @ dequantise(weights.expert(expert))[0].T)
    nothing = cast(x[:0, :1], "float64") @ cast(weights.codes[0, :, :1], "float64").T
    return namespace(x).concatenate([nothing, *rows])


def swiglu(rows: Array) -> Array:
    """silu(gate) x up [T, I] of rows [T, 2 * I] in which gate and up alternate: gate 0, up 0, gate 1, up 1, ..."""
    gate, up = rows[:, 0::2], rows[:, 1::2]
    return gate / (1 + namespace(rows).exp(-gate)) * up


def grouped_gemm_swiglu(x: Array, weights: Weights, offsets: Array, x_rows: Array | None = None) -> Array:
    """The first half of an expert: activation of the grouped GEMM with gate and up, float64 [T, N / 2]. x_rows: row of x of each token."""
    return swiglu(grouped_gemm(x if x_rows is None else x[cast(x_rows, "int64")], weights, offsets))


def grouped_gemm_scatter(x: Array, weights: Weights, offsets: Array, out_rows: Array, factors: Array) -> Array:
    """The second half: y[out_rows[t]] = factors[t] x W[e] x[t], float64 [T, N]. out_rows is a permutation of the tokens."""
    y = grouped_gemm(x, weights, offsets) * cast(factors, "float64")[:, None]
    return y[namespace(x).argsort(cast(out_rows, "int64"))]


def route(logits: Array, topk: int) -> tuple[Array, Array]:
    """Experts int64 [T, topk], the best first (of equals the lower), and their weights float64 [T, topk], which sum to 1.

    Softmax over all experts, the largest `topk`, divided by their sum: the same as a softmax over the chosen logits.
    """
    wide = cast(logits, "float64")
    experts = stable_order(-wide)[:, :topk]
    chosen = wide[arange(len(wide), wide)[:, None], experts]
    powers = namespace(wide).exp(chosen - chosen[:, :1])
    return experts, powers / powers.sum(-1)[:, None]


def permutation(experts: Array, count: int) -> tuple[Array, Array]:
    """Pairs of token and expert, sorted by expert: (pair int64 [T * topk], offsets int64 [count + 1]).

    Pair t * topk + j is token t with its j-th expert; of one expert's pairs the lower come first.
    """
    flat = experts.reshape(-1)
    pairs = stable_order(flat)
    return pairs, namespace(experts).searchsorted(flat[pairs], arange(count + 1, flat))


def moe_layer(x: Array, routing: tuple[Array, Array], gate_up: Weights, down: Weights, rounding: Rounding = EXACT) -> Array:
    """A layer of experts, float64 [T, H]: permute, gate and up, SwiGLU, down, weigh, sum over each token's experts.

    x: [T, H]. routing: experts [T, topk] and their weights, as `route` gives them (or as a GPU chose them: near ties may fall either way).
    gate_up: [E, 2 * I, H], rows alternating; down: [E, H, I].
    """
    experts, factors = routing
    tokens, topk = experts.shape
    pairs, offsets = permutation(experts, gate_up.codes.shape[0])
    entering = quantised(x) if rounding.operands else x
    rows = _rounded(grouped_gemm(entering[pairs // topk], gate_up, offsets), rounding.gate_up)
    hidden = _rounded(swiglu(rows), rounding.hidden)
    hidden = quantised(hidden) if rounding.operands else hidden
    out = _rounded(grouped_gemm_scatter(hidden, down, offsets, pairs, factors.reshape(-1)[pairs]), rounding.expert)
    return _rounded(out.reshape(tokens, topk, -1).sum(1), rounding.output)


def quantised(x: Array) -> Array:
    """What E4M3 codes and one scale a token stand for, float64 [T, K]: scale = max(amax, 2**-100) / 448."""
    xp, wide = namespace(x), cast(x, "float64")
    scales = xp.clip(xp.amax(abs(wide), -1), 2.0**LEAST_POWER, None)[:, None] / E4M3_MAX
    return round_e4m3(wide / scales) * scales


def relative_error(y: Array, reference: Array) -> float:
    """||y - reference|| / ||reference||, Frobenius, in float64; where the reference is all zeros, ||y||. NaN stays NaN."""
    difference = ((cast(y, "float64") - reference) ** 2).sum()
    size = (reference**2).sum()
    return float((difference / size if size > 0 else difference) ** 0.5)


def _factors(weights: Weights) -> Array:
    """What multiplies each block, float64 [E, N, K / block]."""
    xp, scales = namespace(weights.scales), weights.scales
    if weights.format in ("int4-w4a16", "nf4-w4a16"):
        return cast(scales, "float64")
    if weights.format != "nvfp4-w4a16":
        return xp.ldexp(cast(scales * 0 + 1, "float64"), cast(scales, "int32") - E8M0_BIAS)
    if weights.tensor_scale is None:
        raise PerfModelError("NVFP4 needs one FP32 scale for each expert", field="tensor_scale")
    return _look_up(scales, "e4m3") * cast(weights.tensor_scale, "float64")[:, None, None]


def _look_up(codes: Array, element: ElementName) -> Array:
    return constant(get_element(element).values, codes)[cast(codes, "int64")]


def _spread(blocks: Array, values: Array) -> Array:
    """[E, N, K / block] as broad as values [E, N, K]."""
    return namespace(blocks).stack([blocks] * (values.shape[-1] // blocks.shape[-1]), -1).reshape(values.shape)


def _runs(offsets: Array) -> Iterator[tuple[int, int, int]]:
    """(expert, first row, row after the last) of each expert."""
    bounds = [int(bound) for bound in offsets.tolist()]
    return zip(range(len(bounds) - 1), bounds[:-1], bounds[1:], strict=True)


def _check_tokens(x: Array, weights: Weights, offsets: Array) -> None:
    experts, _, k = weights.codes.shape
    if x.ndim != 2 or x.shape[1] != k:
        raise PerfModelError(f"must be [T, {k}], the K of the weights", field="x", value=tuple(x.shape))
    if (
        tuple(offsets.shape) != (experts + 1,)
        or int(offsets[0]) != 0
        or int(offsets[-1]) != len(x)
        or bool((offsets[1:] < offsets[:-1]).any())
    ):
        raise PerfModelError(f"must rise from 0 to {len(x)} in {experts + 1} steps", field="offsets", value=offsets.tolist())


def _rounded(values: Array, wanted: bool) -> Array:
    return round_bf16(values) if wanted else values
