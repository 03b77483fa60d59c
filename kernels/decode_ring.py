"""Grouped GEMM for up to 16 tokens of each expert, MXFP4 or NVFP4 weights and bf16 activations: y[t] = alpha[e] W[e] x[t].

With few tokens a call is as long as it takes to read the weights, so reading must never pause. One warpgroup of a CTA, the producers,
copies into a ring of stages in shared memory, tile after tile without a break: weights in bulk, activations by 16 bytes, from rows that
may lie anywhere. The others make bf16 of the weights in registers and multiply with `mma.sync`, the weights being the M operand. While
they add up and store a tile, the ring fills with the next one. (`decode`, for 8 tokens, lets lanes read activations from global memory by
fragments, 4 bytes here and there: for 16 tokens that would keep L1 busy longer than the weights do.)

A stage holds `splits` packed tiles along K of each of the CTA's `strips` (128 weight rows each), one run of bytes a strip in global memory,
and the same K of the tokens. Warps share out the rows of the strips and the tiles of a stage; their sums meet at the end of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from perfmodel.kernels.mma_w4a16 import EPILOGUES, ROWS, SCALE_WORDS
from perfmodel.kernels.variants import REFERENCES, Epilogue, KernelSource, Variant

PRODUCERS = 128
"""Threads that fill stages: a warpgroup, since registers are given and taken by warpgroups."""


@dataclass(frozen=True)
class Config:
    """Choices of one variant."""

    format: str
    columns: int = 16
    """Tokens of a tile (N): 16."""
    strips: int = 4
    """Packed tiles of 128 weight rows beside each other in a CTA's tile."""
    splits: int = 2
    """Packed tiles along K in a stage, and groups of warps that share them out."""
    blocks: int = 4
    """Blocks of 16 weight rows of a warp (M)."""
    epilogue: Epilogue = "plain"
    gather: bool = False
    """Whether `x_rows` says which row of x each token is; else token t is row t."""

    @property
    def row_warps(self) -> int:
        """Warps beside each other along M."""
        return self.strips * ROWS // (16 * self.blocks)

    @property
    def consumers(self) -> int:
        """Threads that multiply."""
        return 32 * self.row_warps * self.splits

    @property
    def threads(self) -> int:
        """Threads of a CTA: the producers on top."""
        return self.consumers + PRODUCERS

    @property
    def tile_bytes(self) -> int:
        """Of a packed tile: codes and scales."""
        return ROWS * 32 + ROWS * 2 * SCALE_WORDS[self.format]

    @property
    def features(self) -> int:
        """Features of the output that a CTA's tile has."""
        return self.strips * (ROWS // 2 if self.epilogue == "swiglu" else ROWS)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a producer's and of a consumer's thread after they were redistributed."""
        return 24, 112

    @property
    def name(self) -> str:
        """Such as numba-decode-mxfp4-w4a16-n16-swiglu-gather."""
        tags = [self.epilogue] * (self.epilogue != "plain") + ["gather"] * self.gather
        return "-".join(["numba-decode", self.format, f"n{self.columns}", *tags])


def build(config: Config) -> KernelSource:
    """The kernel of a configuration. Arguments as PARAMETERS names them, 0 where there is nothing; what they are: `mma_w4a16.build`.

    k must be a multiple of 8, n of 8 (swiglu: 16). Any grid of CTAs does.
    """
    from perfmodel.kernels.decode_ring_kernel import make_kernel

    function, signature, shared_bytes = make_kernel(config)
    return KernelSource(function, signature, config.threads, shared_bytes, (config.threads, 1))


ARCHS = ("sm_90a",)
"""Bulk copies begin with Hopper, and there the tile was measured."""
CONFIGS = tuple(
    Config(form, **choices)  # type: ignore[arg-type]
    for form in ("mxfp4-w4a16", "nvfp4-w4a16")
    for choices in EPILOGUES
)
VARIANTS = tuple(
    Variant(config.name, "decode", (config.format,), ARCHS, REFERENCES[config.epilogue], partial(build, config)) for config in CONFIGS
)
