"""Attention with a cache that grows with the context: sizes of one layer, and the weights that follow from them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from perfmodel.validated import Strict


class Mixer(Strict):
    """A block that mixes tokens."""

    layers: PositiveInt
    """Layers of the model that hold this block."""


class Indexer(Strict):
    """The small scorer that picks the tokens of sparse attention (DeepSeek-V3.2, arXiv 2512.02556)."""

    heads: PositiveInt
    head_dim: PositiveInt
    topk: PositiveInt
    """Entries kept per query: tokens, or blocks of `block` tokens."""
    block: PositiveInt = 1
    shared: bool = False
    """The choice of an earlier layer is used again: no weights of its own."""

    def weights(self, hidden: int, query_width: int) -> int:
        """Weights of the queries (from a state `query_width` wide), of the one key, and of the head weights."""
        if self.shared:
            return 0
        return query_width * self.heads * self.head_dim + hidden * (self.head_dim + self.heads)


class SoftmaxAttention(Mixer):
    """Attention with a key and a value per head (mha), per group of heads (gqa) or one for all heads (mqa)."""

    kind: Literal["mha", "gqa", "mqa"]
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    v_head_dim: PositiveInt | None = None
    """Width of a value where it differs from that of a key."""
    window: PositiveInt | None = None
    """Tokens that a query looks back at; absent for all."""
    bias: bool = False
    """All four projections have a bias."""
    output_gate: bool = False
    """The query projection is twice as wide: its second half gates the output."""
    shared_kv: bool = False
    """The value is the key: no value projection."""
    indexer: Indexer | None = None
    """Block-sparse attention on top, where the model has it."""

    @model_validator(mode="after")
    def _kind_agrees(self) -> SoftmaxAttention:
        if self.kind != softmax_kind(self.heads, self.kv_heads):
            raise ValueError(f"{self.heads} heads with {self.kv_heads} key-value heads are {softmax_kind(self.heads, self.kv_heads)}")
        return self

    def weights(self, hidden: int) -> int:
        """Weights of one layer at width `hidden`; norms of queries and keys (a few hundred) are left out."""
        value = self.v_head_dim or self.head_dim
        queries = self.heads * self.head_dim * (2 if self.output_gate else 1)
        keys_values = self.kv_heads * (self.head_dim + (0 if self.shared_kv else value))
        projections = hidden * (queries + keys_values + self.heads * value)
        biases = queries + keys_values + hidden if self.bias else 0
        return projections + biases + (self.indexer.weights(hidden, hidden) if self.indexer else 0)


def softmax_kind(heads: int, kv_heads: int) -> Literal["mha", "gqa", "mqa"]:
    """The name of attention with `heads` query heads and `kv_heads` key-value heads."""
    if kv_heads == heads:
        return "mha"
    return "mqa" if kv_heads == 1 else "gqa"


class LatentAttention(Mixer):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the cache holds one low-rank latent and one rotary key a token."""

    kind: Literal["mla"]
    heads: PositiveInt
    q_lora_rank: PositiveInt | None = None
    """Rank of the query; absent where the query is projected directly."""
    kv_lora_rank: PositiveInt
    nope_head_dim: PositiveInt
    rope_head_dim: int = Field(ge=0)
    v_head_dim: PositiveInt
    output_gate: bool = False
    """A projection as wide as the values gates the output."""
    indexer: Indexer | None = None
    """Sparse attention on top, where the model has it."""

    def weights(self, hidden: int) -> int:
        """Weights of one layer at width `hidden`."""
        width = self.heads * (self.nope_head_dim + self.rope_head_dim)
        query = self.q_lora_rank * (hidden + width) if self.q_lora_rank else hidden * width
        latent = hidden * (self.kv_lora_rank + self.rope_head_dim)
        expand = self.kv_lora_rank * self.heads * (self.nope_head_dim + self.v_head_dim)
        output = hidden * self.heads * self.v_head_dim * (2 if self.output_gate else 1)
        indexer = self.indexer.weights(hidden, self.q_lora_rank or hidden) if self.indexer else 0
        return query + latent + expand + output + indexer

    def whole_weights(self, hidden: int) -> int:
        """Those that engines keep whole on each tensor-parallel rank: the projections down to the latents."""
        return hidden * ((self.q_lora_rank or 0) + self.kv_lora_rank + self.rope_head_dim)


class CompressedAttention(Mixer):
    """DeepSeek-V4's attention: one wide key that is also the value, a window of raw tokens, and older tokens compressed in runs.

    With an indexer the compressed entries are chosen (CSA) and their runs overlap, else all are read (HCA).
    Source: the model's published inference code, checked against its published 284e9 and 1.6e12 parameters.
    """

    kind: Literal["csa"]
    heads: PositiveInt
    head_dim: PositiveInt
    q_lora_rank: PositiveInt
    o_lora_rank: PositiveInt
    o_groups: PositiveInt
    """Groups of heads that share one low-rank output projection."""
    window: PositiveInt
    compress: PositiveInt | None = None
    """Tokens that become one compressed entry; absent where the layer has only the window."""
    indexer: Indexer | None = None

    def weights(self, hidden: int) -> int:
        """Weights of one layer at width `hidden`."""
        width = self.heads * self.head_dim
        query = self.q_lora_rank * (hidden + width)
        output = self.o_lora_rank * (width + self.o_groups * hidden)
        return query + hidden * self.head_dim + output + self._compression_weights(hidden)

    def _compression_weights(self, hidden: int) -> int:
        if self.compress is None:
            return 0
        if self.indexer is None:
            return (2 * hidden + self.compress) * self.head_dim
        overlapping = (2 * hidden + self.compress) * 2 * (self.head_dim + self.indexer.head_dim)
        return overlapping + self.q_lora_rank * self.indexer.heads * self.indexer.head_dim + hidden * self.indexer.heads
