"""Between HTTP and the lanes: bodies of bounded size in, JSON out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from perfmodel.server.lane import Lane
from perfmodel.server.limits import MOST_BODY, SMALL_BODY
from perfmodel.server.problem import RefusedError

DRAINED = 64 * 2**20
"""Bytes of a body that are read only to be thrown away: a client that is still sending does not see an answer."""
BODY_S = 20.0
WAIT_S = 60.0
"""For a worker to be free."""
LAST_S = 0.3
"""For small questions to be answered before the server stops."""
MOST_KEPT = 256
"""Answers to GET requests."""


class Backend:
    """Two lanes: small questions, many together in one process; those that take long, one by one."""

    def __init__(self, *, log: Callable[[str], None], limit_s: float) -> None:
        cores = os.cpu_count() or 1
        self._wait_s = WAIT_S + 2 * limit_s
        self._quick = Lane(workers=max(1, min(4, cores // 2)), together=64, waiting=512, limit_s=min(10.0, limit_s), log=log)
        self._slow = Lane(workers=max(1, min(2, cores)), together=1, waiting=16, limit_s=limit_s, nice=5, log=log)
        self._kept: dict[str, bytes] = {}

    def warm(self) -> None:
        """Start the process of the quick lane."""
        self._quick.submit("gpus", b"")

    async def stop(self) -> None:
        """End what takes long at once, the rest when it has had a moment to be done: requests are answered, if only with 503."""
        await asyncio.to_thread(self._slow.close)
        await asyncio.sleep(LAST_S)
        await asyncio.to_thread(self._quick.close)

    def close(self) -> None:
        """End all processes."""
        self._quick.close()
        self._slow.close()

    async def answer(self, name: str, request: Request, *, slow: bool = False, small: int = SMALL_BODY) -> Response:
        """The answer to a POST request. Raises RefusedError.

        A body of up to `small` bytes is answered together with others, unless the question is a `slow` one.
        """
        body = await read_body(request)
        if slow or len(body) > small:
            return await self._ask(self._slow, name, body, asyncio.create_task(_left(request)))
        return await self._ask(self._quick, name, body)

    async def lookup(self, name: str, id: str = "") -> Response:
        """What a GET request asks for: it never changes, so it is kept."""
        key = f"{name} {id}"
        if key in self._kept:
            return Response(self._kept[key], media_type="application/json")
        response = await self._ask(self._quick, name, id.encode(errors="replace"))
        if response.status_code == 200 and len(self._kept) < MOST_KEPT:
            self._kept[key] = bytes(response.body)
        elif response.status_code == 422:
            response.status_code = 404
        return response

    async def _ask(self, lane: Lane, name: str, body: bytes, left: asyncio.Task[None] | None = None) -> Response:
        """The lane's answer, unless it does not come, or the client `left` before."""
        try:
            future = lane.submit(name, body)
            answered = asyncio.wrap_future(future)
            ends: set[asyncio.Future[Any]] = {answered} if left is None else {answered, left}
            await asyncio.wait(ends, timeout=self._wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if left is not None:
                left.cancel()
        if not answered.done():
            await asyncio.to_thread(lane.abandon, future)
            raise RefusedError(503, "too many requests wait already", "Try again in a minute.")
        status, answer = answered.result()
        return Response(answer, status, media_type="application/json")


async def _left(request: Request) -> None:
    """Return when the client of a request whose body was read has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request) -> bytes:
    """The body. Raises RefusedError for one that is too large, or too slow to come."""
    too_large = RefusedError(413, f"the body is larger than {MOST_BODY >> 10} KiB", "Ask for less at a time.")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > DRAINED:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                size += len(part)
                if size <= MOST_BODY:
                    parts.append(part)
                elif size > DRAINED:
                    break
    except TimeoutError:
        raise RefusedError(408, f"the body did not come within {BODY_S:g} s", "Send it at once.") from None
    except ClientDisconnect:
        raise RefusedError(400, "the body was cut off", "Send it whole.") from None
    if size > MOST_BODY:
        raise too_large
    return b"".join(parts)
