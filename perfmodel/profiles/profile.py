"""A kernel profile: how one library of MoE kernels drives a GPU. Few, physical numbers, each file with its provenance."""

from __future__ import annotations

from functools import lru_cache
from math import exp, hypot, log
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.validated import Strict, load_model

FOLDER = Path(__file__).parent
"""One YAML a kernel library; the file's name is the profile's id. Adding a profile is adding a file."""

Bound = Literal["launch", "weights", "activations", "compute", "scheduling", "communication"]
Fraction = Annotated[float, Field(ge=1e-3, le=1)]
Microseconds = Annotated[float, Field(ge=0, le=1e6)]
Picoseconds = Annotated[float, Field(ge=0, le=1e9)]
TRANSFER = 0.16
"""80 % of how far a fit is off on a GPU of its architecture that it has not seen, as a logarithm: B200 and GB200 left out of the fits
are off by 7.4 % in the median and 10.8 % in the mean (the README's scoreboard), which is 14 and 17 % of a Gaussian."""
TileSize = Annotated[int, Field(ge=1, le=4096)]


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


class Stage(Strict):
    """One pass over activations beside the two grouped GEMMs. Bytes = rows x width x the elements read and written.

    Reading the layer's input once and writing its output once is compulsory and counted by the model: stages list what comes on top.
    """

    name: str
    kind: Literal["quantise", "move"] = "move"
    """`quantise` stages are charged to quantisation and fall away where activations are 16 bits wide."""
    rows: Literal["tokens", "pairs", "slots"]
    """Tokens of the layer, (token, expert) pairs of the rank, or top-k of each token, wherever the expert is."""
    width: Literal["hidden", "inter", "up"]
    """hidden, the intermediate width, or all columns of the first GEMM (twice the intermediate width where it is gated)."""
    moves: Annotated[tuple[Literal["bf16", "act", "fp32"], ...], BeforeValidator(_tuple), Field(min_length=1)]
    """Elements read or written for each row and column: bf16 (2 B), fp32 (4 B), act (the format's activations with their scales)."""
    formats: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = ()
    """Formats whose kernels have this stage; empty for all."""


class TileMenu(Strict):
    """Output tiles that the library can launch: m rows of tokens by n columns of weights."""

    m: Annotated[tuple[TileSize, ...], BeforeValidator(_tuple), Field(min_length=1, max_length=16)]
    n: Annotated[tuple[TileSize, ...], BeforeValidator(_tuple), Field(min_length=1, max_length=16)]
    paired: bool = False
    """Whether the first m goes with the first n, the second with the second, and so on; if not, every m with every n."""
    waves: Literal["whole", "split"] = "whole"
    """Whether an SM takes whole tiles, or equal stretches of all tiles laid end to end, cut along K where it falls (Marlin, stream-K)."""
    select: Literal["best", "half-of-mean", "mean", "marlin", "sglang-triton", "vllm-triton"] = "best"
    """How the library chooses m: the fastest (an autotuner), or its own rule of the tokens per expert (ops/tile_rules.py)."""
    order: Literal["tokens", "weights"] = "tokens"
    """Which tiles follow each other: all columns of the same tokens, or all tokens of the same weights (ops/dram.py)."""

    @model_validator(mode="after")
    def _pairs_match(self) -> TileMenu:
        if self.paired and len(self.m) != len(self.n):
            raise ValueError(f"paired tiles need as many n as m, not {len(self.n)} and {len(self.m)}")
        return self

    def rows_by_columns(self) -> dict[int, tuple[int, ...]]:
        """n -> the m that go with it."""
        if not self.paired:
            return dict.fromkeys(self.n, self.m)
        return {n: tuple(m for m, other in zip(self.m, self.n, strict=True) if other == n) for n in self.n}

    def only(self, rows: int) -> TileMenu:
        """The tiles of so many rows. Raises PerfModelError where there is none."""
        columns = tuple(n for n, with_n in self.rows_by_columns().items() if rows in with_n)
        if not columns:
            raise PerfModelError(
                "the kernel has no such tile", field="tile", value=rows, mend=f"It has {', '.join(map(str, self.m))} rows."
            )
        return self.model_copy(update={"m": (rows,), "n": columns, "paired": False})


class Parameters(Strict):
    """Numbers of one kernel on one architecture in some formats. Efficiencies are fractions of the GPU's own figures."""

    fixed_us: Microseconds
    """Time of a layer that no size and no launch explains [us]."""
    gemm_latency_us: Microseconds
    """Fill and drain of one grouped GEMM [us]."""
    tile_fixed_us: Microseconds
    """Prologue and epilogue of a tile that its main loop does not hide [us]."""
    bandwidth_efficiency: Fraction
    """Of the DRAM bandwidth, when every SM streams weights."""
    compute_efficiency: Fraction
    """Of the dense tensor peak, in the main loop of a tile."""
    l2_efficiency: Fraction
    """Of the L2 bandwidth, feeding tiles."""
    activation_bandwidth: float = Field(ge=1e-3, le=8)
    """Bandwidth of the stages over the DRAM bandwidth; over 1 where the data stays in L2."""
    overlap_exponent: float = Field(ge=1, le=64)
    """p of (compute^p + memory^p)^(1/p): 1 adds them up, a large p overlaps them fully."""
    routing_ps: Picoseconds
    """Top-k and sorting, per token and (expert + 24 top-k) [ps]."""
    token_bandwidth: float | None = Field(default=None, ge=1e-3, le=8)
    """As `activation_bandwidth`, of the stages that pass over tokens; the same where it is absent."""
    expert_ns: float = Field(default=0.0, ge=0, le=1e5)
    """Setting up and scheduling one local expert, busy or not [ns]."""
    sort_us: Microseconds = 0.0
    """Each doubling of the tokens in routing and sorting: another step of scans, more blocks to meet [us]."""
    dequantise_ps: Picoseconds = 0.0
    """Converting one weight on one SM [ps]; with `dequantise_overlap` 1 what of it tensor work does not hide."""
    dequantise_overlap: float = Field(default=1.0, ge=1, le=64)
    """q of (tensor^q + conversion^q)^(1/q): 1 adds them up, a large q has other warps convert while the tensor cores multiply."""
    in_flight_KiB: float = Field(ge=0.1, le=1e5)
    """Weights in flight per strip of columns that a CTA streams: stages of its ring times their size. An SM holds no more than its shared
    memory [KiB]."""


class Interval(Strict):
    """80 % interval as factors on the prediction."""

    low: float = Field(ge=0.01, le=1)
    high: float = Field(gt=1, le=10)


class Provenance(Strict):
    """Where a fit's numbers come from."""

    status: Literal["measured", "estimated", "derived"]
    source: str
    date: str
    dataset: str | None = None
    rows: int | None = None
    gpus: Annotated[tuple[str, ...] | None, BeforeValidator(_tuple)] = None
    """Ids of the GPUs that were measured, where they are few of their architecture; on any other the fit counts as estimated."""


class Fit(Strict):
    """One row of the support matrix: architectures and formats that share tiles and parameters."""

    architectures: Annotated[tuple[str, ...], BeforeValidator(_tuple), Field(min_length=1)]
    formats: Annotated[tuple[str, ...], BeforeValidator(_tuple), Field(min_length=1)]
    """Format ids; `any` stands for every format that no other fit of the profile names for the architecture."""
    tiles: TileMenu
    parameters: Parameters
    intervals: dict[Bound, Interval] = Field(default_factory=dict)
    """By what bounds the layer, where it differs from `interval`."""
    interval: Interval
    provenance: Provenance

    def elsewhere(self, gpu: str) -> bool:
        """Whether other GPUs were measured than this one."""
        return self.provenance.gpus is not None and gpu not in self.provenance.gpus

    def status_on(self, gpu: str) -> str:
        """The status of the fit's numbers on a GPU of its architectures."""
        return "estimated" if self.elsewhere(gpu) else self.provenance.status

    def interval_on(self, gpu: str, bound: Bound) -> Interval:
        """80 % interval of what `bound` bounds: of a fit of other GPUs with `TRANSFER` added, as independent errors add."""
        own = self.intervals.get(bound, self.interval)
        if not self.elsewhere(gpu):
            return own
        return Interval(low=exp(-hypot(log(own.low), TRANSFER)), high=exp(hypot(log(own.high), TRANSFER)))


class Profile(Strict):
    """A kernel library: which stages it fuses, how many launches it needs, and its fits per architecture and format."""

    id: str
    name: str
    kind: Literal["measured", "estimated", "generic", "ideal"]
    """Only `measured` libraries are picked by `auto`."""
    summary: str
    launches: int = Field(ge=1, le=1000)
    """Kernels per layer."""
    token_rows: Literal["all", "touching"] = "touching"
    """Tokens that the stages pass over on a rank: all of the expert-parallel group, or those with an expert on the rank."""
    slots: Literal["local", "all"] = "local"
    """Which (token, expert) pairs are computed of the tokens that enter a rank: those of its experts, or all, in vain (old SGLang)."""
    ungated: str | None = None
    """Id of the profile that stands in for layers without a gate, where it has a fit."""
    ungated_only: bool = False
    """Whether it is such a stand-in, which `auto` does not pick by itself."""
    stages: Annotated[tuple[Stage, ...], BeforeValidator(_tuple)] = ()
    fits: Annotated[tuple[Fit, ...], BeforeValidator(_tuple), Field(min_length=1)]

    @model_validator(mode="after")
    def _each_pair_once(self) -> Profile:
        seen: set[tuple[str, str]] = set()
        for fit in self.fits:
            pairs = {(a, f) for a in fit.architectures for f in fit.formats}
            if seen & pairs:
                raise ValueError(f"two fits claim {sorted(seen & pairs)[0]}")
            seen |= pairs
        return self

    def find_fit(self, architecture: str, format_id: str) -> Fit | None:
        """The fit that names the format for an architecture, else the one that takes any."""
        here = [fit for fit in self.fits if architecture in fit.architectures]
        named = (fit for wanted in (format_id, "any") for fit in here if wanted in fit.formats)
        return next(named, None)

    def supports(self, architecture: str, format_id: str) -> bool:
        """Whether there is a fit."""
        return self.find_fit(architecture, format_id) is not None

    def for_layers(self, gated: bool, architecture: str, format_id: str) -> Profile:
        """This profile, or its stand-in for layers without a gate."""
        if gated or self.ungated is None:
            return self
        other = load_profile(self.ungated)
        return other if other.supports(architecture, format_id) else self

    def fit(self, architecture: str, format_id: str) -> Fit:
        """The fit for an architecture and a format. Raises PerfModelError naming the kernels that have one."""
        found = self.find_fit(architecture, format_id)
        if found:
            return found
        others = [p.id for p in profiles() if p.kind != "ideal" and p.supports(architecture, format_id)]
        here = sorted({f for fit in self.fits if architecture in fit.architectures for f in fit.formats})
        mend = f"Kernels that run it: {', '.join(others)}." if others else "No kernel profile runs it."
        mend += f" {self.id} on {architecture} runs {', '.join(here)}." if here else f" {self.id} has nothing for {architecture}."
        raise PerfModelError(f"{self.id} has no {format_id} kernel on {architecture}", field="kernel", mend=mend)


def profile_ids() -> list[str]:
    """Ids of all profiles, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_profile(name: str) -> Profile:
    """The profile with this id, or of this YAML file. Raises PerfModelError with the nearest ids."""
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name))
    if name not in profile_ids():
        raise PerfModelError("no such kernel profile", field="kernel", value=name, mend=did_you_mean(name, [*profile_ids(), "auto"]))
    return _bundled(name)


def profiles() -> list[Profile]:
    """All bundled profiles."""
    return [_bundled(name) for name in profile_ids()]


@lru_cache(maxsize=64)
def _bundled(name: str) -> Profile:
    return _read(FOLDER / f"{name}.yaml")


def _read(path: Path) -> Profile:
    return load_model(Profile, path, id=path.stem)
