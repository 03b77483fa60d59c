"""The grouped GEMM as anyone would first write it: one thread for each output, no tensor cores, no shared memory, no intrinsics.

It takes weights as a checkpoint holds them and reads like the formula, so that a person can follow it and the CUDA simulator can run it.
"""

from __future__ import annotations

from perfmodel.kernels.variants import ARCHITECTURES, KernelSource, Variant
from perfmodel.kernels.weights import FORMATS

THREADS = 128


def build() -> KernelSource:
    """The kernel; `simple_kernel.kernel` names its arguments."""
    from perfmodel.kernels.simple_kernel import SIGNATURE, kernel

    return KernelSource(kernel, SIGNATURE, THREADS, 0, (THREADS, 1))


VARIANTS = (Variant("numba-simple", "reference", FORMATS, ARCHITECTURES, "perfmodel.kernels.reference:grouped_gemm", build),)
