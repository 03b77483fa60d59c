"""What the kernels of `routing` must compute, in float64, beside `reference.permutation`. NumPy arrays or torch tensors."""

from __future__ import annotations

from perfmodel.kernels import reference
from perfmodel.kernels.arrays import Array, arange, cast, namespace


def route(logits: Array, topk: int, renormalise: bool = True) -> tuple[Array, Array]:
    """Experts int64 [T, topk], the best first (of equals the lower), and their weights float64 [T, topk].

    Weights are those of the softmax over all experts; with `renormalise` divided by their sum over the chosen ones.
    """
    experts, weights = reference.route(logits, topk)
    if renormalise:
        return experts, weights
    wide = cast(logits, "float64")
    first = arange(len(wide), wide)[:, None]
    powers = namespace(wide).exp(wide - wide[first, experts[:, :1]])
    return experts, powers[first, experts] / powers.sum(-1)[:, None]


def gather(x: Array, rows: Array) -> Array:
    """Rows of x [T, H] in another order, repeated as often as asked for: [len(rows), H]."""
    return x[cast(rows, "int64")]


def combine(y: Array, weights: Array) -> Array:
    """Each token's weighted sum of its rows, float64 [T, H]. y: [T * topk, H], the rows of a token together; weights: [T, topk]."""
    rows = cast(y, "float64").reshape(*weights.shape, -1)
    return (rows * cast(weights, "float64")[:, :, None]).sum(1)
