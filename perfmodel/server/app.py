"""The HTTP application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from perfmodel.server.backend import Backend
from perfmodel.server.problem import Problem, Refusal, refused

JSON = "application/json"


def create_app(*, log: Callable[[str], None] = lambda line: None, limit_s: float = 30.0) -> FastAPI:
    """The application: API, and the page where there is one. `limit_s` is the longest that a plan or a simulation may take.

    `log` receives lines for the operator. Close `app.state.backend` where the application's lifespan is not run.
    """
    backend = Backend(log=log, limit_s=limit_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        backend.warm()
        yield
        await asyncio.to_thread(backend.close)

    app = FastAPI(title="perfmodel", version=version("perfmodel"), docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.backend = backend
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Refusal, _refused)
    _add_routes(app, backend)
    _add_page(app)
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    problem = Problem(message=str(error.detail), mend="GET /openapi.json lists what there is." if error.status_code == 404 else None)
    return Response(problem.model_dump_json(), error.status_code, error.headers, JSON)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    status, body = refused(error)
    return Response(body, status, {"retry-after": "2"} if status == 503 else None, JSON)


def _add_routes(app: FastAPI, backend: Backend) -> None:
    @app.get("/health", summary="Whether the server is there")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/gap")
    async def gap(request: Request) -> Response:
        return await backend.answer("gap", request)


def _add_page(app: FastAPI) -> None:
    """The page where its package is installed, else a plain one."""
    if find_spec("perfmodel.page") is not None and find_spec("nicegui") is not None:
        import_module("perfmodel.page").add_page(app)
        return

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse("<!doctype html><html><title>perfmodel</title><h1>perfmodel</h1><a href='/openapi.json'>API</a></html>")
