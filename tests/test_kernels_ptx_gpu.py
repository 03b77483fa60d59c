"""PTX instructions that compute and move within an SM, run on a GPU and held against NumPy."""

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")

from numba import cuda, types

from perfmodel.kernels.ptx import barrier, convert, matrix, memory

pytestmark = pytest.mark.gpu

LANE = np.arange(32)
GROUP, MEMBER = LANE // 4, LANE % 4
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def words(array: np.ndarray) -> np.ndarray:
    """The bytes of an array as 32-bit words, along the last axis."""
    return np.ascontiguousarray(array).view(np.uint32)


class TestConvert:
    """Functions of one to three words, on 32 lanes at once."""

    @pytest.fixture
    def run(self, launch):
        def apply(function, *operands, result=np.uint32) -> np.ndarray:
            def one(out, a):
                i = cuda.threadIdx.x
                out[i] = function(a[i])

            def two(out, a, b):
                i = cuda.threadIdx.x
                out[i] = function(a[i], b[i])

            def three(out, a, b, c):
                i = cuda.threadIdx.x
                out[i] = function(a[i], b[i], c[i])

            return launch((one, two, three)[len(operands) - 1], np.zeros(32, result), *operands)[0]

        return apply

    def test_permute_bytes(self, run, rng):
        a, b = (rng.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(2))
        nibbles = rng.integers(0, 8, (32, 4), dtype=np.uint32)
        selector = (nibbles << np.array([0, 4, 8, 12], np.uint32)).sum(axis=1, dtype=np.uint32)
        eight = np.stack([a, b], axis=1).view(np.uint8)
        expected = words(np.take_along_axis(eight, nibbles.astype(int), axis=1)).ravel()
        assert (run(convert.permute_bytes, a, b, selector) == expected).all()

    def test_logic(self, launch, rng):
        a, b, c = (rng.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(3))

        def kernel(out, a, b, c):
            i = cuda.threadIdx.x
            out[i] = convert.logic(a[i], b[i], c[i], 0xEA)  # (0xF0 & 0xCC) | 0xAA

        assert (launch(kernel, np.zeros(32, np.uint32), a, b, c)[0] == ((a & b) | c)).all()

    def test_funnel(self, run, rng):
        low, high = (rng.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(2))
        joined = (high.astype(np.uint64) << np.uint64(32)) | low
        expected = ((joined << LANE.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)
        assert (run(convert.funnel_left, low, high, LANE.astype(np.uint32)) == expected).all()

    @pytest.mark.parametrize(("function", "kind"), [(convert.pack_bf16x2, BF16), (convert.pack_f16x2, np.float16)])
    def test_pairs_of_halves(self, run, rng, function, kind):
        values = rng.normal(size=(32, 2)).astype(np.float32) * np.float32(2) ** rng.integers(-20, 14, (32, 2))
        assert (run(function, values[:, 0], values[:, 1]) == words(values.astype(kind)).ravel()).all()

    @pytest.mark.gpu(least=(8, 9))
    def test_pairs_of_e4m3(self, run, rng):
        values = (rng.normal(size=(32, 2)) * 2.0 ** rng.integers(-10, 12, (32, 2))).astype(np.float32)
        expected = np.clip(values, -448, 448).astype(E4M3).view(np.uint16).ravel()
        assert (run(convert.pack_e4m3x2, values[:, 0], values[:, 1], result=np.uint16) == expected).all()

    @pytest.mark.gpu(least=(8, 9))
    def test_e4m3_to_halves(self, run):
        codes = np.arange(0, 256, 4, dtype=np.uint8).reshape(32, 2)  # every fourth: no NaN among them
        expected = words(codes.view(E4M3).astype(np.float16)).ravel()
        assert (run(convert.unpack_e4m3x2, codes.view(np.uint16).ravel()) == expected).all()

    def test_bits(self, run, rng):
        values = rng.normal(size=32).astype(np.float32)
        assert (run(convert.float_bits, values) == values.view(np.uint32)).all()
        assert (run(convert.bits_float, values.view(np.uint32), result=np.float32) == values).all()
        assert (run(convert.to_bf16, values, result=np.uint16) == values.astype(BF16).view(np.uint16)).all()

    @pytest.mark.parametrize(
        ("function", "kind"),
        [pytest.param(convert.mul_bf16x2, BF16, marks=pytest.mark.gpu(least=(9, 0))), (convert.mul_f16x2, np.float16)],
        ids=["bf16", "f16"],
    )
    def test_products_keep_subnormals(self, run, rng, function, kind):
        a = (rng.normal(size=(32, 2)) * 2.0 ** rng.integers(-8, 8, (32, 2))).astype(kind)
        b = np.full((32, 2), np.finfo(np.float16).tiny if kind is np.float16 else 2.0**-126).astype(kind)
        expected = (a.astype(np.float32) * b.astype(np.float32)).astype(kind)
        found = run(function, words(a).ravel(), words(b).ravel())
        assert (found == words(expected).ravel()).all()

    @pytest.mark.parametrize(("function", "kind"), [(convert.fma_bf16x2, BF16), (convert.fma_f16x2, np.float16)])
    def test_fused_multiply_add(self, run, rng, function, kind):
        a, b, c = (rng.integers(-8, 9, (32, 2)).astype(np.float32) for _ in range(3))
        found = run(function, *(words(x.astype(kind)).ravel() for x in (a, b, c)))
        assert (found == words((a * b + c).astype(kind)).ravel()).all()

    def test_approximations(self, run, rng):
        x = rng.uniform(-20, 20, 32).astype(np.float32)
        np.testing.assert_allclose(run(convert.exp2_approx, x, result=np.float32), np.exp2(x), rtol=3e-7)
        np.testing.assert_allclose(run(convert.reciprocal_approx, x, result=np.float32), 1 / x, rtol=2e-7)


class TestMemory:
    def test_words_through_shared_memory(self, launch, rng):
        def kernel(out, source):
            held = cuda.shared.array(128, types.uint32, alignment=16)
            lane = cuda.threadIdx.x
            here = memory.to_shared(memory.array_address(held)) + 16 * lane
            memory.store_shared_x4(here, memory.load_once_x4_hinted(memory.array_address(source) + 16 * lane, memory.policy_evict_first()))
            barrier.warp_sync()
            two, three = memory.load_shared_x2(here + 8)
            memory.store_shared_x2(here + 8, (three, two))
            memory.store_shared(here, memory.load_shared(here) + 1)
            memory.store_global_x4(memory.array_address(out) + 16 * lane, memory.load_shared_x4(here))

        source = rng.integers(0, 2**31, (32, 4), dtype=np.uint32)
        out, _ = launch(kernel, np.zeros((32, 4), np.uint32), source)
        assert (out == source[:, [0, 1, 3, 2]] + np.array([1, 0, 0, 0], np.uint32)).all()

    def test_loads_of_constants(self, launch, rng):
        def kernel(out, source, floats):
            lane = cuda.threadIdx.x
            here = memory.array_address(source) + 16 * lane
            a, b, c, d = memory.load_constant_x4(here)
            e, f, g, h = memory.load_constant_x4_if(here, lane % 2)
            i, j = memory.load_constant_x2(here)
            out[lane, 0] = (a ^ b) + (c ^ d)
            out[lane, 1] = (e ^ f) + (g ^ h)
            out[lane, 2] = i + j + memory.load_constant(here + 8) + memory.load_once(here + 12)
            at = memory.array_address(floats) + 4 * lane
            memory.store_global_f32(at, 2 * memory.load_constant_f32(at))

        source = rng.integers(0, 2**20, (32, 4), dtype=np.uint32)
        floats = rng.normal(size=32).astype(np.float32)
        out, _, doubled = launch(kernel, np.zeros((32, 3), np.uint32), source, floats)
        mixed = (source[:, 0] ^ source[:, 1]) + (source[:, 2] ^ source[:, 3])
        assert (out == np.stack([mixed, mixed * (LANE % 2), source.sum(axis=1)], axis=1)).all()
        assert (doubled == 2 * floats).all()


class TestMatrix:
    def test_four_matrices(self, launch, rng):
        def kernel(plain, transposed, two, source):
            held = cuda.shared.array(128, types.uint32, alignment=16)
            lane = cuda.threadIdx.x
            base = memory.to_shared(memory.array_address(held))
            memory.store_shared_x4(base + 16 * lane, memory.load_constant_x4(memory.array_address(source) + 16 * lane))
            barrier.warp_sync()
            here = memory.array_address(plain) + 16 * lane
            memory.store_global_x4(here, matrix.load_matrix_x4(base + 16 * lane))
            memory.store_global_x4(memory.array_address(transposed) + 16 * lane, matrix.load_matrix_x4_trans(base + 16 * lane))
            memory.store_global_x2(memory.array_address(two) + 8 * lane, matrix.load_matrix_x2(base + 16 * (lane % 16)))

        source = rng.integers(0, 2**16, (4, 8, 8), dtype=np.uint16)
        blank = np.zeros((32, 4), np.uint32)
        plain, transposed, two, _ = launch(kernel, blank, blank, blank[:, :2], source)
        assert (plain == words(source)[:, GROUP, MEMBER].T).all()
        assert (transposed == words(source.transpose(0, 2, 1))[:, GROUP, MEMBER].T).all()
        assert (two == words(source)[:2, GROUP, MEMBER].T).all()

    @pytest.mark.gpu(least=(9, 0))
    @pytest.mark.parametrize("transpose", [False, True])
    def test_storing_is_loading_backwards(self, launch, rng, transpose):
        store = matrix.store_matrix_x4_trans if transpose else matrix.store_matrix_x4

        def kernel(out, source):
            held = cuda.shared.array(128, types.uint32, alignment=16)
            lane = cuda.threadIdx.x
            here = memory.to_shared(memory.array_address(held)) + 16 * lane
            store(here, memory.load_constant_x4(memory.array_address(source) + 16 * lane))
            barrier.warp_sync()
            memory.store_global_x4(memory.array_address(out) + 16 * lane, memory.load_shared_x4(here))

        matrices = rng.integers(0, 2**16, (4, 8, 8), dtype=np.uint16)
        out, _ = launch(kernel, np.zeros((4, 8, 4), np.uint32), words(matrices)[:, GROUP, MEMBER].T)
        assert (out.view(np.uint16) == (matrices.transpose(0, 2, 1) if transpose else matrices)).all()
