"""What one GPU has to do for a token, a sequence and a step of a model: weights, bytes of cache, FLOP, messages. Nothing of how fast.

All that is linear in tokens, sequences or cached tokens is summed over the layers once; `step` then costs a few array operations,
for one deployment as for ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from perfmodel.formats import get_format
from perfmodel.serving.parallel import Parallel
from perfmodel.workload.attention import CompressedAttention, LatentAttention, SoftmaxAttention
from perfmodel.workload.expectation import Array
from perfmodel.workload.model import Attention, ModelSpec
from perfmodel.workload.recurrent import GatedDeltaNet, KimiDeltaAttention, Mamba2

SPANS = 4
"""Most kinds of look-back in one model: all tokens, a window, chosen entries, the scan that chooses them."""
STATE_BYTES = 4.0
"""Of an element of a recurrent state, which engines keep in single precision."""


@dataclass(frozen=True)
class Span:
    """How the layers of one kind look back, of one GPU: over `window` tokens at most."""

    read: float
    """Bytes of cache that a new token reads for each token that it sees."""
    decode_flops: float
    """FLOP for a new token and each token that it sees, one by one."""
    prefill_flops: float
    """The same in a prompt, where keys and values are expanded first."""
    window: float = np.inf
    stored: float = 0.0
    """Bytes that a token of the context keeps in the cache."""
    kept: float = np.inf
    """Tokens of the context that are kept at most."""


@dataclass(frozen=True)
class Work:
    """Of one GPU, all layers together; each a float, or a vector over deployments (spans: [SPANS, n])."""

    layers: Array
    moe_layers: Array
    latent_layers: Array
    scan_layers: Array
    """Layers that choose the tokens that they see."""
    state_layers: Array
    """Layers with a recurrent mixer."""
    hidden: Array
    dense_weights: Array
    """Weights that every token is multiplied by: attention, dense MLPs, shared experts, router."""
    dense_bytes: Array
    head_weights: Array
    head_bytes: Array
    embedding_bytes: Array
    """0 where the head is the embedding."""
    experts: Array
    """Routed experts of a layer; 1 where there are none."""
    topk: Array
    expert_weights: Array
    """A rank's part of one expert, of one layer; 0 without experts."""
    expert_bytes: Array
    state_bytes: Array
    """Of the recurrent states of a sequence."""
    state_flops: Array
    """Of a token."""
    tp: Array
    pp: Array
    dp: Array
    ep: Array
    micro_batches: Array
    """Parts of a batch that take turns, so that one computes while another communicates; 1 where nothing overlaps."""
    read: Array
    decode_flops: Array
    prefill_flops: Array
    window: Array
    stored: Array
    kept: Array

    @property
    def weight_bytes(self) -> Array:
        """Bytes of all weights of the stage's layers that the GPU holds, embedding included."""
        return self.dense_bytes + self.head_bytes + self.embedding_bytes + self.moe_layers * self.experts / self.ep * self.expert_bytes

    def cache_bytes(self, context: Array) -> Array:
        """Bytes of cache and states of a sequence of `context` tokens on the GPU."""
        spans: Array = (self.stored * np.minimum(context, self.kept)).sum(axis=0)
        return spans + self.state_bytes

    def take(self, rows: Any) -> Work:
        """The deployments `rows` of vectors."""
        return Work(**{f.name: getattr(self, f.name)[..., rows] for f in fields(self)})


SPAN_FIELDS = tuple(f.name for f in fields(Span))


def work_of(
    model: ModelSpec, parallel: Parallel, form: str, *, dense: str | None = None, cache: str = "bf16", micro_batches: int = 1
) -> Work:
    """The work of a model, of which the experts (all linear layers without) are stored in format `form`, the others in `dense`.

    cache: format of the keys and values. micro_batches: parts of a batch that take turns.
    Raises PerfModelError for formats that do not exist.
    """
    others, experts = get_format(dense or form), get_format(form)
    spans = [span for block in model.attention for span in _spans(block, parallel.tp, get_format(cache).activations.bits / 8)]
    weights = _dense_weights(model, parallel)
    head = (model.vocab or 0) * model.hidden / parallel.tp
    moe = model.moe
    expert = moe.weights_per_expert / parallel.moe_tp if moe else 0.0
    columns = _joined(spans)
    return Work(
        layers=_float(model.layers), moe_layers=_float(model.moe_layers),
        latent_layers=_layers(model, LatentAttention | CompressedAttention),
        scan_layers=_float(sum(b.layers for b in model.attention if getattr(b, "indexer", None) is not None)),
        state_layers=_layers(model, GatedDeltaNet | KimiDeltaAttention | Mamba2),
        hidden=_float(model.hidden),
        dense_weights=_float(weights), dense_bytes=_float(weights * others.weights.bits / 8),
        head_weights=_float(head), head_bytes=_float(head * 2),
        embedding_bytes=_float(0 if model.tied_embeddings else head * 2),
        experts=_float(moe.experts if moe else 1), topk=_float(moe.topk if moe else 1),
        expert_weights=_float(expert), expert_bytes=_float(expert * experts.weights.bits / 8),
        state_bytes=_float(sum(_state(block) for block in model.attention) * STATE_BYTES / parallel.tp),
        state_flops=_float(sum(6.0 * _state(block) for block in model.attention) / parallel.tp),
        tp=_float(parallel.tp), pp=_float(parallel.pp), dp=_float(parallel.dp), ep=_float(parallel.ep),
        micro_batches=_float(micro_batches), **columns,
    )  # fmt: skip


def stack(works: Iterable[Work]) -> Work:
    """One Work with a vector over deployments in each field."""
    works = list(works)
    return Work(**{f.name: np.concatenate([getattr(work, f.name) for work in works], axis=-1) for f in fields(Work)})


def _layers(model: ModelSpec, kinds: Any) -> Array:
    return _float(sum(block.layers for block in model.attention if isinstance(block, kinds)))


def _float(value: float) -> Array:
    return np.array([float(value)])


def _dense_weights(model: ModelSpec, p: Parallel) -> float:
    """Of attention, dense MLPs and shared experts, split over the ranks of a tensor-parallel group; routers, and projections down to
    latents, are whole on each."""
    whole = sum(block.layers * block.whole_weights(model.hidden) for block in model.attention if isinstance(block, LatentAttention))
    split = sum(block.layers * block.weights(model.hidden) for block in model.attention) - whole
    split += sum(block.layers * (3 if block.gated else 2) * model.hidden * block.inter for block in model.dense)
    if model.moe:
        moe = model.moe
        split += model.moe_layers * (3 if moe.gated else 2) * moe.hidden * moe.shared_width
        split += model.moe_layers * (2 * moe.hidden * moe.latent if moe.latent else 0)
        whole += model.moe_layers * moe.hidden * moe.experts
    return split / p.tp + whole


def _spans(block: Attention, tp: int, value: float) -> list[Span]:
    """How a block's layers look back; `value` bytes an element of the cache, its scale included."""
    if isinstance(block, SoftmaxAttention):
        return _softmax(block, tp, value)
    if isinstance(block, LatentAttention):
        return _latent(block, tp, value)
    return _compressed(block, tp, value) if isinstance(block, CompressedAttention) else []


def _softmax(block: SoftmaxAttention, tp: int, value: float) -> list[Span]:
    width = block.head_dim + (0 if block.shared_kv else block.v_head_dim or block.head_dim)
    read = block.layers * max(block.kv_heads / tp, 1.0) * width * value
    flops = block.layers * block.heads / tp * 2.0 * (block.head_dim + (block.v_head_dim or block.head_dim))
    window = float(block.window or np.inf)
    if block.indexer is None:
        return [Span(read, flops, flops, window, read, window)]
    return [Span(read, flops, flops, float(block.indexer.topk * block.indexer.block), read), _scan(block.indexer, block.layers)]


def _latent(block: LatentAttention, tp: int, value: float) -> list[Span]:
    """Every rank keeps the whole latent; decode multiplies heads with it directly, prompts with expanded keys and values."""
    entry, heads = block.kv_lora_rank + block.rope_head_dim, block.layers * block.heads / tp
    decode, prefill = (
        2.0 * heads * (entry + block.kv_lora_rank),
        2.0 * heads * (block.nope_head_dim + block.rope_head_dim + block.v_head_dim),
    )
    read = block.layers * entry * value
    if block.indexer is None:
        return [Span(read, decode, prefill, stored=read)]
    return [Span(read, decode, prefill, float(block.indexer.topk), read), _scan(block.indexer, block.layers)]


def _compressed(block: CompressedAttention, tp: int, value: float) -> list[Span]:
    entry = block.layers * block.head_dim * value
    flops = 4.0 * block.layers * block.heads / tp * block.head_dim
    found = [Span(entry, flops, flops, float(block.window), entry, float(block.window))]
    if block.compress:
        every = block.compress
        chosen = float(block.indexer.topk * every) if block.indexer else np.inf
        found.append(Span(entry / every, flops / every, flops / every, chosen, entry / every))
        if block.indexer:
            found.append(_scan(block.indexer, block.layers, every))
    return found


def _scan(indexer: Any, layers: int, every: int = 1) -> Span:
    """The scan over all keys that chooses tokens: one FP8 key a token or run of tokens, all of the scorer's heads on each rank."""
    if indexer.shared:
        return Span(0.0, 0.0, 0.0)
    read = layers * indexer.head_dim / every / indexer.block
    return Span(read, 2.0 * indexer.heads * read, 2.0 * indexer.heads * read, stored=read)


def _state(block: Attention) -> float:
    """Elements of the recurrent state of a block's layers, for a sequence."""
    if isinstance(block, GatedDeltaNet):
        return float(block.layers * block.value_heads * block.key_head_dim * block.value_head_dim)
    if isinstance(block, KimiDeltaAttention):
        return float(block.layers * block.heads * block.head_dim**2)
    return float(block.layers * block.heads * block.head_dim * block.state) if isinstance(block, Mamba2) else 0.0


def _joined(spans: Sequence[Span]) -> dict[str, Array]:
    """Spans of the same window as one, in SPANS rows [SPANS, 1], the rest of them empty."""
    found: dict[tuple[float, float], list[Span]] = {}
    for span in spans:
        found.setdefault((span.window, span.kept), []).append(span)
    rows = []
    for (window, kept), same in found.items():
        read, decode, prefill, stored = (
            sum(getattr(one, name) for one in same) for name in ("read", "decode_flops", "prefill_flops", "stored")
        )
        rows.append(Span(read, decode, prefill, window, stored, kept))
    rows += [Span(0.0, 0.0, 0.0)] * (SPANS - len(rows))
    return {name: np.array([[getattr(span, name)] for span in rows]) for name in SPAN_FIELDS}
