"""Parameter counts that follow from a model's sizes."""

from __future__ import annotations

from perfmodel.workload.layer import MoeLayer
from perfmodel.workload.model import ModelSpec


def total(model: ModelSpec) -> int:
    """All weights: embedding and head, attention, routers, experts, MLPs, norms."""
    tables = 0 if model.vocab is None else model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
    return tables + _body(model, experts=model.moe.experts if model.moe else 0)


def active(model: ModelSpec) -> int:
    """Weights that one token is multiplied by: top-k of the experts, and the output head but not the embedding, which is looked up."""
    head = 0 if model.vocab is None else model.vocab * model.hidden
    return head + _body(model, experts=model.moe.topk if model.moe else 0)


def _body(model: ModelSpec, experts: int) -> int:
    """Weights of all layers with `experts` routed experts each, and the norm before each block and before the head."""
    mixers = sum(a.layers * a.weights(model.hidden) for a in model.attention)
    dense = sum(d.layers * (3 if d.gated else 2) * model.hidden * d.inter for d in model.dense)
    moe = model.moe_layers * moe_weights(model.moe, experts) if model.moe else 0
    blocks = sum(a.layers for a in model.attention) + sum(d.layers for d in model.dense) + model.moe_layers
    norms = model.hidden * (blocks + (0 if model.vocab is None else 1))
    return mixers + dense + moe + norms


def moe_weights(layer: MoeLayer, experts: int) -> int:
    """Weights of one MoE layer that holds `experts` routed experts: they, the shared ones, the router and the latent projections."""
    shared = (3 if layer.gated else 2) * layer.hidden * layer.shared_width
    latent = 2 * layer.hidden * layer.latent if layer.latent else 0
    return experts * layer.weights_per_expert + shared + layer.hidden * layer.experts + latent
