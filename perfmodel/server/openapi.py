"""What OpenAPI says of the requests: the schemas of the library's own types, without what is not for other machines."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from perfmodel.gap_request import GapRequest
from perfmodel.planning.request import PlanRequest
from perfmodel.server import limits
from perfmodel.server.inputs import FILES, MOST_CHANGES
from perfmodel.server.specs import SpecRequest
from perfmodel.serving.predict import StepRequest
from perfmodel.simulation.request import SimulationRequest

Schema = dict[str, Any]
MODEL: Schema = {
    "anyOf": [{"type": "string", "maxLength": 400}, {"type": "object"}],
    "description": "Bundled id (GET /v1/models), `layer:hidden=..,inter=..,experts=..,topk=..`, or the object of a config.json.",
}
GPU: Schema = {
    "anyOf": [{"type": "string", "maxLength": 400}, {"type": "object"}],
    "description": "Bundled id (GET /v1/gpus), or a whole specification as an object (GET /v1/specs/schema).",
}
CHANGES: Schema = {
    "type": "array", "items": {"type": "string"}, "maxItems": MOST_CHANGES, "default": [],
    "description": 'What-ifs on the GPU, such as "memory.bandwidth_GBps=9600".',
}  # fmt: skip
RATES: Schema = {
    "type": "array", "items": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e9}, "maxItems": limits.MOST_RATES, "default": [],
    "description": "Several rates in place of `rate`: the answer then has a `curve`.",
}  # fmt: skip
GAP = {"model": "gpt-oss-20b", "gpu": "b200", "format": "nvfp4", "tokens": [1, 64, 4096]}
CHANGED = {"model": "deepseek-v3", "gpu": "h200", "tokens": [256], "ep": 8, "changes": ["memory.bandwidth_GBps=9600"]}
STEP = {"model": "deepseek-v3", "gpu": "h200", "phase": "decode", "batch": 64, "context": 4096, "tp": 8}
PLAN = {"model": "gpt-oss-120b", "gpu": ["h200", "b200"], "gpus": 8, "isl": 1024, "osl": 1024, "tpot_ms": 20}
SIMULATION = {"model": "qwen3-30b-a3b", "gpu": "h100", "gpus": 2, "rate": 8, "isl": 1000, "osl": 200}
EXAMPLES: dict[str, dict[str, Any]] = {
    "GapRequest": {"three token counts": GAP, "a what-if": CHANGED},
    "PredictRequest": {"a decode step": STEP, "a layer, op by op": {**GAP, "tokens": [64]}},
    "PlanRequest": {"two GPUs within a limit": PLAN},
    "SimulationRequest": {"Poisson arrivals": SIMULATION},
    "SpecRequest": {
        "changes of a bundled GPU": {"gpu": "b200", "changes": ["memory.bandwidth_GBps=9600"]},
        "a diff of fields": {"gpu": "b200", "diff": {"memory": {"bandwidth_GBps": 9600}}},
    },
}


def request_body(name: str, *, yaml: bool = False) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is the schema `name`."""
    examples = {title: {"value": value} for title, value in EXAMPLES[name].items()}
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}, "examples": examples}}
    if yaml:
        content["application/yaml"] = {"schema": {"type": "string", "description": "The specification itself."}}
    return {"requestBody": {"required": True, "content": content}}


def describe(app: FastAPI) -> None:
    """Let `app.openapi()` hold the schemas of the requests."""

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags
            )
            schema.setdefault("components", {}).setdefault("schemas", {}).update(request_schemas())
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def request_schemas() -> dict[str, Schema]:
    """The schemas of all request bodies by name."""
    several = {
        "anyOf": [GPU, {"type": "array", "items": GPU, "minItems": 1, "maxItems": limits.MOST_KINDS}],
        "description": GPU["description"],
    }
    gap, step = _schema(GapRequest), _schema(StepRequest)
    formats = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": limits.MOST_FORMATS}]
    }
    return {
        "GapRequest": gap,
        "StepRequest": step,
        "LayerRequest": {**gap, "required": ["model", "gpu", "tokens"], "title": "LayerRequest"},
        "PredictRequest": {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("StepRequest", "LayerRequest")]},
        "PlanRequest": _schema(PlanRequest, limits.MOST_PLANNED, gpu=several, format=formats),
        "SimulationRequest": _schema(SimulationRequest, limits.MOST_SIMULATED, rates=RATES),
        "SpecRequest": SpecRequest.model_json_schema(),
    }


def _schema(kind: type[BaseModel], most: dict[str, int] | None = None, **more: Schema) -> Schema:
    """The schema of a request type as HTTP takes it: model and GPU by id or in full, no files, the server's limits."""
    schema = kind.model_json_schema()
    schema.pop("$defs", None)
    fields = {name: field for name, field in schema["properties"].items() if name not in FILES}
    for name, value in more.items():
        default = {"default": fields[name]["default"]} if "default" in fields.get(name, {}) else {}
        described = {"description": fields[name]["description"]} if "description" in fields.get(name, {}) and name != "gpu" else {}
        fields[name] = {**value, **described, **default}
    if "routing" in fields:
        fields["routing"] = {**fields["routing"], "description": fields["routing"]["description"].replace(", counts:FILE", "")}
    first = {"model": MODEL, "gpu": more.get("gpu", GPU)}
    schema["properties"] = {**first, **{n: f for n, f in fields.items() if n not in first}, "changes": CHANGES}
    schema["required"] = list(dict.fromkeys(["model", "gpu", *schema.get("required", [])]))
    for name, limit in (most or {}).items():
        field = schema["properties"][name]
        number = next((part for part in field.get("anyOf", [field]) if part.get("type") == "integer"), field)
        number["maximum"] = limit
    return schema
