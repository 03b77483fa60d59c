"""Blocks that mix tokens through a state of fixed size: linear attention and Mamba. Sizes of one layer, and the weights that follow."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from perfmodel.workload.attention import Mixer


class GatedDeltaNet(Mixer):
    """Linear attention with a gated delta rule (arXiv 2412.06464), as in Qwen3-Next and Qwen3.5."""

    kind: Literal["gdn"]
    key_heads: PositiveInt
    value_heads: PositiveInt
    key_head_dim: PositiveInt
    value_head_dim: PositiveInt
    conv_kernel: PositiveInt

    def weights(self, hidden: int) -> int:
        """Weights of one layer at width `hidden`: q, k, v, output gate, two gates per head, short convolution, output."""
        keys, values = self.key_heads * self.key_head_dim, self.value_heads * self.value_head_dim
        projections = hidden * (2 * keys + 2 * values + 2 * self.value_heads)
        return projections + (2 * keys + values) * self.conv_kernel + 2 * self.value_heads + values * hidden


class KimiDeltaAttention(Mixer):
    """Linear attention whose decay is per channel, from a low-rank projection (Kimi Linear, arXiv 2510.26692)."""

    kind: Literal["kda"]
    heads: PositiveInt
    head_dim: PositiveInt
    conv_kernel: PositiveInt
    full_rank_gate: bool = False
    """The output gate is one full projection, not two through `head_dim`."""

    def weights(self, hidden: int) -> int:
        """Weights of one layer at width `hidden`: q, k, v, decay, update gate, output gate, short convolutions, output."""
        width = self.heads * self.head_dim
        low_rank = self.head_dim * (hidden + width)
        gate = hidden * width if self.full_rank_gate else low_rank
        return 4 * hidden * width + low_rank + gate + hidden * self.heads + 3 * width * self.conv_kernel


class Mamba2(Mixer):
    """A state-space block with a scalar decay per head (Mamba-2, arXiv 2405.21060)."""

    kind: Literal["mamba2"]
    heads: PositiveInt
    head_dim: PositiveInt
    state: PositiveInt
    """Width of the state per channel."""
    groups: PositiveInt
    """Groups of heads that share B and C."""
    conv_kernel: PositiveInt

    def weights(self, hidden: int) -> int:
        """Weights of one layer at width `hidden`: input and gate, B, C and step, convolution with bias, norm, output."""
        inner, shared = self.heads * self.head_dim, 2 * self.groups * self.state
        projections = hidden * (2 * inner + shared + self.heads) + inner * hidden
        return projections + (inner + shared) * (self.conv_kernel + 1) + 3 * self.heads + inner
