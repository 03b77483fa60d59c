"""Where chunks are computed: threads of this process, or the workers of a Dask cluster. Both are executors of concurrent.futures."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from typing import Any

from perfmodel.errors import MissingRequirementError, PerfModelError

MOST_THREADS = 16
AHEAD = 4
"""Chunks handed out for each thread: enough that none waits, few enough that results do not pile up."""
CONNECT_SECONDS = 15
ADDRESS = re.compile(r"(?:(?:tcp|tls|ucx|ws|wss)://)?(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})")
MEND = "Give its address, such as tcp://host:8786, or local:2 for two worker processes here."
LOCAL = "local:"
MOST_WORKERS = 256


@contextmanager
def open_executor(scheduler: str | None, tell: Callable[[str], None]) -> Iterator[tuple[Executor, int]]:
    """An executor, and how many chunks to hand it at once. At the end, or on an error, what has not begun is dropped."""
    if scheduler is None:
        threads = min(os.cpu_count() or 1, MOST_THREADS)
        pool = ThreadPoolExecutor(threads)
        try:
            yield pool, 2 * threads
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return
    with _client(scheduler) as client:
        yield from _lent(client, scheduler, tell)


def _lent(client: Any, scheduler: str, tell: Callable[[str], None]) -> Iterator[tuple[Executor, int]]:
    """The client's executor; a cluster that is lost becomes a PerfModelError."""
    from distributed import KilledWorker

    threads = sum(client.nthreads().values())
    if not threads:
        tell(f"{scheduler} has no worker yet: waiting for one")
    executor = client.get_executor(pure=False)
    try:
        yield executor, max(64, AHEAD * threads)
    except KilledWorker as error:
        problem = "one chunk was lost with several workers, one after the other"
        raise PerfModelError(problem, field="scheduler", value=scheduler, mend=f"Have they enough memory? {GO_ON}") from error
    except (CancelledError, OSError) as error:
        if client.status == "running" and not isinstance(error, CancelledError):
            raise  # a file of ours, not the cluster
        raise PerfModelError("the cluster was lost", field="scheduler", value=scheduler, mend=f"Start it again. {GO_ON}") from error
    finally:
        executor.shutdown(wait=False)


GO_ON = "Finished chunks are kept: the same command goes on."


@contextmanager
def _client(scheduler: str) -> Iterator[Any]:
    """A connection to the scheduler at an address, or to `local:N` worker processes started for this."""
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        mend = "Install the extra `cluster`: pip install 'perfmodel[cluster]'."
        raise MissingRequirementError("sweeping on a cluster needs dask", field="scheduler", value=scheduler, mend=mend) from error
    if scheduler.startswith(LOCAL):
        workers = _workers(scheduler)
        with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
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


def completed(executor: Executor, work: Callable[[int], tuple[Any, ...]], numbers: Iterable[int], ahead: int) -> Iterator[tuple[int, Any]]:
    """(number, result) in the order in which they arrive, at most `ahead` handed out at once. `work(number)` is the call to submit."""
    waiting = iter(numbers)
    running: dict[Future[Any], int] = {}

    def hand_out(count: int) -> None:
        running.update({executor.submit(*work(number)): number for number in islice(waiting, count)})

    hand_out(ahead)
    while running:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            number = running.pop(future)
            hand_out(1)
            yield number, future.result()
