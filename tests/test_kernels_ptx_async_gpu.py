"""PTX instructions that copy asynchronously, wait and meet, run on a GPU and held against NumPy."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")

from numba import cuda, types

from perfmodel.kernels.ptx import barrier, bulk, memory, registers

pytestmark = pytest.mark.gpu

LANE = np.arange(32)


class TestAsynchronousCopies:
    def test_of_a_thread(self, launch, rng):
        def kernel(out, source):
            held = cuda.shared.array(192, types.uint32, alignment=16)
            lane = cuda.threadIdx.x
            base = memory.to_shared(memory.array_address(held))
            here = memory.array_address(source) + 16 * lane
            memory.store_shared_x4(base + 16 * lane, (1, 1, 1, 1))
            if lane < 16:
                bulk.copy_async_16(base + 16 * lane, here)
            else:
                bulk.copy_async_16_of(base + 16 * lane, here, lane - 16)
            bulk.copy_async_4(base + 512 + 4 * lane, here)
            bulk.copy_commit()
            bulk.copy_wait(0)
            memory.store_global_x4(memory.array_address(out) + 16 * lane, memory.load_shared_x4(base + 16 * lane))
            out[32 + lane, 0] = memory.load_shared(base + 512 + 4 * lane)

        source = rng.integers(0, 2**32, (32, 4), dtype=np.uint32)
        out, _ = launch(kernel, np.zeros((64, 4), np.uint32), source)
        kept = np.where(LANE < 16, 16, LANE - 16)
        expected = np.where(np.arange(16) < kept[:, None], source.view(np.uint8), 0).astype(np.uint8)
        assert (out[:32].view(np.uint8) == expected).all()
        assert (out[32:, 0] == source[:, 0]).all()

    @pytest.mark.gpu(least=(9, 0))
    def test_copies_arrive_at_a_barrier(self, launch, rng):
        def kernel(out, source):
            held = cuda.shared.array(130, types.uint64, alignment=16)
            lane = cuda.threadIdx.x
            base = memory.to_shared(memory.array_address(held))
            if lane == 0:
                barrier.mbarrier_init(base, 32)
                barrier.fence_mbarrier_init()
            cuda.syncthreads()
            for parity in range(2):
                bulk.copy_async_16(base + 16 + 16 * lane, memory.array_address(source) + 16 * lane + 512 * parity)
                bulk.copy_arrive(base)
                barrier.mbarrier_wait(base, parity)
                words_of_next = memory.load_shared_x4(base + 16 + 16 * ((lane + 1) % 32))
                memory.store_global_x4(memory.array_address(out) + 16 * lane + 512 * parity, words_of_next)
                barrier.warp_sync()

        source = rng.integers(0, 2**32, (2, 32, 4), dtype=np.uint32)
        out, _ = launch(kernel, np.zeros_like(source), source)
        assert (out == np.roll(source, -1, axis=1)).all()

    @pytest.mark.gpu(least=(9, 0))
    @pytest.mark.parametrize("kind", ["plain", "hinted", "multicast"])
    def test_in_bulk_and_back(self, launch, rng, kind):
        def copy(shared, source, bytes, at):
            if kind == "plain":
                bulk.copy_bulk(shared, source, bytes, at)
            elif kind == "hinted":
                bulk.copy_bulk_hinted(shared, source, bytes, at, memory.policy_evict_last())
            else:
                bulk.copy_bulk_multicast(shared, source, bytes, at, 1)  # a cluster of one

        copy = cuda.jit(copy, device=True)

        def kernel(out, source):
            held = cuda.shared.array(129, types.uint64, alignment=16)
            lane = cuda.threadIdx.x
            base = memory.to_shared(memory.array_address(held))
            ready = base + 1024
            if lane == 0:
                barrier.mbarrier_init(ready, 2)
                barrier.fence_mbarrier_init()
            barrier.cluster_sync()
            if lane == 0:
                barrier.mbarrier_expect(ready, 1024)
                copy(base, memory.array_address(source), 1024, ready)
                barrier.mbarrier_arrive_at(ready, barrier.cluster_rank())
            barrier.mbarrier_wait_cluster(ready, 0)
            memory.store_shared(base + 4 * lane, memory.load_shared(base + 4 * lane) + 1)
            barrier.fence_async_shared()
            barrier.warp_sync()
            if registers.elect_one():
                bulk.store_bulk(memory.array_address(out), base, 1024)
                bulk.store_commit()
                bulk.store_wait_read(0)
                bulk.store_wait(0)

        source = rng.integers(0, 2**20, 256, dtype=np.uint32)
        out, _ = launch(kernel, np.zeros_like(source), source)
        assert (out == source + (np.arange(256) < 32)).all()

    @pytest.mark.gpu(least=(9, 0))
    def test_tiles(self, launch, rng):
        """A 10 x 16 matrix by tiles of 8 x 8: what lies outside comes as zeros, and is not written."""

        def kernel(out, source_map, out_map):
            held = cuda.shared.array(33, types.uint64, alignment=128)
            lane = cuda.threadIdx.x
            base = memory.to_shared(memory.array_address(held))
            ready = base + 256
            source, target = memory.array_address(source_map), memory.array_address(out_map)
            if lane == 0:
                bulk.prefetch_map(source)
                barrier.mbarrier_init(ready, 1)
                barrier.fence_mbarrier_init()
            cuda.syncthreads()
            if lane == 0:
                barrier.mbarrier_expect(ready, 256)
                bulk.copy_tile(base, source, 8, 8, ready)
                bulk.copy_tile_hinted(base + 128, source, 0, 0, ready, memory.policy_evict_first())
            barrier.mbarrier_wait(ready, 0)
            memory.store_global_x2(memory.array_address(out) + 8 * lane, memory.load_shared_x2(base + 8 * lane))
            if lane == 0:
                bulk.store_tile(target, 8, 8, base)
                bulk.store_commit()
                bulk.store_wait(0)

        whole = rng.integers(0, 2**16, (10, 16), dtype=np.uint16)
        source, target = cuda.to_device(whole), cuda.to_device(np.zeros_like(whole))
        out, *_ = launch(kernel, np.zeros((2, 8, 8), np.uint16), tensor_map(source), tensor_map(target))
        expected = np.zeros((2, 8, 8), np.uint16)
        expected[0, :2], expected[1] = whole[8:, 8:], whole[:8, :8]
        assert (out == expected).all()
        written = target.copy_to_host()
        assert (written[8:, 8:] == whole[8:, 8:]).all()
        assert not written[:8].any()
        assert not written[:, :8].any()


def tensor_map(array) -> np.ndarray:
    """The tensor map of a row-major matrix of 16-bit elements, by boxes of 8 x 8, as its 16 words of 64 bits."""
    from cuda.bindings import driver

    rows, columns = array.shape
    kinds = driver.CUtensorMapDataType, driver.CUtensorMapInterleave, driver.CUtensorMapSwizzle
    data, interleave, swizzle = kinds
    status, made = driver.cuTensorMapEncodeTiled(
        data.CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, array.device_ctypes_pointer.value,
        [driver.cuuint64_t(columns), driver.cuuint64_t(rows)], [driver.cuuint64_t(columns * 2)],
        [driver.cuuint32_t(8)] * 2, [driver.cuuint32_t(1)] * 2,
        interleave.CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip
    assert status == driver.CUresult.CUDA_SUCCESS, status
    return np.array([int(word) for word in made.opaque], np.uint64)


class TestMeeting:
    @pytest.mark.gpu(least=(9, 0))
    def test_an_arrival_of_each_lane(self, launch):
        def kernel(out):
            held = cuda.shared.array(34, types.uint64)
            lane = cuda.threadIdx.x
            base = memory.to_shared(memory.array_address(held))
            if lane == 0:
                barrier.mbarrier_init(base, 32)
                barrier.fence_mbarrier_init()
            cuda.syncthreads()
            memory.store_shared(base + 16 + 4 * lane, lane * lane)
            barrier.mbarrier_arrive(base)
            barrier.mbarrier_wait(base, 0)
            out[lane] = memory.load_shared(base + 16 + 4 * (31 - lane))

        assert (launch(kernel, np.zeros(32, np.uint32))[0] == (31 - LANE) ** 2).all()

    def test_one_warp_waits_for_the_other(self, launch):
        def kernel(out):
            held = cuda.shared.array(32, types.uint32)
            lane = cuda.threadIdx.x % 32
            here = memory.to_shared(memory.array_address(held)) + 4 * lane
            if cuda.threadIdx.x < 32:
                memory.store_shared(here, lane + 7)
                barrier.barrier_arrive(1, 64)
            else:
                barrier.barrier_sync(1, 64)
                out[lane] = memory.load_shared(here)

        assert (launch(kernel, np.zeros(32, np.uint32), threads=64)[0] == LANE + 7).all()

    @pytest.mark.gpu(least=(9, 0))
    def test_one_lane_is_elected(self, launch):
        def kernel(out):
            out[cuda.threadIdx.x] = registers.elect_one()

        assert launch(kernel, np.zeros(32, np.uint32))[0].sum() == 1


@pytest.mark.gpu(least=(9, 0))
def test_registers_change_hands(launch):
    def kernel(out):
        thread = cuda.threadIdx.x
        if thread < 128:
            registers.decrease_registers(40)
            out[thread] = thread
        else:
            registers.increase_registers(232)
            out[thread] = 2 * thread

    assert (launch(kernel, np.zeros(256, np.uint32), threads=256)[0] == np.arange(256) * np.repeat([1, 2], 128)).all()
