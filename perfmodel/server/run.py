"""The application on a socket, until a signal stops it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import uvicorn
from uvicorn.config import LOGGING_CONFIG

from perfmodel.server.app import create_app
from perfmodel.server.backend import Backend


class _Server(uvicorn.Server):
    """Stops what is being computed before it waits for the answers."""

    def __init__(self, config: uvicorn.Config, backend: Backend) -> None:
        super().__init__(config)
        self._backend = backend

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
