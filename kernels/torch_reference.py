"""The layer of experts as a plain torch module, to read and to compare with: a loop over experts, weights dequantised once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from perfmodel.kernels.reference import dequantise
from perfmodel.kernels.weights import Weights


class TorchMoELayer(nn.Module):  # type: ignore[misc]
    """What `layer.MoELayer` computes, in the type of its weights: float64 for a reference, bfloat16 for what frameworks do.

    gate_up: [E, 2 I, H], rows alternating; down: [E, H, I].
    """

    def __init__(self, gate_up: Weights, down: Weights, *, topk: int, renormalise: bool = True, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.topk, self.renormalise = topk, renormalise
        self.gate_up = nn.Parameter(dequantise(gate_up).to(dtype), requires_grad=False)
        self.down = nn.Parameter(dequantise(down).to(dtype), requires_grad=False)

    def forward(self, x: Tensor, logits: Tensor) -> Tensor:
        """y [T, H] of x [T, H] and router logits [T, E]."""
        powers = torch.softmax(logits.to(self.down.dtype), dim=-1)
        weights, experts = powers.topk(self.topk, dim=-1)
        if self.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x, dtype=self.down.dtype)
        for expert in range(len(self.down)):
            token, place = (experts == expert).nonzero(as_tuple=True)
            rows = x[token].to(self.down.dtype) @ self.gate_up[expert].T
            hidden = nn.functional.silu(rows[:, 0::2]) * rows[:, 1::2]
            out.index_add_(0, token, (hidden @ self.down[expert].T) * weights[token, place, None])
        return out
