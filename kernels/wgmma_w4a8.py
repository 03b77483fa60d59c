"""Grouped GEMM with MXFP4 weights and E4M3 activations on Hopper's tensor cores, at twice the rate of bf16.

y[t] = token_scale[t] W[e] x[t] for the tokens t of expert e, x quantised token by token (`quantise`). As in `wgmma_w4a16` weights are the
M operand and are converted in registers, tokens the N operand. A weight's block scale goes into its E4M3 operand, exactly; what a row and a
token have in common is multiplied in the epilogue. A stage takes 128 of K.

E4M3 holds E2M1 over 12 binades of scales without subnormals. Weights with a row whose scales spread further have a rest (`levels`), which
this kernel refuses: `check_weights`. No checkpoint seen so far has such a row; `wgmma_w4a16` takes any.

The tensor cores add E4M3 products with 13 bits behind the leading one: by simulation 1e-3 of the result's norm at K = 7168.
"""

from __future__ import annotations

from functools import partial

from perfmodel.errors import PerfModelError
from perfmodel.kernels.layouts_w4a8 import W4A8, pack_mxfp4_w4a8
from perfmodel.kernels.variants import REFERENCES, KernelSource, Variant
from perfmodel.kernels.weights import Weights
from perfmodel.kernels.wgmma_config import ROW_TILE, Config

FORMAT = "mxfp4-w4a8"
BINADES = 12
"""Of the scales of a row, below its largest: what the tables of `dequant_w4a8` reach."""


def pack(weights: Weights) -> W4A8:
    """Weights in the tiles of this kernel. Raises PerfModelError where the scales of a row spread over more than 12 binades."""
    packed = pack_mxfp4_w4a8(weights.codes, weights.scales, ROW_TILE, BINADES)
    check_weights(packed)
    return packed


def check_weights(packed: W4A8) -> None:
    """Raise PerfModelError for weights that this kernel would multiply wrongly."""
    if packed.rows != ROW_TILE:
        raise PerfModelError(f"this kernel takes tiles of {ROW_TILE} rows", field="rows", value=packed.rows, mend="Pack them anew.")
    if packed.binades > BINADES:
        raise PerfModelError(
            f"this kernel makes E4M3 of {BINADES} binades of scales",
            field="binades",
            value=packed.binades,
            mend="Pack with wgmma_w4a8.pack.",
        )
    if packed.rest is not None:
        raise PerfModelError(
            f"block scales of a weight row spread over more than {packed.rest.binades} binades",
            field="scales",
            mend="The W4A8 kernel holds 12 in its E4M3 operand. Use the W4A16 kernel (mxfp4-w4a16), which takes any.",
        )


def build(config: Config) -> KernelSource:
    """The kernel of a configuration.

    Arguments: (map, weights, row_scale, token_scale, offsets, out, rows, factors, experts, n, k_tiles, row_tiles).

    map: address of the tensor map of x [tokens, K] E4M3 with boxes of `columns` x 128, 128-byte swizzle. weights: tiles of `layouts_w4a8`,
    [experts, row_tiles, k_tiles, tile], packed with 12 binades (`pack`). row_scale: f32 [experts, 128 row_tiles]. token_scale: f32
    [tokens]. offsets: i32 [experts + 1]. out: bf16 [.., n] (swiglu: [.., n / 2]). rows: i32 [tokens], the row of `out` that each token's
    result goes to, and factors: f32 [tokens], what it is multiplied by (scatter only).
    """
    from perfmodel.kernels.wgmma_w4a8_kernel import make_kernel

    function, signature, shared_bytes = make_kernel(config)
    return KernelSource(function, signature, config.threads, shared_bytes, (config.threads, 1))


SHAPES: tuple[dict[str, int], ...] = (
    {"columns": 16, "warpgroups": 4},
    {"columns": 32, "warpgroups": 4},
    {"columns": 64, "warpgroups": 4},
    {"columns": 128, "warpgroups": 2},
    {"columns": 256, "warpgroups": 2},
)
"""Tile menu. Converting 128 of K costs as much as 64 do for bf16, and the products of both are as fast: all can convert ahead."""
CONFIGS = tuple(
    Config(format=FORMAT, epilogue=epilogue, **shape)  # type: ignore[arg-type]
    for epilogue in ("plain", "swiglu", "scatter")
    for shape in SHAPES
)
VARIANTS = tuple(
    Variant(config.name, "wgmma", (config.format,), ("sm_90a",), REFERENCES[config.epilogue], partial(build, config)) for config in CONFIGS
)
