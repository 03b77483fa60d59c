"""A simulation pulled to a user's own measurements: decode steps by those of TPOT, prompts and what surrounds them by those of TTFT."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.hardware import GpuSpec
from perfmodel.serving.anchored import Anchored, Configuration, predicted
from perfmodel.serving.anchoring import Anchoring
from perfmodel.serving.anchors import Anchor
from perfmodel.serving.formats import precision_of
from perfmodel.simulation.deploy import Instances
from perfmodel.simulation.load import Load
from perfmodel.simulation.request import SimulationRequest
from perfmodel.workload.model import ModelSpec

ROUNDS = 12
"""Of the search for the requests at a time that a rate means."""


def anchoring(
    held: Anchored,
    request: SimulationRequest,
    model: ModelSpec,
    gpu: GpuSpec,
    form: str,
    load: Load,
    sides: tuple[Instances | None, Instances],
) -> Anchoring:
    """The pull of the measurements on a service of these sides: (of prompts, of decode)."""
    prefill, decoding = sides
    prompt, output = float(load.lengths.prompt.mean()), float(load.lengths.output.mean())
    apart = (prefill.parallel, decoding.count, prefill.count) if prefill else ()
    clients = _clients(request, model, gpu, form, load, sides) / (1 if prefill else decoding.count)
    return held.pulls(Configuration(precision_of(form), decoding.parallel, *apart), clients, prompt + output / 2, prompt)[1]


def pulled(some: Instances, told: Anchoring) -> Instances:
    """The instances with their times pulled."""
    deployment = some.deployment
    around = deployment.engine
    engine = replace(around, first_us=around.first_us * told.ttft, transfer_us=around.transfer_us * told.ttft)
    of = deployment.factor
    return replace(some, deployment=replace(deployment, engine=engine, factor=of * told.tpot, prompt_factor=of * told.ttft))


def _clients(
    request: SimulationRequest, model: ModelSpec, gpu: GpuSpec, form: str, load: Load, sides: tuple[Instances | None, Instances]
) -> float:
    """Requests at a time: those of the closed loop, or by Little's law rate x latency of the steady state, no more than may run."""
    if request.concurrency is not None:
        return float(request.concurrency)
    prefill, decoding = sides
    span = float(load.arrival[-1] - load.arrival[0])
    rate = request.rate if request.rate is not None else load.arrival.size / span if span > 0 else float("inf")
    most = request.max_sequences * decoding.count
    isl, osl = (max(round(float(values.mean())), 1) for values in (load.lengths.prompt, load.lengths.output))
    first = {f"prefill_{name}": value for name, value in vars(prefill.parallel).items()} if prefill else {}
    first |= {"prefill_instances": prefill.count} if prefill else {}
    load_ = {"model": model.id, "gpu": gpu.id, "isl": isl, "osl": osl, "concurrency": 1, "tpot_ms": 1.0, "mode": request.mode}
    probe = Anchor.model_validate({**load_, "instances": decoding.count, **vars(decoding.parallel), **first})
    clients = 1.0
    for _ in range(ROUNDS):
        ttft, tpot = predicted(probe.model_copy(update={"concurrency": max(round(clients), 1)}), model, gpu, form, request.backend)
        clients = min(max(0.5 * (clients + rate * (ttft + osl * tpot)), 1.0), float(most))
    return clients
