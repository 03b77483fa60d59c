"""What `perfmodel measure` measures: grouped GEMMs and whole layers over shapes, tokens, formats and routings, as suites of points."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.kernels.tiles import Problem, Tile, menu
from perfmodel.validation.runs.case import Case

FP4 = ("mxfp4-w4a16", "nvfp4-w4a16", "mxfp4-w4a8")
TORCH = {"bf16": "torch-grouped-mm", "fp8": "torch-scaled-grouped-mm"}
"""Format -> kernel of torch's that is measured beside ours."""
HOLD_S, LONG_S = 0.07, 1.5
"""Replays go on for so long: a burst, and long enough for power to set the clock."""
Choose = Callable[[Problem], Tile]


@dataclass(frozen=True)
class GemmPoint:
    """A grouped GEMM: `tokens_per_expert` of each of `experts`, by our kernel (contender "ours") or one of torch's."""

    contender: str
    format: str
    experts: int
    n: int
    k: int
    tokens_per_expert: int
    hold_s: float = HOLD_S

    @property
    def name(self) -> str:
        """All that it is, in words."""
        sizes = f"experts={self.experts} n={self.n} k={self.k} tokens={self.tokens_per_expert}"
        return f"gemm {self.contender} {self.format} {sizes} hold={self.hold_s:g}"

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The grouped GEMM of ours, for which a tile is chosen; none of torch's."""
        ours = self.contender == "ours"
        return (Problem(self.format, self.experts, self.n, self.k, self.tokens_per_expert),) if ours else ()

    def case(self, gpu: str | None, tiles: tuple[Tile, ...]) -> Case:
        """What the model is asked, with the tile that will run."""
        profile = f"numba-{tiles[0].kind}" if tiles else "torch-grouped-mm"
        tokens = self.experts * self.tokens_per_expert
        return Case(
            gpu, "grouped-gemm", profile, tiles[0].columns if tiles else None, self.format, self.experts, tokens,
            n=self.n, k=self.k, tokens_per_expert=self.tokens_per_expert, hold_s=self.hold_s,
        )  # fmt: skip


@dataclass(frozen=True)
class LayerPoint:
    """A whole layer of our kernels for `tokens`, each with its best `topk` of `experts`."""

    format: str
    experts: int
    topk: int
    hidden: int
    inter: int
    tokens: int
    routing: str = "balanced"
    hold_s: float = HOLD_S

    @property
    def name(self) -> str:
        """All that it is, in words."""
        sizes = f"experts={self.experts} topk={self.topk} hidden={self.hidden} inter={self.inter} tokens={self.tokens}"
        return f"layer ours {self.format} {sizes} {self.routing} hold={self.hold_s:g}"

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Its two grouped GEMMs, as `MoELayer` has tiles chosen for them."""
        pairs = self.tokens * self.topk
        active = min(self.experts, pairs)
        shapes = ((2 * self.inter, self.hidden), (self.hidden, self.inter))
        return tuple(Problem(self.format, active, n, k, pairs / active) for n, k in shapes)

    def case(self, gpu: str | None, tiles: tuple[Tile, ...]) -> Case:
        """What the model is asked; the profile of wgmma where the two kernels differ, for that gathers by a kernel of its own."""
        kind = tiles[0].kind if len({tile.kind for tile in tiles}) == 1 else "wgmma"
        columns = tiles[0].columns if len(set(tiles)) == 1 else None
        return Case(
            gpu, "layer", f"numba-{kind}", columns, self.format, self.experts, self.tokens,
            topk=self.topk, hidden=self.hidden, inter=self.inter, routing=self.routing, hold_s=self.hold_s,
        )  # fmt: skip


Point = GemmPoint | LayerPoint


@dataclass(frozen=True)
class Suite:
    """Tokens, formats and routings that are measured on every shape."""

    gemm_tokens: tuple[int, ...]
    """Of each expert."""
    layer_tokens: tuple[int, ...]
    skewed: tuple[str, ...]
    """Routings beside `balanced`."""
    skewed_formats: tuple[str, ...] = FP4
    long_from: int | None = None
    """Tokens per expert from which on GEMMs are held for LONG_S as well."""


GEMMS = ((16, 4096, 7168), (32, 5760, 2880), (128, 1536, 2048))
"""Experts, n and k of gate and up: a sixteenth of DeepSeek-V3, gpt-oss-20b, Qwen3-30B-A3B."""
LAYERS = ((16, 2, 7168, 2048), (32, 4, 2880, 2880), (128, 8, 2048, 768))
"""Experts, top-k, hidden and inter of the same."""
POWERS = tuple(2**i for i in range(13))
SUITES = {
    "quick": Suite((1, 16, 128, 1024), (1, 16, 128, 1024, 4096), ("zipf:1",), ("mxfp4-w4a16",)),
    "full": Suite(POWERS[:12], POWERS, ("uniform", "zipf:1"), long_from=512),
}


def suite_points(name: str) -> list[Point]:
    """The points of a suite, those of the same weights together. Raises PerfModelError for an unknown suite."""
    if name not in SUITES:
        raise PerfModelError("no such suite", field="--suite", value=name, mend=did_you_mean(name, SUITES))
    suite = SUITES[name]
    return [*_gemms(suite), *_layers(suite)]


def runnable(points: Sequence[Point], arch: str) -> list[Point]:
    """The points that kernels for `arch` can run: torch has grouped GEMMs for Hopper alone, and so have we of 8-bit activations."""
    known = {form: bool(menu(form, "plain", arch)) for form in FP4}
    return [p for p in points if (arch == "sm_90a" if p.format in TORCH else known[p.format])]


def find_point(suite: str, name: str) -> Point:
    """The point of this name. Raises PerfModelError."""
    for point in suite_points(suite):
        if point.name == name:
            return point
    raise PerfModelError("no such point in the suite", field="--point", value=name, mend="`perfmodel measure --dry-run` lists them.")


def _gemms(suite: Suite) -> Iterator[GemmPoint]:
    for experts, n, k in GEMMS:
        for contender, form in (*(("ours", form) for form in FP4), ("torch", "bf16"), ("torch", "fp8")):
            for tokens in suite.gemm_tokens:
                if form == "fp8" and tokens < 512:
                    continue
                yield GemmPoint(contender, form, experts, n, k, tokens)
                if suite.long_from is not None and tokens >= suite.long_from:
                    yield GemmPoint(contender, form, experts, n, k, tokens, LONG_S)


def _layers(suite: Suite) -> Iterator[LayerPoint]:
    for experts, topk, hidden, inter in LAYERS:
        for form in FP4:
            for routing in ("balanced", *(suite.skewed if form in suite.skewed_formats else ())):
                yield from (LayerPoint(form, experts, topk, hidden, inter, tokens, routing) for tokens in suite.layer_tokens)
