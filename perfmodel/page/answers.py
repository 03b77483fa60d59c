"""The calls behind the page: the same functions that the command line and the API call, with the page's words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perfmodel.api import gap
from perfmodel.errors import PerfModelError
from perfmodel.formats import format_ids, get_format
from perfmodel.hardware import GpuSpec
from perfmodel.hardware.catalog import gpu_ids
from perfmodel.page.inputs import check_kernel, check_routing, gpu_of, model_of, number, token_counts, whole
from perfmodel.page.state import YOURS, LayerState, ServiceState
from perfmodel.page.words import EDITED, said
from perfmodel.planning.results import PlanResult
from perfmodel.planning.search import plan
from perfmodel.profiles import profiles

MOST_GPU_KINDS, MOST_GPUS, MOST_TOKENS_EACH = 6, 1024, 2**20
"""Of one plan on the page: more is for the command line."""


class Offers(NamedTuple):
    """What runs on a GPU: formats, and kernels in the chosen format (in any, where none is chosen)."""

    formats: tuple[str, ...]
    kernels: tuple[str, ...]


def offers_of(state: LayerState, spec: str) -> Offers | None:
    """What the scenario's GPU runs; None where that GPU is none."""
    try:
        gpu = gpu_of(state.gpu, spec)
    except PerfModelError:
        return None
    formats = tuple(name for name in format_ids() if get_format(name).runs_on(gpu.math_types))
    wanted = state.format if state.format in formats else ""
    here = [p for p in profiles() if not p.ungated_only and any(gpu.architecture in fit.architectures for fit in p.fits)]
    return Offers(formats, tuple(p.id for p in here if not wanted or p.supports(gpu.architecture, wanted)))


def fitted(state: LayerState, offers: Offers) -> LayerState:
    """The scenario on another GPU: what does not run there gives way to the default."""
    left = {"format": state.format if state.format in offers.formats else ""}
    return replace(state, **left, kernel=state.kernel if state.kernel in offers.kernels else "auto")


def layer_gap(state: LayerState, spec: str, config: str) -> dict[str, Any]:
    """The object of `perfmodel.gap` for a scenario. Raises PerfModelError."""
    gpu = gpu_of(state.gpu, spec)
    result = gap(
        model_of(state.model, config), gpu, tokens=token_counts(state.tokens), format=state.format or None,
        kernel=check_kernel(state.kernel), routing=check_routing(state.routing), ep=whole(state.ep, "ep"), tp=whole(state.tp, "tp"),
        launch=state.launch, comm=state.comm,
    )  # fmt: skip
    return result | {"gpu": _own_name(gpu)} if state.gpu == YOURS else result


def service_plan(state: ServiceState, spec: str, config: str) -> PlanResult:
    """The object of `perfmodel.plan` for a service. Raises PerfModelError."""
    words = [word for word in state.gpu.split(",") if word]
    counts = {name: getattr(state, name) for name in ("isl", "osl", "gpus")}
    figures = {name: getattr(state, name) for name in ("ttft_ms", "tpot_ms", "rate")}
    options: dict[str, Any] = {name: whole(word, name) for name, word in counts.items() if word.strip()}
    _at_most("gpu", len(words), MOST_GPU_KINDS)
    _at_most("gpus", options.get("gpus", 1), MOST_GPUS)
    for name in ("isl", "osl"):
        _at_most(name, options.get(name, 1), MOST_TOKENS_EACH)
    options |= {name: number(word, name) for name, word in figures.items() if word.strip()}
    options |= {"format": (state.format or "auto",), "mode": state.mode}
    model, gpus = model_of(state.model, config), [gpu_of(word, spec) for word in words if word != YOURS]
    if YOURS not in words:
        return plan(model, gpus, **options)
    own = gpu_of(YOURS, spec)
    return _side_by_side([lambda: _named(own, plan(model, own, **options)), *([lambda: plan(model, gpus, **options)] if gpus else [])])


def _own_name(gpu: GpuSpec) -> str:
    """What the user's own GPU is called: its id is most often that of the bundled one it came from."""
    return gpu.id + EDITED if gpu.id in gpu_ids() else gpu.id


def _named(gpu: GpuSpec, result: PlanResult) -> PlanResult:
    """The plans and notes of the user's own GPU under the name that it has on the page."""
    name = _own_name(gpu)
    notes = tuple(re.sub(rf"(?<![\w-]){re.escape(gpu.id)}(?![\w-])", name, note) for note in result.notes)
    plans, pareto = (tuple(p.model_copy(update={"gpu": name}) for p in part) for part in (result.plans, result.pareto))
    return result.model_copy(update={"plans": plans, "pareto": pareto, "notes": notes})


def _side_by_side(searches: Sequence[Callable[[], PlanResult]]) -> PlanResult:
    """Several searches as one, best plans first; one that finds nothing becomes a note. Raises PerfModelError where none finds any."""
    found: list[PlanResult] = []
    problems: list[PerfModelError] = []
    for search in searches:
        try:
            found.append(search())
        except PerfModelError as error:
            problems.append(error)
    if not found:
        raise problems[0]
    plans = sorted((p for result in found for p in result.plans), key=lambda p: -p.tokens_per_s_per_gpu)
    notes = [*(note for result in found for note in result.notes), *map(said, problems)]
    return found[0].model_copy(update={
        "searched": sum(result.searched for result in found), "plans": tuple(plans), "limits": (),
        "pareto": tuple(p for result in found for p in result.pareto), "notes": tuple(dict.fromkeys(notes)),
    })  # fmt: skip


def _at_most(field: str, value: int, most: int) -> None:
    if value > most:
        mend = f"Give at most {most:,}, or use the command line."
        raise PerfModelError("is more than this page computes", field=field, value=value, mend=mend)
