"""A whole model, described by its sizes: what the layer model and the planner read, and nothing of how it was found."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt, model_validator

from perfmodel.validated import Strict
from perfmodel.workload.attention import CompressedAttention, LatentAttention, SoftmaxAttention
from perfmodel.workload.layer import MoeLayer
from perfmodel.workload.recurrent import GatedDeltaNet, KimiDeltaAttention, Mamba2

Attention = Annotated[
    SoftmaxAttention | LatentAttention | CompressedAttention | GatedDeltaNet | KimiDeltaAttention | Mamba2, Field(discriminator="kind")
]
"""Any block that mixes tokens; `kind` tells which."""


class DenseMlp(Strict):
    """The feed-forward blocks that every token passes."""

    layers: PositiveInt
    inter: PositiveInt
    gated: bool = True


class ModelSpec(Strict):
    """Sizes of one model. Of each kind of block it says how many layers hold it; parameter counts follow from the sizes."""

    id: str
    source: str
    """Where the sizes come from: a config on Hugging Face, a file of the user."""
    hidden: PositiveInt
    layers: PositiveInt
    vocab: PositiveInt | None = None
    """Rows of the embedding; absent for a single layer."""
    tied_embeddings: bool = False
    """The output head is the embedding."""
    attention: tuple[Attention, ...] = Field(default=(), strict=False)
    dense: tuple[DenseMlp, ...] = Field(default=(), strict=False)
    moe_layers: int = Field(default=0, ge=0)
    moe: MoeLayer | None = None
    format: str | None = None
    """FORMAT of the experts' (or else the linear layers') weights as published; absent where it is not understood."""
    notes: tuple[str, ...] = Field(default=(), strict=False)
    """What was not understood, or not counted."""

    @model_validator(mode="after")
    def _parts_agree(self) -> ModelSpec:
        if (self.moe is None) != (self.moe_layers == 0):
            raise ValueError("moe_layers and moe go together: both or neither")
        if self.moe is not None and self.moe.hidden != self.hidden:
            raise ValueError(f"the MoE layer's hidden {self.moe.hidden} is not the model's {self.hidden}")
        most = max([self.moe_layers, sum(a.layers for a in self.attention), *(d.layers for d in self.dense)])
        if most > self.layers:
            raise ValueError(f"{most} layers of one kind do not fit into {self.layers} layers")
        return self

    @property
    def inter(self) -> int | None:
        """Intermediate width of a routed expert, or of the widest dense MLP where there are no experts."""
        if self.moe is not None:
            return self.moe.inter
        return max((d.inter for d in self.dense), default=None)

    @property
    def attention_kind(self) -> str | None:
        """`mha`, `gqa`, `mqa`, `mla` and so on; `hybrid` where the layers differ; None where there is none."""
        kinds = list(dict.fromkeys(a.kind for a in self.attention))
        return None if not kinds else kinds[0] if len(kinds) == 1 else "hybrid"

    @property
    def params_total(self) -> int:
        """Weights of the model: embeddings, attention, router, experts, MLPs, norms."""
        from perfmodel.workload.parameters import total

        return total(self)

    @property
    def params_active(self) -> int:
        """Weights that one token is multiplied by: its top-k experts, the output head, not the embedding table."""
        from perfmodel.workload.parameters import active

        return active(self)
