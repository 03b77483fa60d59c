"""Reading memory as fast as it goes: the ceiling of a kernel that reads its weights once. A checksum makes sure that all is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels.variants import ARCHITECTURES, KernelSource, Variant

THREADS = 512
VECTOR_BYTES = 16


@dataclass(frozen=True)
class Config:
    """Choices of one variant."""

    unroll: int
    """Loads of 16 bytes without a branch between them, 2 or 4; the compiler takes two turns at once."""


def checksum(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """All words, combined by exclusive or: what the kernel's partial results combine to."""
    return np.bitwise_xor.reduce(words.reshape(-1), keepdims=True)


def build(config: Config) -> KernelSource:
    """The kernel: (source, out, vectors). source: u64, memory of `vectors` x 16 bytes; out: u32, one word for each warp of the grid.

    Any grid does; a CTA takes `unroll` x 512 vectors at a time.
    """
    from perfmodel.kernels.stream_kernel import make_kernel

    return make_kernel(config)


CONFIGS = (Config(2), Config(4))
VARIANTS = tuple(
    Variant(
        f"numba-read-x{config.unroll}", "ceiling", ("bf16",), ARCHITECTURES, "perfmodel.kernels.stream:checksum", partial(build, config)
    )
    for config in CONFIGS
)
