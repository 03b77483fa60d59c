"""The HTTP API against requests drawn from its own OpenAPI description, and from what is not in it."""

from contextlib import asynccontextmanager

import pytest

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.generation import GenerationMode  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from perfmodel.server.app import create_app  # noqa: E402

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
EXAMPLES = {"/v1/gap": 12, "/v1/predict": 12, "/v1/specs/validate": 12, "/v1/plan": 4, "/v1/simulate": 4}
FEW = 3
"""For endpoints without a body."""
KNOWN = {"model": "gpt-oss-20b", "gpu": "b200"}


@asynccontextmanager
async def lifespan_of_the_module(app):
    """The worker processes stay for all tests, whatever starts and stops the application in between."""
    yield


@pytest.fixture(scope="module")
def api():
    app = create_app()
    app.router.lifespan_context = lifespan_of_the_module
    yield schemathesis.openapi.from_asgi("/openapi.json", app)
    app.state.backend.close()


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_one_that_is_described(api, mode):
    for found in api.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not operation.body:
            continue  # there is nothing that an id may not be
        fuzz(operation, mode, EXAMPLES.get(operation.path, FEW))


def fuzz(operation, mode, examples: int) -> None:
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None,
        phases=[Phase.explicit, Phase.generate],
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans())
    def check(case, known):
        if known and isinstance(case.body, dict) and "spec" not in case.body:  # words drawn at random name no model
            case.body = {**case.body, **KNOWN}
        case.call_and_validate(checks=CHECKS)

    check()
