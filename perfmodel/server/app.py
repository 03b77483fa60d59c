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
from perfmodel.server.openapi import describe
from perfmodel.server.pages import docs_page, index_page
from perfmodel.server.problem import Problem, RefusedError, refused
from perfmodel.server.routes import TAGS, add_routes

JSON = "application/json"
DESCRIPTION = """Where the FLOPS of a Mixture-of-Experts layer go, microsecond by microsecond, and how to serve a whole model.

Requests and results are those of the Python API and of `perfmodel ... --json`. A model is a bundled id or the object of a `config.json`, a
GPU is a bundled id or a whole specification; no string of a request is ever taken for the name of a file. Mistakes come back as 422 with
the command's message, the field, the value and the mend."""


def create_app(*, log: Callable[[str], None] = lambda line: None, limit_s: float = 30.0) -> FastAPI:
    """The application: API, and the page where there is one. `limit_s` is the longest that a plan or a simulation may take.

    `log` receives lines for the operator. Call `app.state.backend.close()` where the application's lifespan is not run.
    """
    backend = Backend(log=log, limit_s=limit_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        backend.warm()
        yield
        await asyncio.to_thread(backend.close)

    app = FastAPI(
        title="perfmodel", version=version("perfmodel"), description=DESCRIPTION, openapi_tags=TAGS, lifespan=lifespan,
        docs_url=None, redoc_url=None,  # FastAPI's own pages load their scripts from elsewhere
    )  # fmt: skip
    app.state.backend = backend
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(Exception, lambda request, error: _own_fault(error, log))
    add_routes(app, backend)
    describe(app)
    _add_pages(app)
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    mend = "GET /openapi.json lists what there is." if error.status_code in (404, 405) else None
    message = f"{request.method} {request.url.path[:200]}: {str(error.detail).lower()}"
    problem = Problem(message=f"{message}. {mend}" if mend else message, mend=mend)
    return Response(problem.model_dump_json(), error.status_code, error.headers, JSON)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    status, body = refused(error)
    return Response(body, status, {"retry-after": "2"} if status == 503 else None, JSON)


def _own_fault(error: Exception, log: Callable[[str], None]) -> Response:
    log(f"error: {type(error).__name__}: {str(error)[:200]}")
    return Response(Problem(message="an error of the server's own; its log says more").model_dump_json(), 500, None, JSON)


def _add_pages(app: FastAPI) -> None:
    """The reference of the API, and the page where its packages are installed; else a plain one that leads to the reference."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    if find_spec("perfmodel.page") is not None and find_spec("nicegui") is not None:
        import_module("perfmodel.page").add_page(app)
        return

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(index_page(app.version))
