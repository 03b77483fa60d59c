"""Grouped GEMM with 4-bit weights and bf16 activations for Ampere and later: y[t] = alpha[e] W[e] x[t] for the tokens t of expert e.

`mma.sync` with the weights as the M operand, so that tiles of 8 tokens are possible. Weights go from global memory straight into
registers, in the order that a fragment wants (`layouts`), and are made bf16 there; activations come by `cp.async` into a ring of stages in
shared memory while the last stage is multiplied. A CTA takes 128 weight rows x `columns` tokens at a time and goes on until no tile is
left, whatever the tokens per expert. README.md draws the data path.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from perfmodel.kernels.variants import ARCHITECTURES, REFERENCES, Epilogue, KernelSource, Variant

POINTERS = (
    "x", "weights", "group_scales", "alphas", "offsets", "out", "x_rows", "out_rows", "factors", "rest_tiles", "rest_start", "rest_k_tile",
)  # fmt: skip
NUMBERS = ("experts", "n", "k", "row_tiles", "group_shift")
PARAMETERS = POINTERS + NUMBERS
"""Of every kernel: addresses, 64 bits each, then numbers of 32 bits."""

ROWS = 128
"""Weight rows of a packed tile, and of a CTA."""
TILE_K = 64
SCALE_WORDS = {"mxfp4-w4a16": 1, "nvfp4-w4a16": 2, "int4-w4a16": 0, "nf4-w4a16": 0}
"""32-bit words of scales that a lane has in a packed tile, for 16 rows."""
GROUPED = ("int4-w4a16", "nf4-w4a16")
"""Formats whose scales lie apart and multiply partial sums."""


@dataclass(frozen=True)
class Config:
    """Choices of one variant."""

    format: str
    columns: int
    """Tokens of a tile (N): 8, or a multiple of 16 up to 128."""
    blocks: int = 2
    """Blocks of 16 weight rows of a warp (M)."""
    splits: int = 1
    """Groups of warps that share out K; their sums are added at the end."""
    tiles: int = 1
    """Packed tiles of 64 of K that each warp multiplies in a stage, 1 or 2."""
    stages: int = 2
    """Of activations in shared memory: 2 is a double buffer."""
    least_ctas: int = 1
    """CTAs that an SM must hold at once: bounds the registers of a thread."""
    epilogue: Epilogue = "plain"
    gather: bool = False
    """Whether `x_rows` says which row of x each token is; else token t is row t."""
    short_groups: bool = False
    """INT4 and NF4: whether groups are 32 long; else a multiple of 64."""
    rest: bool = False
    """MXFP4: whether weights may have a rest (`levels`)."""

    @property
    def row_warps(self) -> int:
        """Warps beside each other along M."""
        return ROWS // (16 * self.blocks)

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 32 * self.row_warps * self.splits

    @property
    def consumers(self) -> int:
        """Threads that multiply: all."""
        return self.threads

    @property
    def tile_bytes(self) -> int:
        """Of a packed tile: codes and scales."""
        return ROWS * 32 + ROWS * 2 * SCALE_WORDS[self.format]

    @property
    def crowded(self) -> bool:
        """Whether addresses are made anew at each use, since sums need the registers."""
        return self.columns >= 64 or self.format in GROUPED

    @property
    def stage_tiles(self) -> int:
        """Tiles of 64 of K in a stage."""
        return self.splits * self.tiles

    @property
    def features(self) -> int:
        """Features of the output that a CTA's tile has."""
        return ROWS // 2 if self.epilogue == "swiglu" else ROWS

    @property
    def name(self) -> str:
        """Such as numba-mma-mxfp4-w4a16-n64-swiglu."""
        tags = ("" if self.epilogue == "plain" else self.epilogue, "gather" * self.gather, "g32" * self.short_groups, "rest" * self.rest)
        return "-".join(["numba-mma", self.format, f"n{self.columns}", *(tag for tag in tags if tag)])


def build(config: Config) -> KernelSource:
    """The kernel of a configuration. Arguments as PARAMETERS names them, addresses first, 0 where there is nothing.

    x: bf16 [.., K]. weights, group_scales, alphas: `layouts.W4A16`. offsets: i32 [experts + 1], where each expert's tokens begin.
    out: bf16 [.., n] (swiglu: [.., n / 2]). x_rows: i32 [tokens], with `gather`. out_rows: i32 [tokens] and factors: f32 [tokens], the row
    of `out` that a token's result goes to and what it is multiplied by (scatter). rest_tiles, rest_start, rest_k_tile: `levels.Rest`,
    with `rest`. experts, n, k, row_tiles: numbers. group_shift: `layouts.W4A16.group_shift`.

    n must be a multiple of 8 (swiglu: 16), k of 8; x and out aligned to 16 bytes. Any grid of CTAs does.
    """
    from perfmodel.kernels.mma_w4a16_kernel import make_kernel

    function, signature, shared_bytes = make_kernel(config)
    return KernelSource(function, signature, config.threads, shared_bytes, (config.threads, config.least_ctas))


def _menu(form: str, **choices: object) -> tuple[Config, ...]:
    """The tiles of a format. With few tokens K is shared out, since weights come no faster than loads are in flight.

    Partial sums of INT4 and NF4 need registers of their own: so their warps take 16 rows each.
    """
    shapes: tuple[dict[str, int], ...] = (
        {"columns": 8, "splits": 2, "tiles": 2, "stages": 3, "least_ctas": 2 if form == "nvfp4-w4a16" else 4},  # more scales
        {"columns": 16, "splits": 2, "tiles": 2, "stages": 3, "least_ctas": 3},
        {"columns": 32, "tiles": 2, "stages": 3, "least_ctas": 3},
        {"columns": 64, "stages": 3, "least_ctas": 2},
        {"columns": 128, "stages": 2, "least_ctas": 1},
    )
    grouped: tuple[dict[str, int], ...] = (
        {"columns": 8, "blocks": 1, "tiles": 2, "stages": 3, "least_ctas": 4},
        {"columns": 16, "blocks": 1, "tiles": 2, "stages": 3, "least_ctas": 2},
        {"columns": 32, "blocks": 1, "tiles": 2, "stages": 3, "least_ctas": 2},
        {"columns": 64, "blocks": 1, "stages": 3, "least_ctas": 1},
        {"columns": 128, "blocks": 1, "stages": 2, "least_ctas": 1},
    )
    return tuple(Config(form, **(shape | choices)) for shape in (grouped if form in GROUPED else shapes))  # type: ignore[arg-type]


EPILOGUES: tuple[dict[str, object], ...] = ({}, {"epilogue": "swiglu", "gather": True}, {"epilogue": "scatter"})
"""A plain grouped GEMM, and the two of a MoE layer: gate and up of gathered tokens, down with routing weights to the rows of the tokens."""
CONFIGS = (
    *(config for form in SCALE_WORDS for choices in EPILOGUES for config in _menu(form, **choices)),
    *(config for choices in EPILOGUES for config in _menu("int4-w4a16", short_groups=True, **choices) if config.columns in (16, 64)),
    *(Config("mxfp4-w4a16", 16, splits=2, tiles=2, stages=3, rest=True, **choices) for choices in EPILOGUES),  # type: ignore[arg-type]
)
VARIANTS = tuple(
    Variant(config.name, "mma", (config.format,), ARCHITECTURES, REFERENCES[config.epilogue], partial(build, config)) for config in CONFIGS
)
