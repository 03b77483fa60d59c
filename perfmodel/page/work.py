"""Computing away from the event loop: few at a time, few waiting, and none for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Semaphore
from typing import TypeVar

from perfmodel.errors import PerfModelError

AT_ONCE, WAITING, LONGEST_S = 2, 16, 60.0
"""Computations at a time, those that may wait, and the seconds after which nobody waits for an answer any more."""

_pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="page")
_places = Semaphore(AT_ONCE + WAITING)
T = TypeVar("T")


async def compute(function: Callable[[], T]) -> T:
    """What `function` returns, from a thread. Raises what it raises, and PerfModelError where too much is asked at a time."""
    if not _places.acquire(blocking=False):
        raise PerfModelError("too many computations are asked for at the same time", mend="Try again in a few seconds.")
    future = _pool.submit(function)
    future.add_done_callback(lambda _: _places.release())  # when it ends, not when nobody waits any more
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), LONGEST_S)
    except TimeoutError:
        raise PerfModelError(f"took longer than {LONGEST_S:g} s", mend="Ask for less, or use the command line.") from None
