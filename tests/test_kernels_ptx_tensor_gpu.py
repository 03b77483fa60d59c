"""Tensor cores by PTX instructions, run on a GPU and held against NumPy. Operands are small integers: every sum is exact."""

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")

from numba import cuda, types

from perfmodel.kernels.ptx import barrier, memory, mma, registers
from perfmodel.kernels.ptx.wgmma import descriptor_base, wgmma, wgmma_wait

pytestmark = pytest.mark.gpu

LANE = np.arange(32)
GROUP, MEMBER = LANE // 4, LANE % 4
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def words(array: np.ndarray) -> np.ndarray:
    """The bytes of an array as 32-bit words, along the last axis."""
    return np.ascontiguousarray(array).view(np.uint32)


def fragments_a(a: np.ndarray) -> np.ndarray:
    """A [16, k] as a lane's four words, [32, 4]: the rule at the head of `mma.py`."""
    held = words(a)  # [16, k words]; k words are 8
    rows = np.stack([GROUP, GROUP + 8, GROUP, GROUP + 8], axis=1)
    return held[rows, np.stack([MEMBER, MEMBER, MEMBER + 4, MEMBER + 4], axis=1)]


def fragments_d(d: np.ndarray) -> np.ndarray:
    """D [16, n] as a lane's floats, [32, n / 2]: four for each eight columns."""
    tiles = d.reshape(2, 8, -1, 4, 2)  # row half, group, tile of columns, member, pair
    return tiles[:, GROUP, :, MEMBER].transpose(0, 2, 1, 3).reshape(len(LANE), -1)


class TestMma:
    @pytest.mark.parametrize(
        ("function", "kind", "k"),
        [
            (mma.mma_bf16, BF16, 16),
            (mma.mma_f16, np.float16, 16),
            pytest.param(mma.mma_e4m3, E4M3, 32, marks=pytest.mark.gpu(least=(8, 9))),
        ],
        ids=["bf16", "f16", "e4m3"],
    )
    def test_product(self, launch, rng, function, kind, k):
        def kernel(d, a, b):
            lane = cuda.threadIdx.x
            c = (d[lane, 0], d[lane, 1], d[lane, 2], d[lane, 3])
            c = function(c, (a[lane, 0], a[lane, 1], a[lane, 2], a[lane, 3]), (b[lane, 0], b[lane, 1]))
            for i in range(4):
                d[lane, i] = c[0] if i == 0 else c[1] if i == 1 else c[2] if i == 2 else c[3]

        a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((16, k), (k, 8), (16, 8)))
        b_words = words(b.T.astype(kind))[GROUP[:, None], np.stack([MEMBER, MEMBER + 4], axis=1)]
        d, *_ = launch(kernel, fragments_d(c), fragments_a(a.astype(kind)), b_words)
        assert (d == fragments_d(c + a @ b)).all()


def swizzled(tile: np.ndarray) -> np.ndarray:
    """Rows of 128 bytes with their 16-byte pieces in the order that the 128-byte swizzle gives them: piece c of row r at c ^ (r % 8)."""
    pieces = np.ascontiguousarray(tile).view(np.uint8).reshape(len(tile), 8, 16)
    order = np.arange(8) ^ (np.arange(len(tile)) % 8)[:, None]
    return np.take_along_axis(pieces, order[:, :, None], axis=1).reshape(len(tile), 128).view(np.uint64)


@pytest.mark.gpu(only=(9, 0))
class TestWgmma:
    COLUMNS = 16

    def multiply(self, launch, blocks, element, a_from, a_operand, b_tile, d):
        """d + A B by the intrinsic; d is [warp, lane, registers]."""
        columns = self.COLUMNS
        run = wgmma(columns, element, blocks=blocks, a=a_from)
        count, words_of_a = blocks * columns // 2, 16 * blocks
        base = descriptor_base()
        shared_words = (columns + 64 * blocks) * 16
        zero = registers.zeros(count)

        def kernel(d, a, b):
            held = cuda.shared.array(shared_words, types.uint64, alignment=1024)
            thread = cuda.threadIdx.x
            tile = memory.to_shared(memory.array_address(held))
            for i in range(thread, b.size, 128):
                held[i] = b[i]
            if a_from == "shared":
                for i in range(thread, a.size, 128):
                    held[b.size + i] = a[i]
            barrier.fence_async_shared()
            cuda.syncthreads()
            result = run(zero(), operand(a, thread, tile + 8 * b.size), base | np.uint64(tile >> 4))
            wgmma_wait(0)
            store(d, thread, result)

        if a_from == "registers":
            operand = expand(f"tuple_of(a, thread, tile): return ({', '.join(f'a[thread, {i}]' for i in range(words_of_a))},)")
        else:
            addresses = ", ".join(f"base | np.uint64((tile + {8192 * i}) >> 4)" for i in range(blocks))
            operand = expand(f"tuple_of(a, thread, tile): return ({addresses},)", base=base)
        store = expand(f"store(d, thread, r): {'; '.join(f'd[thread, {i}] += r[{i}]' for i in range(count))}")
        return launch(kernel, d, a_operand, b_tile, threads=128)[0]

    @pytest.mark.parametrize("blocks", [1, 2])
    @pytest.mark.parametrize("a_from", ["registers", "shared"])
    @pytest.mark.parametrize(("element", "kind", "k"), [("bf16", BF16, 64), ("e4m3", E4M3, 128)], ids=["bf16", "e4m3"])
    def test_product(self, launch, rng, blocks, a_from, element, kind, k):
        a = rng.integers(-3, 4, (blocks, 64, k)).astype(np.float32)
        b = rng.integers(-3, 4, (k, self.COLUMNS)).astype(np.float32)
        d = np.ones((128, blocks * self.COLUMNS // 2), np.float32)
        if a_from == "registers":
            steps = a.astype(kind).reshape(blocks, 4, 16, 4, k // 4)  # block, warp, row, step, k
            held = np.array([[[fragments_a(steps[i, w, :, s]) for s in range(4)] for i in range(blocks)] for w in range(4)])
            operand = held.transpose(0, 3, 1, 2, 4).reshape(128, -1)  # thread, then block, step, word
        else:
            operand = swizzled(a.astype(kind).reshape(64 * blocks, k)).ravel()
        found = self.multiply(launch, blocks, element, a_from, operand, swizzled(b.T.astype(kind)).ravel(), d)
        product = (a @ b).reshape(blocks, 4, 16, self.COLUMNS)
        expected = np.array([np.concatenate([fragments_d(product[i, w]) for i in range(blocks)], axis=1) for w in range(4)])
        assert (found == 1 + expected.reshape(128, -1)).all()


def expand(source: str, **names):
    """A device function of one line, for tuples whose length is known only here."""
    space = {"np": np, **names}
    exec(f"def {source}", space)
    return cuda.jit(space[source.split("(")[0]], device=True)
