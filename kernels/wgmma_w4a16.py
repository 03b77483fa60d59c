"""Grouped GEMM with 4-bit weights and bf16 activations on Hopper's tensor cores: y[t] = alpha[e] W[e] x[t] for the tokens t of expert e.

Weights are the M operand, dequantised in registers; tokens are the N operand, in shared memory: so tiles of 8 tokens are possible, and the
weights of a tile are converted once for all its tokens. One producer thread fills a ring of stages (activations by TMA, weights by bulk
copies), two or four warpgroups convert and multiply. A CTA goes from tile to tile until none is left (persistent), whatever the tokens
per expert. README.md draws the data path.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from perfmodel.kernels.variants import KernelSource, Variant

Epilogue = Literal["plain", "swiglu", "scatter"]

ROW_TILE = 128
"""Weight rows of a packed tile."""
TILE_K = 64
SHARED_BYTES = 226 * 1024
"""Dynamic shared memory that the ring may fill; the rest of 227 KiB is left to alignment."""
TILE_BYTES = {"mxfp4-w4a16": 4096 + 256, "nvfp4-w4a16": 4096 + 512}
"""Bytes of a packed tile of 128 rows x 64."""


@dataclass(frozen=True)
class Config:
    """Choices of one variant."""

    format: str
    columns: int
    """Tokens of a tile (N of wgmma)."""
    blocks: int = 1
    """Blocks of 64 rows that one warpgroup multiplies."""
    warpgroups: int = 2
    """Warpgroups that multiply; the producer's comes on top."""
    epilogue: Epilogue = "plain"

    @property
    def rows(self) -> int:
        """Weight rows of a CTA's tile."""
        return 64 * self.blocks * self.warpgroups

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights in a stage."""
        return self.rows // ROW_TILE * TILE_BYTES[self.format]

    @property
    def stage_bytes(self) -> int:
        """Bytes of activations and weights in a stage."""
        return self.columns * TILE_K * 2 + self.weight_bytes

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 128 * (self.warpgroups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a producer's and of a consumer's thread after they were redistributed."""
        return (40, 232) if self.warpgroups == 2 else (24, 112)

    @property
    def name(self) -> str:
        """Such as numba-wgmma-mxfp4-w4a16-n256."""
        tail = "" if self.epilogue == "plain" else f"-{self.epilogue}"
        return f"numba-wgmma-{self.format}-n{self.columns}{tail}"


def build(config: Config) -> KernelSource:
    """The kernel of a configuration: (map, weights, alpha, offsets, out, rows, row_scale, experts, n, k_tiles, row_tiles).

    map: address of the tensor map of x [tokens, K] bf16 with boxes of `columns` x 64, 128-byte swizzle. weights: tiles of `layouts`,
    [experts, row_tiles, k_tiles, tile]. alpha: f32 [experts]. offsets: i32 [experts + 1]. out: bf16 [.., n] (swiglu: [.., n / 2]).
    rows: i32 [tokens], the row of `out` that each token's result goes to, and row_scale: f32 [tokens], its factor (scatter only).
    """
    from perfmodel.kernels.wgmma_w4a16_kernel import make_kernel

    function, signature, shared_bytes = make_kernel(config)
    return KernelSource(function, signature, config.threads, shared_bytes, (config.threads, 1))


FORMATS = ("mxfp4-w4a16", "nvfp4-w4a16")
SHAPES = (
    {"columns": 16, "blocks": 2, "warpgroups": 4},
    {"columns": 32, "blocks": 2, "warpgroups": 4},
    {"columns": 64, "blocks": 2, "warpgroups": 4},
    {"columns": 128, "blocks": 1, "warpgroups": 4},
    {"columns": 256, "blocks": 1, "warpgroups": 2},
)
"""Tile menu: small tiles of tokens take many weight rows, so that one warpgroup dequantises while the others multiply."""
CONFIGS = tuple(
    Config(format=form, epilogue=epilogue, **shape) for form in FORMATS for epilogue in ("plain", "swiglu", "scatter") for shape in SHAPES
)
VARIANTS = tuple(
    Variant(config.name, "wgmma", (config.format,), ("sm_90a",), "perfmodel.kernels.reference:grouped_gemm", partial(build, config))
    for config in CONFIGS
)
