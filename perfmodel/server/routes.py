"""The endpoints of /v1: what OpenAPI says of each, and which lane answers."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel

from perfmodel.gap_result import GapResult
from perfmodel.hardware.schema import schema_text
from perfmodel.planning.results import PlanResult
from perfmodel.server.backend import Backend
from perfmodel.server.limits import SMALL_SPEC
from perfmodel.server.openapi import request_body
from perfmodel.server.problem import Problem
from perfmodel.server.specs import SpecResult
from perfmodel.serving.predict import StepResult

TAGS = [
    {"name": "questions", "description": "POST a question, get the JSON object of the command of the same name."},
    {"name": "catalogue", "description": "What ids there are, with all their numbers and where these come from."},
    {"name": "server", "description": "The server itself."},
]
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The body was cut off."},
    408: {"model": Problem, "description": "The body came too slowly."},
    413: {"model": Problem, "description": "The body is too large."},
    422: {"model": Problem, "description": "A mistake in the request: the message of the command, the field, the value and the mend."},
    500: {"model": Problem, "description": "An error of the server's own, which its log names."},
    503: {"model": Problem, "description": "Too many requests wait already, or the server is stopping: try again later."},
    504: {"model": Problem, "description": "Not done within the time limit: ask for less."},
}
FAILURES: dict[int | str, dict[str, Any]] = {status: REFUSALS[status] for status in (500, 503, 504)}
MISSING: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "No such id; the message names near ones."}}


class Health(BaseModel):
    """The server is there."""

    status: str
    version: str


class SimulationResult(BaseModel):
    """The JSON object of `perfmodel simulate`: what is named here and more."""

    model_config = {"extra": "allow"}

    completed: int
    ttft_ms: dict[str, float]
    """p50, p90, p99 and mean of the time to the first token."""
    tpot_ms: dict[str, float] | None
    """Of the time for each token after the first."""
    latency_ms: dict[str, float]
    tokens_per_s: float
    notes: list[str]
    curve: list[dict[str, Any]] | None = None
    """With several `rates`: a point for each."""


def add_routes(app: FastAPI, backend: Backend) -> None:
    """Add /health and /v1."""

    @app.get("/health", tags=["server"], summary="Whether the server is there", response_model=Health)
    async def health() -> Health:
        return Health(status="ok", version=app.version)

    _add_questions(app, backend)
    _add_catalogue(app, backend)


def _answers(model: Any, description: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model, "description": description}, **REFUSALS}


def _add_questions(app: FastAPI, backend: Backend) -> None:
    def question(path: str, name: str, body: str, result: Any, summary: str, description: str, *, slow: bool) -> None:
        async def endpoint(request: Request) -> Response:
            return await backend.answer(name, request, slow=slow)

        app.add_api_route(
            path, endpoint, methods=["POST"], tags=["questions"], summary=summary, description=description, name=name,
            responses=_answers(result, summary), openapi_extra=request_body(body), response_class=Response,
        )  # fmt: skip

    question(
        "/v1/gap", "gap", "GapRequest", GapResult, "The gap between the peak and one MoE layer",
        "Every lost microsecond with its cause, a row a token count: the JSON object of `perfmodel gap --json`.", slow=False,
    )  # fmt: skip
    question(
        "/v1/predict", "predict", "PredictRequest", StepResult | GapResult, "A step of a whole model, or a layer, op by op",
        "With `tokens` one MoE layer, as `perfmodel predict MODEL --tokens`; without a decode or prefill step of the whole model.",
        slow=False,
    )  # fmt: skip
    question(
        "/v1/plan", "plan", "PlanRequest", PlanResult, "The best ways to serve a model within limits",
        "Searches GPUs, formats, parallelism and batches: the JSON object of `perfmodel plan --json`.", slow=True,
    )  # fmt: skip
    question(
        "/v1/simulate", "simulate", "SimulationRequest", SimulationResult, "A serving engine, request by request",
        "Percentiles of what clients see: the JSON object of `perfmodel simulate --json`. Traces are for the command line.", slow=True,
    )  # fmt: skip

    @app.post(
        "/v1/specs/validate", tags=["questions"], summary="What is wrong with a GPU specification", response_class=Response,
        responses=_answers(SpecResult, "The mistakes, or the GPU"), openapi_extra=request_body("SpecRequest", yaml=True),
    )  # fmt: skip
    async def validate(request: Request) -> Response:
        """A whole specification (YAML as the body, as text, or an object), or a diff or changes of a bundled GPU. Nothing is stored.

        Status 200 also for a specification with mistakes: `ok` is false then, and `errors` name line, field, value and mend of each.
        """
        yaml = request.headers.get("content-type", "").lower().startswith(("application/yaml", "application/x-yaml", "text/"))
        return await backend.answer("validate_yaml" if yaml else "validate", request, small=SMALL_SPEC)


def _add_catalogue(app: FastAPI, backend: Backend) -> None:
    def one(path: str, name: str, summary: str) -> None:
        async def endpoint(id: str) -> Response:
            return await backend.lookup(name, id)

        app.add_api_route(
            path, endpoint, tags=["catalogue"], summary=summary, name=name, response_class=Response,
            responses={**_answers(dict[str, Any], summary), **MISSING},
        )  # fmt: skip

    def several(path: str, name: str, summary: str) -> None:
        async def endpoint() -> Response:
            return await backend.lookup(name)

        app.add_api_route(
            path, endpoint, tags=["catalogue"], summary=summary, name=name, response_class=Response,
            responses={200: {"model": dict[str, Any], "description": summary}, **FAILURES},
        )  # fmt: skip

    several("/v1/gpus", "gpus", "All bundled GPUs with the source and status of every number")
    one("/v1/gpus/{id}", "gpu", "One bundled GPU")
    several("/v1/models", "models", "All bundled models")
    one("/v1/models/{id}", "model", "One bundled model")
    several("/v1/profiles", "profiles", "All kernel profiles with their parameters and provenance")

    @app.get(
        "/v1/specs/schema", tags=["catalogue"], summary="The JSON schema of a GPU specification", response_class=Response,
        responses={200: {"model": dict[str, Any], "description": "The schema"}},
    )  # fmt: skip
    async def schema() -> Response:
        return Response(schema_text(), media_type="application/json")
