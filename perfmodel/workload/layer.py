"""One Mixture-of-Experts layer, described by its sizes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt, ValidationError, model_validator

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.validated import Strict, explain

MOST_EXPERTS = 16_384
"""No layer known has a tenth of it; more is a slip of the pen, and counts of all experts have to fit in memory."""
Width = Annotated[int, Field(ge=1, le=2**24)]


class MoeLayer(Strict):
    """Sizes of one MoE layer. A gated expert has gate, up and down projections; an ungated one has up and down."""

    hidden: Width
    """Width of the residual stream."""
    inter: Width
    """Intermediate width of one routed expert, before tensor parallelism."""
    experts: Annotated[int, Field(ge=1, le=MOST_EXPERTS)]
    topk: PositiveInt
    shared: int = Field(default=0, ge=0, le=1024)
    """Number of shared experts that every token passes."""
    shared_inter: Width | None = None
    """Intermediate width of one shared expert where it differs from `inter`."""
    gated: bool = True
    n_group: PositiveInt = 1
    """Groups of experts for group-limited routing; 1 means none."""
    topk_group: PositiveInt = 1
    """Groups that one token may use."""
    latent: Width | None = None
    """Width at which the routed experts work where the hidden state is projected down for them (latent MoE)."""

    @model_validator(mode="after")
    def _sizes_agree(self) -> MoeLayer:
        if self.topk > self.experts:
            raise ValueError(f"topk {self.topk} is over the {self.experts} experts")
        if self.experts % self.n_group or self.topk_group > self.n_group:
            raise ValueError(f"{self.experts} experts do not split into {self.n_group} groups of which {self.topk_group} are used")
        if self.topk > self.topk_group * (self.experts // self.n_group):
            raise ValueError(f"topk {self.topk} does not fit into {self.topk_group} groups of {self.experts // self.n_group} experts")
        return self

    @property
    def width(self) -> int:
        """K of the first expert GEMM and N of the second."""
        return self.latent or self.hidden

    @property
    def shared_width(self) -> int:
        """Intermediate width of all shared experts together, 0 without any."""
        return self.shared * (self.shared_inter or self.inter)

    @property
    def weights_per_expert(self) -> int:
        """Weights of one routed expert."""
        return (3 if self.gated else 2) * self.width * self.inter

    @classmethod
    def parse(cls, text: str) -> MoeLayer:
        """`layer:hidden=7168,inter=2048,experts=256,topk=8[,shared=1][,gated=true]` as a MoeLayer.

        Raises PerfModelError that names the field and the mend.
        """
        fields: dict[str, object] = {}
        for part in text.removeprefix("layer:").split(","):
            key, equals, value = part.partition("=")
            key = key.strip()
            if not equals or key not in cls.model_fields:
                raise PerfModelError(f"no field {key!r} of a layer", field="MODEL", value=text, mend=did_you_mean(key, cls.model_fields))
            if key in fields:
                raise PerfModelError("given twice", field=f"layer.{key}", value=text, mend="Give each field once.")
            fields[key] = _parse_value(key, value.strip())
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise _layer_error(explain(error, cls)) from error


def _parse_value(key: str, value: str) -> object:
    if key == "gated":
        if value.lower() not in ("true", "false"):
            raise PerfModelError("must be true or false", field="layer.gated", value=value, mend="Write gated=true or gated=false.")
        return value.lower() == "true"
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise PerfModelError("must be a whole number under a billion", field=f"layer.{key}", value=value, mend=f"Write {key}=4096, say.")
    return int(value)


def _layer_error(error: PerfModelError) -> PerfModelError:
    error.field = f"layer.{error.field}" if error.field else "layer"
    return error
