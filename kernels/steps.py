"""Prepared launches of the kernels around the grouped GEMMs, over torch tensors: see `routing` and `quantise` for what they compute.

A tensor may be None where its address is set before each call (`Launch.set`): the index of the argument is its place in the signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.errors import PerfModelError
from perfmodel.kernels import cubins, operands, routing
from perfmodel.kernels import quantise as quantising
from perfmodel.kernels.launch import CType, Launch
from perfmodel.kernels.variants import Variant

if TYPE_CHECKING:
    from torch import Tensor

ROUTE_TOKENS = routing.ROUTE_THREADS // 32
"""Tokens of a CTA of `route`."""


def route(logits: Tensor | None, experts: Tensor, weights: Tensor, *, tokens: int, count: int, topk: int, renormalise: bool) -> Launch:
    """Router logits f32 [tokens, count] to experts i32 and weights f32, both [tokens * topk]."""
    if not 1 <= topk <= min(count, routing.MAX_TOPK):
        raise PerfModelError(f"must lie in 1 .. {min(count, routing.MAX_TOPK)}", field="topk", value=topk)
    device = experts.device
    if logits is not None:
        operands.check("logits", logits, "float32", (tokens, count), device)
    operands.check("experts", experts, "int32", (tokens * topk,), device)
    operands.check("weights", weights, "float32", (tokens * topk,), device)
    variant = routing.ROUTE_RENORMALISED if renormalise else routing.ROUTE
    return _launch(variant, (-(-tokens // ROUTE_TOKENS), 1), (logits, experts, weights), (tokens, count, topk), experts.device)


def sort(
    experts: Tensor, weights: Tensor, offsets: Tensor, pairs: Tensor, rows: Tensor, factors: Tensor, places: Tensor, *, topk: int
) -> Launch:
    """Pairs in the order of experts. All [P] but offsets [E + 1]; the last five are written."""
    count, device = len(experts), experts.device
    if len(offsets) - 1 > routing.MAX_EXPERTS:
        raise PerfModelError(f"at most {routing.MAX_EXPERTS}", field="experts", value=len(offsets) - 1)
    for name, tensor in (("experts", experts), ("pairs", pairs), ("rows", rows), ("places", places)):
        operands.check(name, tensor, "int32", (count,), device)
    for name, tensor in (("weights", weights), ("factors", factors)):
        operands.check(name, tensor, "float32", (count,), device)
    operands.check("offsets", offsets, "int32", (None,), device)
    tensors = (experts, weights, offsets, pairs, rows, factors, places)
    return _launch(routing.SORT, (1, 1), tensors, (len(experts), len(offsets) - 1, topk), experts.device)


def gather(x: Tensor | None, rows: Tensor, out: Tensor) -> Launch:
    """out[i] = x[rows[i]], bf16 [.., H], H a multiple of 8."""
    _check_width("H", out.shape[1])
    operands.check("rows", rows, "int32", (len(out),), out.device)
    for name, tensor in (("x", x), ("out", out)):
        if tensor is not None:
            operands.check(name, tensor, "bfloat16", (None, out.shape[1]), out.device, alignment=16)
    return _launch(routing.GATHER, (len(rows), 1), (x, rows, out), (out.shape[1],), out.device)


def quantise(x: Tensor | None, codes: Tensor, scales: Tensor, rows: Tensor | None = None) -> Launch:
    """Rows of x bf16 to E4M3 codes [T, K] and scales f32 [T], K a multiple of 8."""
    variant, device = quantising.VARIANTS[0], codes.device
    _check_width("K", codes.shape[1])
    if x is not None:
        operands.check("x", x, "bfloat16", (len(codes) if rows is None else None, codes.shape[1]), device, alignment=16)
    operands.check("codes", codes, "float8_e4m3fn", (None, None), device, alignment=16)
    operands.check("scales", scales, "float32", (len(codes),), device)
    ctas = cubins.resident_ctas(cubins.load_variant(variant, device.index), device.index)
    return _launch(variant, (min(len(codes), ctas), 1), (x, codes, scales, rows), tuple(codes.shape), device)


def combine(y: Tensor, out: Tensor | None, *, topk: int, places: Tensor | None = None, weights: Tensor | None = None) -> Launch:
    """Each token's sum of its topk rows of y bf16 [T * topk, H]; with places and weights a weighted sum of rows in the order of experts."""
    hidden = y.shape[1]
    _check_width("H", hidden)
    operands.check("y", y, "bfloat16", (None, hidden), y.device, alignment=16)
    variant = routing.COMBINE if places is None else routing.COMBINE_WEIGHTED
    grid = len(y) // topk, -(-hidden // (routing.VECTOR * routing.COMBINE_THREADS))
    return _launch(variant, grid, (y, places, weights, out), (hidden, topk), y.device)


def _check_width(name: str, width: int) -> None:
    if width % routing.VECTOR:
        raise PerfModelError(f"must be a multiple of {routing.VECTOR}", field=name, value=width, mend="Pad with zeros.")


def _launch(variant: Variant, grid: tuple[int, int], tensors: Sequence[Tensor | None], numbers: Sequence[int], device: Any) -> Launch:
    arguments: list[tuple[CType, int]] = [("u64", operands.address(tensor)) for tensor in tensors]
    arguments += [("u32", number) for number in numbers]
    return Launch(cubins.load_variant(variant, device.index), grid, arguments, keep=tensors)
