"""Activations to E4M3 and 4-bit weights to E4M3 fragments: NumPy's laws, and the kernels against NumPy to the bit.

All on a GPU: pytest tests/test_kernels_quantise.py -k gpu
"""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.kernels import quantise
from perfmodel.kernels.layouts_w4a8 import E4M3_TABLE
from perfmodel.kernels.quantise import dequantise_tokens, quantise_tokens

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def activations(k: int) -> np.ndarray:
    """Rows of all kinds: ordinary, an outlier, zeros, tiny, huge, an infinity, a NaN."""
    x = np.random.default_rng(5).standard_normal((9, k)).astype(np.float32)
    x[1, k // 2] = -1000
    x[2] = 0
    x[3] *= 2.0**-110
    x[4] *= 2.0**-140
    x[5] *= 2.0**124
    x[6, k - 1] = np.inf
    x[7, 0] = np.nan
    return x.astype(BF16)


class TestReference:
    def test_by_hand(self):
        codes, scales = quantise_tokens(np.array([[448, -224, 3.5, 0], [0, 0, 0, 0], [1, 0.5, -1, 2]], BF16))
        assert scales.tolist() == [np.float32(448) * np.float32(1 / 448), np.float32(2.0**-100) * np.float32(1 / 448), np.float32(2 / 448)]
        assert codes.view(E4M3).astype(float).tolist() == [[448, -224, 3.5, 0], [0, 0, 0, 0], [224, 112, -224, 448]]

    @given(st.integers(0, 2**32 - 1), st.floats(-90, 90))
    @settings(deadline=None, max_examples=30)
    def test_nothing_is_further_off_than_half_a_step(self, seed, power):
        x = (np.random.default_rng(seed).standard_normal((4, 64)) * 2.0**power).astype(BF16)
        codes, scales = quantise_tokens(x)
        back, wanted = dequantise_tokens(codes, scales), x.astype(np.float64)
        step = np.maximum(np.abs(wanted) / 16, scales[:, None] * 2.0**-10)  # three mantissa bits, or half the smallest subnormal
        assert (np.abs(back - wanted) <= step * (1 + 1e-5)).all()
        assert (np.abs(codes.view(E4M3).astype(float)).max(axis=1) == 448).all()

    def test_rows_of_zeros_and_of_nan(self):
        codes, scales = quantise_tokens(activations(32))
        back = dequantise_tokens(codes, scales)
        assert (back[2] == 0).all()
        assert scales[2] > 0
        assert np.isfinite(back[[0, 1, 2, 3, 4, 5, 8]]).all()
        assert np.isnan(back[6:8]).all()

    def test_rows_are_taken_from_a_list(self):
        x, rows = activations(32), np.array([3, 0, 0], np.int32)
        codes, scales = quantise_tokens(x, rows)
        whole, every = quantise_tokens(x)
        assert (codes == whole[rows]).all()
        assert (scales == every[rows]).all()


def same(found: tuple[np.ndarray, np.ndarray], wanted: tuple[np.ndarray, np.ndarray]) -> None:
    """Bits alike, where NaN has many."""
    for have, want in zip((found[0].view(E4M3), found[1]), (wanted[0].view(E4M3), wanted[1]), strict=True):
        have, want = have.astype(np.float64), want.astype(np.float64)
        assert ((have == want) & (np.signbit(have) == np.signbit(want)) | np.isnan(have) & np.isnan(want)).all()


SHAPES = [8, 32, 2880, 4104]
ROWS = [None, np.array([8, 0, 0, 7, 2], np.int32)]


class TestEmulated:
    @pytest.fixture(autouse=True)
    def compiler(self):
        pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")

    @pytest.mark.parametrize("k", SHAPES)
    @pytest.mark.parametrize("rows", ROWS, ids=["as they lie", "from a list"])
    def test_quantise(self, k, rows):
        from perfmodel.kernels.compile import to_ptx
        from perfmodel.kernels.emulator_hopper import HopperMachine
        from perfmodel.kernels.emulator_program import Memory

        x, memory = activations(k), Memory()
        tokens = len(x if rows is None else rows)
        codes, scales = memory.room(tokens * k), memory.room(tokens * 4)
        arguments = [memory.place(x), codes, scales, 0 if rows is None else memory.place(rows), tokens, k]
        HopperMachine(to_ptx(quantise.build(), "sm_90a"), memory).launch(2, quantise.THREADS, quantise.THREADS // 8, arguments)
        same((memory.read(codes, (tokens, k), np.uint8), memory.read(scales, (tokens,), np.float32)), quantise_tokens(x, rows))

    def test_each_code_with_each_scale(self):
        """Words of eight codes alike, and of eight codes that differ, for the twelve scale bytes."""
        from perfmodel.kernels.compile import to_ptx
        from perfmodel.kernels.emulator_hopper import HopperMachine
        from perfmodel.kernels.emulator_program import Memory
        from perfmodel.kernels.fragments import pack_word

        slots = np.concatenate([np.tile(np.arange(16), (8, 1)), np.arange(8)[:, None], np.arange(15, 7, -1)[:, None]], axis=1)
        scales = np.arange(3, 15)
        codes = np.repeat(slots[:, None], len(scales), axis=1).reshape(8, -1).astype(np.uint8)  # slot, then scale by word
        bytes_ = np.repeat(scales, slots.shape[1]).astype(np.uint32)
        words = pack_word(codes, "e2m1-to-e4m3")
        memory = Memory()
        out = memory.room(8 * len(bytes_))
        machine = HopperMachine(to_ptx(fragment_source(), "sm_90a"), memory)
        machine.launch(1, 256, 0, [memory.place(words), memory.place(bytes_), out, len(bytes_)])
        found = memory.read(out, (len(bytes_), 8), np.uint8)
        table = E4M3_TABLE.view(np.uint8).reshape(15, 8)
        assert (found == table[bytes_, codes & 7].T | (codes.T >> 3 << 7)).all()


def fragment_source():
    """A kernel of (words, scales, out, count): what `word_to_e4m3` makes of each word."""
    from numba import cuda, types

    from perfmodel.kernels.dequant_w4a8 import word_to_e4m3
    from perfmodel.kernels.ptx.memory import load_constant, store_global_x2
    from perfmodel.kernels.variants import KernelSource

    def kernel(words, scales, out, count):
        at = np.uint64(cuda.threadIdx.x)
        if at < count:
            store_global_x2(
                out + at * np.uint64(8), word_to_e4m3(load_constant(words + at * np.uint64(4)), load_constant(scales + at * np.uint64(4)))
            )

    return KernelSource(kernel, (types.uint64,) * 3 + (types.uint32,), 256, 0, (256, 1))


@pytest.mark.gpu(least=(8, 9))
class TestGpu:
    @pytest.mark.parametrize("k", SHAPES)
    @pytest.mark.parametrize("rows", ROWS, ids=["as they lie", "from a list"])
    @pytest.mark.parametrize("grid", [1, 1000])
    def test_quantise(self, k, rows, grid):
        from numba import cuda

        x = activations(k)
        tokens = len(x if rows is None else rows)
        held = [
            cuda.to_device(array)
            for array in (x.view(np.uint16), np.full((tokens, k), 0xFF, np.uint8), np.full(tokens, np.nan, np.float32))
        ]
        listed = None if rows is None else cuda.to_device(rows)
        addresses = [array.device_ctypes_pointer.value if array is not None else 0 for array in (*held, listed)]
        source = quantise.build()
        cuda.jit(source.signature)(source.function)[grid, source.threads](*addresses, tokens, k)
        same((held[1].copy_to_host(), held[2].copy_to_host()), quantise_tokens(x, rows))
