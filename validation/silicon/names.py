"""What the measured tables call things, in this project's words: GPUs, formats, kernels, routing."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from pydantic import Field, field_validator

from perfmodel.errors import PerfModelError
from perfmodel.validated import Strict, load_model


class KernelRule(Strict):
    """A kernel profile for the kernels that match."""

    source: str
    """Pattern of `kernel_source`."""
    profile: str
    origin: str = "*"
    """Pattern of FRAMEWORK VERSION."""
    gpus: tuple[str, ...] | None = Field(default=None, strict=False)
    formats: tuple[str, ...] | None = Field(default=None, strict=False)
    gated: bool = True
    whole: bool = False
    """Every rank was given all experts, whatever the expert parallelism says."""
    format: str | None = None
    """What the rows' format is, where the table's name for it says something else."""

    def matches(self, source: str, gpu: str, format_id: str, origin: str) -> bool:
        """Whether it is about such rows."""
        here = (
            fnmatchcase(origin, self.origin)
            and (self.gpus is None or gpu in self.gpus)
            and (self.formats is None or format_id in self.formats)
        )
        return here and fnmatchcase(source, self.source)


class GemmProtocol(Strict):
    """How the dense GEMMs of some rows were measured."""

    origin: str = "*"
    """Pattern of FRAMEWORK VERSION KERNEL."""
    formats: tuple[str, ...] | None = Field(default=None, strict=False)
    copies: int = Field(gt=0)
    """Weights that take turns, so that one call leaves little of the next one's in L2."""
    until_l2: bool = False
    """As few copies as exceed L2 together, and no more than `copies`."""
    eager: bool = False
    """Launched without a CUDA graph: the CPU's time counts where it is the longer one."""


class Names(Strict):
    """The file names.yaml."""

    gpus: dict[str, str]
    left_out: dict[str, str]
    """Folders of GPUs that are out of scope -> why."""
    formats: dict[str, str]
    kernels: tuple[KernelRule, ...] = Field(strict=False)
    ungated: tuple[dict[str, int], ...] = Field(strict=False)
    """Sizes of layers without a gate."""
    warm: tuple[str, ...] = Field(strict=False)
    """Patterns of FRAMEWORK VERSION that repeated a MoE layer with what L2 still held of it."""
    early_power_law: tuple[str, ...] = Field(strict=False)
    """Patterns of FRAMEWORK VERSION whose power law is that of an earlier version of the collector."""
    op_formats: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Kind of op -> names of formats that mean something else there."""
    ops: dict[str, tuple[KernelRule, ...]] = Field(strict=False)
    """Kind of op -> kernels; the first that matches counts."""

    gemm_protocols: tuple[GemmProtocol, ...] = Field(strict=False)
    """The first that matches counts."""

    @field_validator("ops", mode="before")
    @classmethod
    def _tuples(cls, value: object) -> object:
        return {kind: tuple(rules) for kind, rules in value.items()} if isinstance(value, dict) else value

    def rule(self, source: str, gpu: str, format_id: str, origin: str) -> KernelRule | None:
        """The first rule for a kernel, None where there is none. origin: FRAMEWORK VERSION."""
        return next((rule for rule in self.kernels if rule.matches(source, gpu, format_id, origin)), None)


def gemm_protocol(origin: str, format_id: str) -> GemmProtocol:
    """How rows of FRAMEWORK VERSION KERNEL were measured. Raises PerfModelError where no rule says it."""
    for one in names().gemm_protocols:
        if fnmatchcase(origin, one.origin) and (one.formats is None or format_id in one.formats):
            return one
    raise PerfModelError("no protocol of measurement matches", field="gemm_protocols", value=origin, mend="Add one to names.yaml.")


def routing_of(distribution: str, origin: str = "") -> str:
    """`balanced`, or `power_law_1.2` as powerlaw:1.2; of origins (FRAMEWORK VERSION) with the earlier generator as powerlaw-early:1.2."""
    early = any(fnmatchcase(origin, pattern) for pattern in names().early_power_law)
    return distribution.replace("power_law_", "powerlaw-early:" if early else "powerlaw:")


def caches_of(origin: str) -> str:
    """`warm` or `cold`: what L2 held when rows of FRAMEWORK VERSION were measured."""
    return "warm" if any(fnmatchcase(origin, pattern) for pattern in names().warm) else "cold"


@cache
def names() -> Names:
    """The bundled names."""
    return load_model(Names, Path(__file__).parent / "names.yaml")
