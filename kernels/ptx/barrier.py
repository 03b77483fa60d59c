"""Waiting for each other: mbarriers in shared memory, named barriers of a CTA, barriers of a cluster, fences, dependent grids.

An mbarrier is 8 bytes of shared memory with a phase. The phase ends when as many threads have arrived as `mbarrier_init` said
and as many bytes have come as `mbarrier_expect` announced. A waiter names the parity of the phase that it waits for: 0 for the first,
then 1, 0, ... Waiting for parity 1 on a fresh barrier returns at once, so the producer of a ring of stages starts with 1.
"""

from __future__ import annotations

from perfmodel.kernels.ptx.asm import U32, asm


@asm("mbarrier.init.shared::cta.b64 [$barrier], $arrivals;")
def mbarrier_init(barrier: U32, arrivals: U32) -> None:
    """Set up a barrier that `arrivals` arrivals complete; one thread does it. PTX ISA 9.7.13.15.9, mbarrier.init."""


@asm("fence.mbarrier_init.release.cluster;", needs="sm_90")
def fence_mbarrier_init() -> None:
    """Show barriers just set up to the cluster and to copies; `cluster_sync` or `syncthreads` follows. PTX ISA 9.7.13.4, fence."""


@asm("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$barrier], $bytes;", needs="sm_90")
def mbarrier_expect(barrier: U32, bytes: U32) -> None:
    """Arrive, and let the phase wait for `bytes` more bytes of asynchronous copies. PTX ISA 9.7.13.15.13, mbarrier.arrive."""


@asm("mbarrier.arrive.shared::cta.b64 _, [$barrier];")
def mbarrier_arrive(barrier: U32) -> None:
    """Arrive once: what this thread wrote before is seen by who waits. PTX ISA 9.7.13.15.13, mbarrier.arrive."""


@asm("{ .reg .b32 there; mapa.shared::cluster.u32 there, $barrier, $rank; mbarrier.arrive.shared::cluster.b64 _, [there]; }", needs="sm_90")
def mbarrier_arrive_at(barrier: U32, rank: U32) -> None:
    """Arrive at the barrier that stands at this address in the cluster's CTA `rank`.

    Left unqualified on purpose: `.release.cluster` makes the assembler emit a fence of the whole GPU.
    PTX ISA 9.7.13.15.13, mbarrier.arrive; 9.7.9.23, mapa.
    """


@asm(
    "{ .reg .pred done; WAIT_${:uid}: mbarrier.try_wait.parity.shared::cta.b64 done, [$barrier], $parity; @!done bra WAIT_${:uid}; }",
    needs="sm_90",
)
def mbarrier_wait(barrier: U32, parity: U32) -> None:
    """Wait until the phase of this parity has ended. PTX ISA 9.7.13.15.16, mbarrier.try_wait."""


@asm(
    "{ .reg .pred done; WAIT_${:uid}: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [$barrier], $parity;"
    " @!done bra WAIT_${:uid}; }",
    needs="sm_90",
)
def mbarrier_wait_cluster(barrier: U32, parity: U32) -> None:
    """`mbarrier_wait` that also shows what other CTAs of the cluster wrote before they arrived. PTX ISA 9.7.13.15.16, mbarrier.try_wait."""


@asm("barrier.cta.sync.aligned $index, $threads;")
def barrier_sync(index: U32, threads: U32) -> None:
    """Wait at the CTA's barrier `index` (0 to 15; 0 is `syncthreads`) for `threads` (of whole warps). PTX ISA 9.7.13.1, barrier."""


@asm("barrier.cta.arrive.aligned $index, $threads;")
def barrier_arrive(index: U32, threads: U32) -> None:
    """Count for barrier `index` without waiting there. PTX ISA 9.7.13.1, barrier."""


@asm("bar.warp.sync 0xffffffff;")
def warp_sync() -> None:
    """All 32 lanes meet, and see what the others wrote to memory. PTX ISA 9.7.13.2, bar.warp.sync."""


@asm("barrier.cluster.arrive.release.aligned;", needs="sm_90")
def cluster_arrive() -> None:
    """First half of `cluster_sync`: say that this thread is there. PTX ISA 9.7.13.3, barrier.cluster."""


@asm("barrier.cluster.wait.acquire.aligned;", needs="sm_90")
def cluster_wait() -> None:
    """Second half of `cluster_sync`: wait for all threads of the cluster. PTX ISA 9.7.13.3, barrier.cluster."""


@asm("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;", needs="sm_90")
def cluster_sync() -> None:
    """All threads of the cluster meet; a CTA must not end while others reach into its memory. PTX ISA 9.7.13.3, barrier.cluster."""


@asm("mov.u32 $out, %cluster_ctarank;", effect="none", needs="sm_90")
def cluster_rank() -> U32:
    """Which CTA of its cluster this one is, from 0. PTX ISA 10.16, %cluster_ctarank."""


@asm("fence.proxy.async.shared::cta;", needs="sm_90")
def fence_async_shared() -> None:
    """Order this thread's plain accesses to shared memory before wgmma and bulk copies that follow. PTX ISA 9.7.13.4, fence.proxy."""


@asm("griddepcontrol.wait;", needs="sm_90")
def grid_dependency_wait() -> None:
    """Wait until the grids before this one have ended and their writes are seen: dependent launch. PTX ISA 9.7.13.13, griddepcontrol."""


@asm("griddepcontrol.launch_dependents;", needs="sm_90")
def grid_launch_dependents() -> None:
    """Let the next grid start while this one runs on: dependent launch. PTX ISA 9.7.13.13, griddepcontrol."""
