"""How the GPUs of one instance share a model: tensor, pipeline, expert and data parallelism, and which combinations engines allow."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import PerfModelError
from perfmodel.workload.attention import LatentAttention, SoftmaxAttention
from perfmodel.workload.model import ModelSpec


@dataclass(frozen=True)
class Parallel:
    """One instance of `gpus` = tp x dp x pp GPUs.

    Attention runs `dp` times side by side, each time split over `tp` ranks. The tp x dp ranks of a stage share the experts: `ep` groups of
    whole experts, each expert split over tp x dp / ep ranks.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def ranks(self) -> int:
        """GPUs of a pipeline stage."""
        return self.tp * self.dp

    @property
    def gpus(self) -> int:
        """GPUs of the instance."""
        return self.ranks * self.pp

    @property
    def moe_tp(self) -> int:
        """Ranks that split one expert."""
        return self.ranks // self.ep

    def check(self, model: ModelSpec) -> None:
        """Raises PerfModelError where no engine runs the model so: sizes that do not divide, data parallelism without experts to share."""
        for name, count in vars(self).items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise PerfModelError("must be a whole number from 1", field=name, value=count, mend="Give the number of ranks, such as 8.")
        for name, wrong, mend in _faults(self, model):
            if wrong:
                raise PerfModelError(f"{model.id} does not split so", field=name, value=getattr(self, name), mend=mend)


def allowed(parallel: Parallel, model: ModelSpec) -> bool:
    """Whether an engine runs the model so."""
    return not any(wrong for _, wrong, _ in _faults(parallel, model))


def _faults(p: Parallel, model: ModelSpec) -> list[tuple[str, bool, str]]:
    """(field, whether it is wrong, how to mend it)."""
    moe = model.moe
    heads = [a.heads for a in model.attention if isinstance(a, SoftmaxAttention | LatentAttention)]
    kv_heads = [a.kv_heads for a in model.attention if isinstance(a, SoftmaxAttention)]
    found = [
        ("tp", any(count % p.tp for count in heads), "Choose a divisor of the attention heads."),
        ("tp", any(kv % p.tp and p.tp % kv for kv in kv_heads), "Choose a divisor or a multiple of the key-value heads."),
        ("pp", p.pp > model.layers, "Give at most as many stages as there are layers."),
    ]
    if moe is None:
        return [
            *found,
            ("ep", p.ep != 1, "Only models with experts have expert parallelism."),
            ("dp", p.dp != 1, "Without experts to share, run more instances instead."),
        ]
    return [
        *found,
        ("ep", p.ranks % p.ep != 0, "Choose a divisor of tp x dp."),
        ("ep", moe.experts % p.ep != 0, "Choose a divisor of the number of experts."),
        ("ep", p.ranks % p.ep == 0 and moe.inter % p.moe_tp != 0, "tp x dp / ep must divide the width of an expert."),
    ]
