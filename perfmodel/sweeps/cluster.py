"""Where chunks are computed: threads of this process, or the workers of a Dask cluster."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from itertools import islice
from threading import Event
from typing import Any

from perfmodel.errors import MissingRequirementError, PerfModelError
from perfmodel.sweeps.table import compute_part

MOST_THREADS = 16
AHEAD = 2
"""Chunks handed out for each thread: enough that none waits, few enough that results do not pile up."""
LEAST_AHEAD = 64
"""On a cluster: workers may join."""
CONNECT_SECONDS = 15
CRITICAL = 50
"""The level of that name: nothing below it is logged."""
ADDRESS = re.compile(r"(?:(?:tcp|tls|ucx|ws|wss)://)?(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
MEND = "Give its address, such as tcp://host:8786, or local:2 for two worker processes here."
LOCAL = "local:"
MOST_WORKERS = 256
GO_ON = "Finished chunks are kept: the same command goes on."
ON_WORKER = f"__import__({compute_part.__module__!r}, fromlist=['*']).{compute_part.__name__}(*task)"
"""What a worker evaluates. A function of ours, handed over as such, would kill a worker that has no perfmodel instead of failing there."""

Submit = Callable[[bytes, int, int], Future[bytes]]
"""`compute_part`, somewhere else."""


@contextmanager
def open_pool(scheduler: str | None, tell: Callable[[str], None]) -> Iterator[tuple[Submit, int]]:
    """What hands out a chunk, and how many to hand out at once. At the end, or on an error, what has not begun is dropped."""
    if scheduler is None:
        threads = min(os.cpu_count() or 1, MOST_THREADS)
        pool, halt = ThreadPoolExecutor(threads), Event()
        try:
            compute = partial(compute_part, halted=halt.is_set)
            yield lambda *task: pool.submit(compute, *task), AHEAD * threads
        finally:
            halt.set()  # what has begun ends soon, too: the process waits for its threads
            pool.shutdown(wait=False, cancel_futures=True)
        return
    with _client(scheduler) as client:
        executor = client.get_executor(pure=False)
        threads = sum(client.nthreads().values())
        if not threads:
            tell(f"{scheduler} has no worker yet: waiting for one")
        try:
            with _cluster_errors(scheduler, client):
                yield lambda *task: executor.submit(eval, ON_WORKER, {"task": task}), max(LEAST_AHEAD, AHEAD * threads)
        finally:
            executor.shutdown(wait=False)


@contextmanager
def _cluster_errors(scheduler: str, client: Any) -> Iterator[None]:
    """What goes wrong with a cluster as a PerfModelError; what goes wrong here, a full disk say, as it is."""
    from distributed import KilledWorker

    try:
        yield
    except KilledWorker as error:
        problem, mend = "one chunk was lost with several workers, one after the other", "Have they enough memory?"
        raise PerfModelError(problem, field="scheduler", value=scheduler, mend=f"{mend} {GO_ON}") from error
    except (CancelledError, ValueError) as error:
        # A future of Dask's fails to unpack its result where the scheduler has just gone.
        if isinstance(error, ValueError) and client.status == "running" and "unpack" not in str(error):
            raise
        raise PerfModelError("the cluster was lost", field="scheduler", value=scheduler, mend=f"Start it again. {GO_ON}") from error
    except (ImportError, AttributeError) as error:
        mend = f"Install the same perfmodel on every worker. {GO_ON}"
        raise PerfModelError(f"a worker cannot compute: {error}", field="scheduler", value=scheduler, mend=mend) from error


@contextmanager
def _client(scheduler: str) -> Iterator[Any]:
    """A connection to the scheduler at an address, or to `local:N` worker processes started for this."""
    Client, LocalCluster = _dask(scheduler)
    if scheduler.startswith(LOCAL):
        options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": CRITICAL}
        with LocalCluster(n_workers=_workers(scheduler), **options) as cluster, Client(cluster, set_as_default=False) as client:
            yield client
        return
    if not (found := ADDRESS.fullmatch(scheduler)) or not 0 < int(found[1]) < 2**16:  # dask hangs on what is no address
        raise PerfModelError("is no address of a Dask scheduler", field="scheduler", value=scheduler, mend=MEND)
    try:
        with ThreadPoolExecutor(1) as thread:  # a notebook has a loop running in this one
            thread.submit(asyncio.run, _knock(scheduler)).result()
        client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:  # a timeout is an OSError
        problem = f"no Dask scheduler answers: {' '.join(str(error).split())[:200] or 'something else does, or nothing'}"
        raise PerfModelError(problem, field="scheduler", value=scheduler, mend=f"Is it running there? {MEND}") from error
    with client:
        yield client


def _dask(scheduler: str) -> tuple[Any, Any]:
    """Client and LocalCluster. What they would log of a lost cluster, with tracebacks, an error of ours says in one line."""
    try:
        import dask

        with dask.config.set({"logging": {"distributed": "critical", "distributed.client": "critical"}}):
            from distributed import Client, LocalCluster
    except ImportError as error:
        mend = "Install the extra `cluster`: pip install 'perfmodel[cluster]'."
        raise MissingRequirementError("sweeping on a cluster needs dask", field="scheduler", value=scheduler, mend=mend) from error
    return Client, LocalCluster


async def _knock(scheduler: str) -> None:
    """Raise TimeoutError where something else listens, a dashboard or a web server: Dask's client would wait for its greeting for ever."""
    from distributed.comm import connect
    from distributed.security import Security

    found = connect(scheduler, timeout=CONNECT_SECONDS, **Security().get_connection_args("client"))
    await (await asyncio.wait_for(found, CONNECT_SECONDS)).close()


def _workers(scheduler: str) -> int:
    count = scheduler.removeprefix(LOCAL)
    if not (count.isascii() and count.isdigit() and len(count) < 5 and 1 <= int(count) <= MOST_WORKERS):
        mend = f"Write local:2, say, up to local:{MOST_WORKERS}."
        raise PerfModelError("needs a number of worker processes", field="scheduler", value=scheduler, mend=mend)
    return int(count)


def completed(submit: Submit, packed: bytes, spans: Mapping[int, tuple[int, int]], ahead: int) -> Iterator[tuple[int, bytes]]:
    """(number, part) of each of `spans` as they arrive, at most `ahead` handed out at once."""
    waiting = iter(spans.items())
    running: dict[Future[bytes], int] = {}

    def hand_out(count: int) -> None:
        running.update({submit(packed, *span): number for number, span in islice(waiting, count)})

    hand_out(ahead)
    while running:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            number = running.pop(future)
            hand_out(1)
            yield number, future.result()
