"""Grouped GEMM with 4-bit weights and bf16 activations on Hopper's tensor cores: y[t] = alpha[e] W[e] x[t] for the tokens t of expert e.

Weights are the M operand, dequantised in registers; tokens are the N operand, in shared memory: so tiles may have few tokens, and the
weights of a tile are converted once for all its tokens. One producer thread fills a ring of stages (activations by TMA, weights by bulk
copies), two or four warpgroups convert and multiply. A CTA goes from tile to tile until none is left (persistent), whatever the tokens
per expert. README.md draws the data path.
"""

from __future__ import annotations

from functools import partial

from perfmodel.kernels.variants import REFERENCES, KernelSource, Variant
from perfmodel.kernels.wgmma_config import Config


def build(config: Config) -> KernelSource:
    """The kernel of a configuration: (map, weights, alpha, offsets, out, rows, factors, experts, n, k_tiles, row_tiles).

    map: address of the tensor map of x [tokens, K] bf16 with boxes of `columns` x 64, 128-byte swizzle. weights: tiles of `layouts`,
    [experts, row_tiles, k_tiles, tile]. alpha: f32 [experts]. offsets: i32 [experts + 1]. out: bf16 [.., n] (swiglu: [.., n / 2]).
    rows: i32 [tokens], the row of `out` that each token's result goes to, and factors: f32 [tokens], what it is multiplied by (scatter
    only).
    """
    from perfmodel.kernels.wgmma_w4a16_kernel import make_kernel

    function, signature, shared_bytes = make_kernel(config)
    return KernelSource(function, signature, config.threads, shared_bytes, (config.threads, 1))


FORMATS = ("mxfp4-w4a16", "nvfp4-w4a16")
SHAPES: tuple[dict[str, int], ...] = (
    {"columns": 16, "blocks": 2, "warpgroups": 4, "ahead": False},
    {"columns": 32, "blocks": 2, "warpgroups": 4, "ahead": False},
    {"columns": 64, "blocks": 2, "warpgroups": 4, "ahead": False},
    {"columns": 128, "blocks": 1, "warpgroups": 4, "ahead": False},
    {"columns": 256, "blocks": 1, "warpgroups": 2},
)
"""Tile menu: small tiles of tokens take many weight rows, so that one warpgroup dequantises while the others multiply."""
CONFIGS = tuple(
    Config(format=form, epilogue=epilogue, **shape)  # type: ignore[arg-type]
    for form in FORMATS
    for epilogue in ("plain", "swiglu", "scatter")
    for shape in SHAPES
)
VARIANTS = tuple(
    Variant(config.name, "wgmma", (config.format,), ("sm_90a",), REFERENCES[config.epilogue], partial(build, config)) for config in CONFIGS
)
