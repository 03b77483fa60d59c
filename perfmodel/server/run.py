"""The application on a socket, until a signal stops it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from copy import deepcopy
from time import monotonic
from typing import Any

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from perfmodel.server.app import create_app
from perfmodel.server.backend import Backend

REQUEST_S = 20.0
"""For a connection to bring the head of a request: without a limit, sockets that stay silent would use up all that there may be."""


class Silent:
    """Which connections have waited for a request for how long; uvicorn itself limits only the time between two requests."""

    def __init__(self) -> None:
        self._since: dict[Any, tuple[Any, float]] = {}

    def over(self, connections: Iterable[Any], now: float) -> list[Any]:
        """Those of `connections` that at `now`, in seconds, have waited for REQUEST_S. Web sockets, without a `cycle`, may be silent."""
        waiting = [one for one in connections if hasattr(one, "cycle") and (one.cycle is None or one.cycle.response_complete)]
        known = {one: self._since.get(one, (None, now)) for one in waiting}
        self._since = {one: (one.cycle, since if cycle is one.cycle else now) for one, (cycle, since) in known.items()}
        return [one for one, (_, since) in self._since.items() if now - since >= REQUEST_S]


class _Server(uvicorn.Server):
    """Closes connections that bring no request, and stops what is being computed before it waits for the answers."""

    def __init__(self, config: uvicorn.Config, backend: Backend) -> None:
        super().__init__(config)
        self._backend = backend
        self._silent = Silent()

    async def on_tick(self, counter: int) -> bool:
        """Every 0.1 s."""
        if counter % 10 == 0:
            for one in self._silent.over(self.server_state.connections, monotonic()):
                one.transport.close()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End requests, then connections, then the application."""
        stopping = asyncio.create_task(self._backend.stop())
        await super().shutdown(sockets)
        await stopping


def run(listening: socket.socket, *, limit_s: float, log: Callable[[str], None], stream: str) -> None:
    """Serve on `listening`; lines of the HTTP server go to `stream`, as a logging configuration names one."""
    app = create_app(log=log, limit_s=limit_s)
    config = uvicorn.Config(app, log_config=_log_config(stream), timeout_graceful_shutdown=1, server_header=False)
    _Server(config, app.state.backend).run(sockets=[listening])


def _log_config(stream: str) -> dict[str, Any]:
    config = deepcopy(LOGGING_CONFIG)
    for handler in config["handlers"].values():
        handler["stream"] = stream
    return config
