"""Kernels around the grouped GEMMs of a MoE layer: router top-k, sort by expert, gather of tokens, combine.

    route     logits f32 [T, E]  -> experts i32 [T, topk], the best first, and their weights f32 [T, topk]; one warp a token
    sort      experts i32 [P]    -> offsets i32 [E + 1], and for each place in the order of experts: pair, token, weight; one CTA
    gather    x bf16 [T, H]      -> rows x[token] in the order of experts; one CTA a row
    combine   y bf16 [T * topk, H] -> each token's sum of its topk rows, in FP32, as bf16; 16 bytes a thread

A pair is a token and one of its experts: pair t * topk + j, P = T * topk of them. The sort counts, so it is stable and gives the same
result in every run. No kernel needs the host to read anything: all are capturable in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from perfmodel.kernels.variants import ARCHITECTURES, KernelSource, Variant

MAX_EXPERTS = 512
MAX_TOPK = 16
ROUTE_THREADS = 128
"""Of a CTA of `route`: four tokens."""
SORT_THREADS = 1024
GATHER_THREADS = 256
COMBINE_THREADS = 128
VECTOR = 8
"""bf16 of 16 bytes, which a thread moves at once: H must be a multiple."""


@dataclass(frozen=True)
class Config:
    """One of the kernels; `option` is renormalise (route) or weighted (combine)."""

    name: str
    option: bool = False


def build(config: Config) -> KernelSource:
    """A kernel of this module's head. Arguments, addresses (u64) first, then numbers (u32):

    route: logits, experts, weights, tokens, count, topk. With the option the weights of a token sum to 1; else they are those of the
    softmax over all experts.
    sort: experts, weights, offsets, pairs, rows, factors, places, pairs in all, count, topk. rows: token of each place. places: the
    inverse of `pairs`. Pairs of an expert >= count are left out.
    gather: x, rows, out, H.
    combine: y, places, weights, out, H, topk. With the option y lies in the order of experts: row places[pair] is weighted by
    weights[pair]. Without it row `pair` is added as it is, and `places` and `weights` are not read.
    """
    from perfmodel.kernels import routing_kernels as kernels

    if config.name == "route":
        return kernels.make_route(config.option)
    if config.name == "sort":
        return kernels.make_sort()
    if config.name == "gather":
        return kernels.make_gather()
    return kernels.make_combine(config.option)


def _variant(config: Config, name: str, reference: str) -> Variant:
    return Variant(f"numba-{name}", "layer", ("bf16",), ARCHITECTURES, f"perfmodel.kernels.{reference}", partial(build, config))


ROUTE = _variant(Config("route"), "route", "routing_reference:route")
ROUTE_RENORMALISED = _variant(Config("route", True), "route-renormalised", "routing_reference:route")
SORT = _variant(Config("sort"), "sort-by-expert", "reference:permutation")
GATHER = _variant(Config("gather"), "gather", "routing_reference:gather")
COMBINE = _variant(Config("combine"), "combine", "routing_reference:combine")
COMBINE_WEIGHTED = _variant(Config("combine", True), "combine-weighted", "routing_reference:combine")
VARIANTS = (ROUTE, ROUTE_RENORMALISED, SORT, GATHER, COMBINE, COMBINE_WEIGHTED)
