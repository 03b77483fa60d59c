"""The endpoints as functions of the body's bytes to status and JSON: what a worker process runs."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from perfmodel.api import gaps
from perfmodel.errors import PerfModelError
from perfmodel.gap_request import GapRequest
from perfmodel.hardware import gpu_ids
from perfmodel.planning.request import PlanRequest
from perfmodel.planning.search import search
from perfmodel.profiles import profiles
from perfmodel.report.gpus import gpu_data, gpus_data
from perfmodel.report.models import model_data
from perfmodel.server.inputs import INLINE_GPU, INLINE_MODEL, Body, changes_of, checked, gpu_of, model_of, need, read_object
from perfmodel.server.limits import check_plan, check_simulation
from perfmodel.server.problem import Answer, Problem, problem_of, to_json
from perfmodel.server.specs import validate_spec, validate_yaml
from perfmodel.serving.predict import StepRequest, as_json, predict_step
from perfmodel.simulation.run import simulate as run_simulation
from perfmodel.validated import validate
from perfmodel.workload import model_ids

Job = tuple[str, bytes]
"""An endpoint's name and the body."""


def answers(jobs: Sequence[Job], log: Callable[[str], None]) -> list[Answer]:
    """An answer for each job; gaps that differ in their tokens only are computed together, as exactly as each by itself."""
    found = _together([(at, raw) for at, (name, raw) in enumerate(jobs) if name == "gap"]) if len(jobs) > 1 else {}
    return [found[at] if at in found else _alone(name, raw, log) for at, (name, raw) in enumerate(jobs)]


def _together(jobs: list[tuple[int, bytes]]) -> dict[int, Answer]:
    """Answers by number to the gaps with which nothing is wrong."""
    groups: dict[str, list[tuple[int, GapRequest]]] = {}
    asked: dict[str, list[str]] = {}
    for at, raw in jobs:
        with suppress(Exception):  # it is told what is wrong when it is answered alone
            key, request, changes = _gap_request(read_object(raw))
            groups.setdefault(key, []).append((at, request))
            asked[key] = changes
    found: dict[int, Answer] = {}
    for key, members in groups.items():
        with suppress(Exception):
            results = gaps(members[0][1], [request.tokens for _, request in members])
            for (at, _), result in zip(members, results, strict=True):
                found[at] = 200, to_json({**result, "changes": asked[key]})
    return found


def _alone(name: str, raw: bytes, log: Callable[[str], None]) -> Answer:
    """200 with what the endpoint gives, 422 for a mistake of the user, 500 for one of ours, which goes into the log."""
    try:
        result = ENDPOINTS[name](raw)
        return 200, result if isinstance(result, bytes) else to_json(result)
    except PerfModelError as error:
        return 422, problem_of(error).model_dump_json().encode()
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        log(f"error: {name}: {type(error).__name__}: {str(error)[:200]} at {place.filename}:{place.lineno}")
        return 500, Problem(message="an error of the server's own; its log says more").model_dump_json().encode()


def _gap_request(data: Body) -> tuple[str, GapRequest, list[str]]:
    """(what must be the same to be computed together, the request, its what-ifs)."""
    data = checked(data)
    changes = changes_of(data)
    key = json.dumps({name: value for name, value in data.items() if name != "tokens"}, sort_keys=True)
    model, gpu = model_of(need(data, "model", INLINE_MODEL)), gpu_of(need(data, "gpu", INLINE_GPU), changes)
    return key, validate(GapRequest, {**data, "model": model, "gpu": gpu, "changes": ()}), list(changes)


def gap(raw: bytes) -> Body:
    """POST /v1/gap."""
    return _gap(read_object(raw))


def _gap(data: Body) -> Body:
    _, request, changes = _gap_request(data)
    return {**gaps(request, [request.tokens])[0], "changes": changes}


def predict(raw: bytes) -> Body:
    """POST /v1/predict: with `tokens` of a layer, without of a step of the whole model."""
    data = read_object(raw)
    if data.get("tokens") is not None:
        return {**_gap(data), "schema": "perfmodel.predict/1"}
    data = checked(data)
    changes = changes_of(data)
    gpu, model = gpu_of(need(data, "gpu", INLINE_GPU), changes), model_of(need(data, "model", INLINE_MODEL))
    result = predict_step(validate(StepRequest, {**data, "model": model, "gpu": gpu, "changes": ()}))
    return as_json(result.model_copy(update={"changes": changes}))


def plan(raw: bytes) -> bytes:
    """POST /v1/plan."""
    data = checked(read_object(raw))
    changes, given = changes_of(data), need(data, "gpu", INLINE_GPU)
    several = given if isinstance(given, list) else [given]
    check_plan(data, several)
    model = model_of(need(data, "model", INLINE_MODEL))
    gpus = tuple(gpu_of(gpu, changes) for gpu in several)
    request = validate(PlanRequest, {**data, "model": model, "gpu": gpus, "changes": ()})
    return search(request).model_copy(update={"changes": changes}).model_dump_json(by_alias=True).encode()


def simulate(raw: bytes) -> Body:
    """POST /v1/simulate."""
    data = checked(read_object(raw))
    changes = changes_of(data)
    check_simulation(data)
    gpu = gpu_of(need(data, "gpu", INLINE_GPU), changes)
    model = model_of(need(data, "model", INLINE_MODEL))
    options = {name: value for name, value in data.items() if name not in ("model", "gpu", "changes", "rates")}
    return {**run_simulation(model, gpu, rates=data.get("rates") or (), **options), "changes": list(changes)}


def gpus(raw: bytes) -> Body:
    """GET /v1/gpus."""
    return gpus_data([gpu_of(name) for name in gpu_ids()])


def gpu(raw: bytes) -> Body:
    """GET /v1/gpus/{id}; `raw` is the id."""
    return gpu_data(gpu_of(raw.decode()))


def models(raw: bytes) -> Body:
    """GET /v1/models."""
    return {"models": [model_data(model_of(name)) for name in model_ids()]}


def model(raw: bytes) -> Body:
    """GET /v1/models/{id}; `raw` is the id."""
    return model_data(model_of(raw.decode()))


def profile_list(raw: bytes) -> Body:
    """GET /v1/profiles."""
    return {"profiles": [profile.model_dump(mode="json") for profile in profiles()]}


ENDPOINTS: dict[str, Callable[[bytes], Any]] = {
    "gap": gap,
    "predict": predict,
    "plan": plan,
    "simulate": simulate,
    "validate": validate_spec,
    "validate_yaml": validate_yaml,
    "gpus": gpus,
    "gpu": gpu,
    "models": models,
    "model": model,
    "profiles": profile_list,
}
