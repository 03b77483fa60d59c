"""The device code of `stream`."""

from __future__ import annotations

from perfmodel.kernels import compat  # noqa: F401  (before numba.cuda)

import numpy as np  # isort: skip
from numba import cuda, types  # isort: skip

from perfmodel.kernels.ptx.memory import load_once_x4, store_global
from perfmodel.kernels.stream import THREADS, Config
from perfmodel.kernels.variants import KernelSource

U = np.uint32
U64 = np.uint64
ALL_LANES = np.int32(-1)


def make_kernel(config: Config) -> KernelSource:
    """Whole turns of `unroll` loads without a branch between them, then what is left, vector by vector."""
    STEP, TURN = U64(THREADS * 16), U(THREADS * config.unroll)

    @cuda.jit(device=True, forceinline=True)
    def one(address):
        a, b, c, d = load_once_x4(address)
        return a ^ b ^ c ^ d

    @cuda.jit(device=True, forceinline=True)
    def two(address):
        a, b, c, d = load_once_x4(address)
        e, f, g, h = load_once_x4(address + STEP)
        return a ^ b ^ c ^ d ^ e ^ f ^ g ^ h

    @cuda.jit(device=True, forceinline=True)
    def four(address):
        return two(address) ^ two(address + STEP * U64(2))

    turn = {2: two, 4: four}[config.unroll]

    def read(source, out, vectors):
        thread = U(cuda.threadIdx.x)
        warp = (U(cuda.blockIdx.x) * U(THREADS) + thread) >> U(5)
        found = U(0)
        whole = vectors // TURN
        for index in range(U(cuda.blockIdx.x), whole, U(cuda.gridDim.x)):
            found ^= U(turn(source + U64(index) * U64(TURN) * U64(16) + U64(thread) * U64(16)))
        if U(cuda.blockIdx.x) == U(0):
            for vector in range(whole * TURN + thread, vectors, U(THREADS)):
                found ^= U(one(source + U64(vector) * U64(16)))
        for step in (16, 8, 4, 2, 1):
            found ^= U(cuda.shfl_xor_sync(ALL_LANES, np.int32(found), step))
        if thread & U(31) == U(0):
            store_global(out + U64(warp) * U64(4), found)

    return KernelSource(read, (types.uint64, types.uint64, types.uint32), THREADS, 0, (THREADS, 2))
