"""Where the FLOPS of a Mixture-of-Experts layer go, microsecond by microsecond, and what would change it.

import perfmodel
result = perfmodel.gap("gpt-oss-20b", "b200", format="nvfp4", tokens=[64, 4096])
print(result["rows"][0]["losses"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.api import gap as gap
    from perfmodel.errors import PerfModelError as PerfModelError
    from perfmodel.gap_request import GapRequest as GapRequest
    from perfmodel.gap_result import GapResult as GapResult
    from perfmodel.hardware import load_gpu as load_gpu
    from perfmodel.latency import moe_latency as moe_latency
    from perfmodel.planning.request import PlanRequest as PlanRequest
    from perfmodel.planning.results import PlanResult as PlanResult
    from perfmodel.planning.search import plan as plan
    from perfmodel.serving.anchors import Anchor as Anchor
    from perfmodel.serving.predict import StepRequest as StepRequest
    from perfmodel.serving.predict import StepResult as StepResult
    from perfmodel.serving.predict import predict as predict
    from perfmodel.simulation.run import simulate as simulate
    from perfmodel.sweeps.request import SweepRequest as SweepRequest
    from perfmodel.sweeps.request import SweepSummary as SweepSummary
    from perfmodel.sweeps.run import sweep as sweep
    from perfmodel.workload import load_model as load_model

_HOME = {
    "Anchor": "perfmodel.serving.anchors",
    "gap": "perfmodel.api",
    "moe_latency": "perfmodel.latency",
    "plan": "perfmodel.planning.search",
    "predict": "perfmodel.serving.predict",
    "StepRequest": "perfmodel.serving.predict",
    "StepResult": "perfmodel.serving.predict",
    "GapRequest": "perfmodel.gap_request",
    "GapResult": "perfmodel.gap_result",
    "PlanRequest": "perfmodel.planning.request",
    "PlanResult": "perfmodel.planning.results",
    "load_gpu": "perfmodel.hardware",
    "load_model": "perfmodel.workload",
    "simulate": "perfmodel.simulation.run",
    "sweep": "perfmodel.sweeps.run",
    "SweepRequest": "perfmodel.sweeps.request",
    "SweepSummary": "perfmodel.sweeps.request",
    "PerfModelError": "perfmodel.errors",
}
__all__ = [
    "Anchor", "GapRequest", "GapResult", "PerfModelError", "PlanRequest", "PlanResult", "StepRequest", "StepResult", "SweepRequest",
    "SweepSummary", "gap", "load_gpu", "load_model", "moe_latency", "plan", "predict", "simulate", "sweep",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: `import perfmodel` alone costs next to nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'perfmodel' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
