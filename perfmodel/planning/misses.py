"""Why there is no plan: memory that lacks, or the nearest miss of the limits. Each a PerfModelError that says what to change."""

from __future__ import annotations

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.planning.candidates import Deployment, Table
from perfmodel.planning.services import UNITS, WORDS, Services, over
from perfmodel.planning.sizes import Kind
from perfmodel.serving.memory import USABLE, WORKSPACE
from perfmodel.units import GB
from perfmodel.workload.model import ModelSpec


def no_memory(model: ModelSpec, kinds: list[Kind], table: Table) -> PerfModelError:
    """No deployment holds the weights and one sequence."""
    kind = min(kinds, key=lambda k: k.weights / k.gpu.dram_capacity / k.instance)
    room = kind.gpu.dram_capacity * USABLE - WORKSPACE
    needed = int(np.ceil(kind.weights / max(room, 1.0)))
    has = f"{kind.instance} x {kind.gpu.dram_capacity / GB:,.0f} GB"
    problem = f"{model.id} in {kind.format} does not fit: {kind.weights / GB:,.0f} GB of weights, {has} on {kind.gpu.id}"
    if needed <= kind.instance:
        problem += ", and no way to share it that engines run leaves room for a sequence of this length"
    mend = f"Give --gpus {max(needed, 2 * kind.instance)} or more, GPUs with more memory, or a smaller --format or --kv-format."
    return PerfModelError(problem, field="gpus", mend=mend)


def no_plan(table: Table, found: Services, limits: dict[str, float]) -> PerfModelError:
    """Something fits, but nothing keeps the limits."""
    if not len(found):
        problem = "the instances that work together do not fit the GPUs, or prompts alone saturate them"
        return PerfModelError(problem, field="gpus", mend="Give more --gpus, another --mode, or a smaller load.")
    miss = nearest(table, found, limits)
    return PerfModelError(f"no plan keeps the limits: {miss}", mend="Loosen that limit, or give more or faster GPUs or a smaller format.")


def too_few(kinds: list[Kind]) -> PerfModelError:
    """No room for two instances that work together."""
    sizes = ", ".join(sorted({f"{kind.mixed:.0f} {kind.gpu.id}" for kind in kinds}))
    return PerfModelError(f"two instances that work together do not fit {sizes}", field="gpus", mend="Give more --gpus, or another --mode.")


def nearest(table: Table, found: Services, limits: dict[str, float]) -> str:
    """The nearest miss in words: the best value of a limit that nothing keeps, else the point that breaks the limits least."""
    for name, broken in over(found, limits).items():
        if broken.all():
            values = getattr(found, name)
            if np.isnan(values).all():
                return "the GPUs have no price, so none keeps the budget (--prices FILE adds one)"
            at = int(np.nanargmin(values))
            return f"the best {WORDS[name]} is {_with_unit(values[at], name)} with {place(table, found, at)}; the limit is {limits[name]:g}"
    excess = np.max([getattr(found, name) / limit for name, limit in limits.items()], axis=0)
    at = int(np.nanargmin(excess))
    said = [f"{WORDS[name]} {_with_unit(getattr(found, name)[at], name)} (limit {limit:g})" for name, limit in limits.items()]
    return f"each can be kept alone, not all together; the nearest is {place(table, found, at)} with {', '.join(said)}"


def _with_unit(value: float, name: str) -> str:
    return f"{value:,.3g}{UNITS[name]}"


def place(table: Table, found: Services, at: int) -> str:
    """A point in words, such as `tp 8 on 8 h200`."""
    points = found.points
    words = ways(table.deployments[int(points.decode[at])])
    if points.prefill[at] >= 0:
        first = ways(table.deployments[int(points.prefill[at])])
        words = f"{int(points.decoders[at])} x ({words}) behind {int(points.prefillers[at])} x ({first})"
    return f"{words} on {int(found.gpus[at])} {table.deployments[int(points.decode[at])].gpu.id}, batch {np.ceil(points.batch[at]):.0f}"


def ways(deployment: Deployment) -> str:
    """How an instance shares the model: `tp 8`, `tp 1 dp 16 ep 16`."""
    p = deployment.parallel
    parts = [("tp", p.tp), ("pp", p.pp), ("dp", p.dp), ("ep", p.ep)]
    return " ".join(f"{name} {count}" for name, count in parts if name == "tp" or count > 1)
