"""Grouped GEMM for up to 8 tokens of each expert, MXFP4 or NVFP4 weights and bf16 activations: y[t] = alpha[e] W[e] x[t].

As in `mma_w4a16` the weights are the M operand of `mma.sync` and go from global memory straight into registers. But here nothing waits:
no activations in shared memory, and no barrier before the end. Each lane reads what its fragment wants of the activations, 4 bytes at a
time, from the rows of x themselves, which stay in L1 while the warps of a CTA go along K together; lanes of tokens that are not there
read the first token once more, which costs nothing. A CTA takes 128 weight rows x 8 tokens, its warps share out K, and their sums meet at
the end.

What the speed rests on: 16 warps an SM with 4 KB of weights under way each, and four CTAs an SM, one for each tile, so that a few hundred
tiles are all under way at once and only one beginning and one end are seen. With 16 tokens L1 could not keep up: see `decode_ring`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from perfmodel.kernels import mma_w4a16
from perfmodel.kernels.mma_w4a16 import EPILOGUES
from perfmodel.kernels.variants import REFERENCES, KernelSource, Variant

POINTERS = ("x", "weights", "alphas", "offsets", "out", "x_rows", "out_rows", "factors")
NUMBERS = ("experts", "n", "k", "row_tiles")
PARAMETERS = POINTERS + NUMBERS
"""Of every kernel: addresses, 64 bits each, then numbers of 32 bits."""


@dataclass(frozen=True)
class Config(mma_w4a16.Config):
    """Choices of one variant."""

    columns: int = 8
    blocks: int = 8
    splits: int = 4
    least_ctas: int = 4

    @property
    def name(self) -> str:
        """Such as numba-decode-mxfp4-w4a16-n8-swiglu-gather."""
        return super().name.replace("numba-mma", "numba-decode")


def build(config: Config) -> KernelSource:
    """The kernel of a configuration. Arguments as PARAMETERS names them, 0 where there is nothing; what they are: `mma_w4a16.build`.

    The grid needs a CTA for each tile: 128 weight rows x 8 tokens of one expert. CTAs beyond the last tile end at once.
    """
    from perfmodel.kernels.decode_kernel import make_kernel

    function, signature, shared_bytes = make_kernel(config)
    return KernelSource(function, signature, config.threads, shared_bytes, (config.threads, config.least_ctas))


ARCHS = ("sm_90a",)
"""Where they were measured. Four CTAs an SM leave a thread 128 registers, which just suffice there."""
CONFIGS = tuple(Config(form, **choices) for form in ("mxfp4-w4a16", "nvfp4-w4a16") for choices in EPILOGUES)  # type: ignore[arg-type]
VARIANTS = tuple(
    Variant(config.name, "decode", (config.format,), ARCHS, REFERENCES[config.epilogue], partial(build, config)) for config in CONFIGS
)
