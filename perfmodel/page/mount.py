"""NiceGUI under an application of ours, which keeps its own paths, errors and refusals."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from nicegui import core, ui
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from perfmodel.page import view as view  # registers the page at /

BETWEEN_S = 0.005
OWN_PATHS = ("/_nicegui/", "/_nicegui_ws/", "/favicon.ico")
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#1c5d99"/>'
    '<path d="M6 25V7h4v18zM13 25V13h4v12zM20 25v-6h6v6z" fill="#fff"/></svg>'
)


class PageMount(Mount):
    """Matches the page and what it loads, nothing else: other unknown paths stay the application's."""

    def __init__(self, path: str, app: ASGIApp) -> None:
        super().__init__(path, app)
        self._turn = asyncio.Lock()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """No match for paths that are not the page's."""
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if path in ("", "/") or path.startswith(OWN_PATHS):
            return super().matches(scope)
        return Match.NONE, {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Draw pages one by one, with a moment for all other requests before each: drawing takes the event loop for tens of ms."""
        if scope["type"] == "http" and not scope.get("path", "").removeprefix(scope.get("root_path", "")).startswith(OWN_PATHS):
            async with self._turn:
                await asyncio.sleep(BETWEEN_S)
        await super().handle(scope, receive, send)


def mount(app: FastAPI) -> None:
    """Serve the page at `/` of `app`."""
    core.app.middleware_stack = None  # of an earlier application in this process
    core.app.user_middleware.clear()
    ui.run_with(
        app, title="perfmodel", favicon=ICON, dark=None, language="en-US", tailwind=False, show_welcome_message=False, reconnect_timeout=30
    )
    app.routes[-1] = PageMount("/", core.app)
