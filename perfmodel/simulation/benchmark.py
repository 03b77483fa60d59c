"""How fast the simulation is."""

from __future__ import annotations

import time
from typing import Any

from perfmodel.simulation.run import simulate

REQUESTS = 1_000_000


def simulator(requests: int = REQUESTS) -> dict[str, Any]:
    """Seconds for so many requests of random lengths at two instances near their limit; compiling, and a first small run, apart."""
    load: dict[str, Any] = {"gpus": 4, "tp": 2, "rate": 36.0, "isl": 1000, "osl": 200, "lengths": "lognormal:0.5", "seed": 1}
    start = time.perf_counter()
    simulate("qwen3-30b-a3b", "h100", requests=100, **load)
    compiled = time.perf_counter() - start
    start = time.perf_counter()
    result = simulate("qwen3-30b-a3b", "h100", requests=requests, **load)
    seconds = time.perf_counter() - start
    figures = {name: result[name] for name in ("completed", "ttft_ms", "tpot_ms", "utilisation")}
    return {"requests": requests, "seconds": seconds, "requests_per_s": requests / seconds, "first_run_s": compiled, "result": figures}
