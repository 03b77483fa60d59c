"""Asynchronous copies between global and shared memory: by the thread (`cp.async`), by the line (`cp.async.bulk`), by the tile (TMA).

Copies of a thread are waited for in groups (`copy_commit`, `copy_wait`) or on an mbarrier (`copy_arrive`). Bulk copies and tiles count
their bytes on an mbarrier that `mbarrier_expect` has told to wait for them; one thread starts them. Tiles are described by a
tensor map, 128 bytes that the host encodes (`cuTensorMapEncodeTiled`) and the kernel gets the address of.
"""

from __future__ import annotations

from perfmodel.kernels.ptx.asm import I32, U16, U32, U64, Immediate, asm


@asm("cp.async.cg.shared.global.L2::128B [$shared], [$source], 16;")
def copy_async_16(shared: U32, source: U64) -> None:
    """Copy 16 bytes past L1, both addresses multiples of 16. PTX ISA 9.7.9.25.3.1, cp.async."""


@asm("cp.async.cg.shared.global.L2::128B [$shared], [$source], 16, $bytes;")
def copy_async_16_of(shared: U32, source: U64, bytes: U32) -> None:
    """Copy the first `bytes` (0 to 16) of 16 bytes and fill up with zeros; 0 reads nothing. PTX ISA 9.7.9.25.3.1, cp.async."""


@asm("cp.async.ca.shared.global [$shared], [$source], 4;")
def copy_async_4(shared: U32, source: U64) -> None:
    """Copy 4 bytes through L1, both addresses multiples of 4. PTX ISA 9.7.9.25.3.1, cp.async."""


@asm("cp.async.commit_group;")
def copy_commit() -> None:
    """Close this thread's group of asynchronous copies. PTX ISA 9.7.9.25.3.2, cp.async.commit_group."""


@asm("cp.async.wait_group $pending;")
def copy_wait(pending: Immediate) -> None:
    """Wait until at most `pending` of this thread's youngest groups are under way. PTX ISA 9.7.9.25.3.3, cp.async.wait_group."""


@asm("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$barrier];")
def copy_arrive(barrier: U32) -> None:
    """Arrive once all earlier copies of this thread have landed; one of the arrivals of `mbarrier_init`.

    PTX ISA 9.7.13.15.15, cp.async.mbarrier.arrive.
    """


@asm("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$shared], [$source], $bytes, [$barrier];", needs="sm_90")
def copy_bulk(shared: U32, source: U64, bytes: U32, barrier: U32) -> None:
    """Copy `bytes` contiguous bytes to shared memory; addresses and `bytes` are multiples of 16. PTX ISA 9.7.9.25.4.1, cp.async.bulk."""


@asm(
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [$shared], [$source], $bytes, [$barrier], $policy;",
    needs="sm_90",
)
def copy_bulk_hinted(shared: U32, source: U64, bytes: U32, barrier: U32, policy: U64) -> None:
    """`copy_bulk` under an L2 policy (`memory.policy_evict_first`). PTX ISA 9.7.9.25.4.1, cp.async.bulk."""


@asm(
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
    " [$shared], [$source], $bytes, [$barrier], $ranks;",
    needs="sm_90",
)
def copy_bulk_multicast(shared: U32, source: U64, bytes: U32, barrier: U32, ranks: U16) -> None:
    """`copy_bulk` to the same shared address of every CTA whose bit is set in `ranks`; each one's own barrier counts the bytes.

    PTX ISA 9.7.9.25.4.1, cp.async.bulk.
    """


@asm("cp.async.bulk.global.shared::cta.bulk_group [$target], [$shared], $bytes;", needs="sm_90")
def store_bulk(target: U64, shared: U32, bytes: U32) -> None:
    """Copy contiguous bytes from shared to global memory, after `fence_async_shared`. PTX ISA 9.7.9.25.4.1, cp.async.bulk."""


@asm("cp.async.bulk.commit_group;", needs="sm_90")
def store_commit() -> None:
    """Close this thread's group of bulk stores. PTX ISA 9.7.9.27.2.1, cp.async.bulk.commit_group."""


@asm("cp.async.bulk.wait_group.read $pending;", needs="sm_90")
def store_wait_read(pending: Immediate) -> None:
    """Wait until all but `pending` groups have read their shared memory, to reuse it. PTX ISA 9.7.9.27.2.2, cp.async.bulk.wait_group."""


@asm("cp.async.bulk.wait_group $pending;", needs="sm_90")
def store_wait(pending: Immediate) -> None:
    """Wait until all but `pending` groups of bulk stores are complete. PTX ISA 9.7.9.27.2.2, cp.async.bulk.wait_group."""


@asm(
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [$shared], [$map, {$column, $row}], [$barrier];",
    needs="sm_90",
)
def copy_tile(shared: U32, map: U64, column: I32, row: I32, barrier: U32) -> None:
    """Copy the tile whose first element is (row, column) of a 2-D tensor map; what lies outside the tensor comes as zeros.

    All bytes of the tile count on the barrier, those outside too. PTX ISA 9.7.9.27.1.2, cp.async.bulk.tensor.
    """


@asm(
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
    " [$shared], [$map, {$column, $row}], [$barrier], $ranks;",
    needs="sm_90",
)
def copy_tile_multicast(shared: U32, map: U64, column: I32, row: I32, barrier: U32, ranks: U16) -> None:
    """`copy_tile` to every CTA of the cluster whose bit is set in `ranks`. PTX ISA 9.7.9.27.1.2, cp.async.bulk.tensor."""


@asm(
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
    " [$shared], [$map, {$column, $row}], [$barrier], $policy;",
    needs="sm_90",
)
def copy_tile_hinted(shared: U32, map: U64, column: I32, row: I32, barrier: U32, policy: U64) -> None:
    """`copy_tile` under an L2 policy. PTX ISA 9.7.9.27.1.2, cp.async.bulk.tensor."""


@asm("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [$map, {$column, $row}], [$shared];", needs="sm_90")
def store_tile(map: U64, column: I32, row: I32, shared: U32) -> None:
    """Copy a tile from shared memory to (row, column) of a 2-D tensor map; what lies outside is not written.

    `fence_async_shared` before, `store_commit` after. PTX ISA 9.7.9.27.1.2, cp.async.bulk.tensor.
    """


@asm("prefetch.tensormap [$map];", needs="sm_90")
def prefetch_map(map: U64) -> None:
    """Bring a tensor map near, before its first use. PTX ISA 9.7.9.15, prefetch."""
