"""How fast the model itself answers: vectorised MoE-layer predictions per second on a grid of real shapes."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from perfmodel.latency import moe_latency
from perfmodel.workload import load_model, model_ids

GPUS = ("h200", "b200")
FORMAT = {"h200": "bf16", "b200": "nvfp4"}
KERNEL = "trtllm-cutlass"
TOKENS = 2_000
"""Token counts per shape and expert-parallel size, spread evenly on a log scale from 1 to 16,384."""


def real_grid() -> dict[str, np.ndarray]:
    """Shapes of the bundled MoE models x expert parallelism that divides their experts x token counts, flat columns."""
    shapes = []
    for name in model_ids():
        layer = load_model(name).moe
        if layer is not None and layer.gated:
            shapes += [(layer.width, layer.inter, layer.experts, layer.topk, ep) for ep in (1, 2, 4, 8) if layer.experts % ep == 0]
    unique = np.array(sorted(set(shapes)))
    tokens = np.rint(np.geomspace(1, 16_384, TOKENS)).astype(int)
    columns = {name: np.repeat(unique[:, i], TOKENS) for i, name in enumerate(("hidden", "inter", "experts", "topk", "ep"))}
    return {**columns, "tokens": np.tile(tokens, len(unique))}


def predictor(repeats: int = 3) -> dict[str, Any]:
    """Predictions per second, the best of `repeats` passes over the grid on each GPU (the first call, which loads files, apart)."""
    grid: dict[str, Any] = real_grid()
    size = grid["tokens"].size
    per_gpu = {}
    for gpu in GPUS:
        moe_latency(gpu, **{name: column[:100] for name, column in grid.items()}, format=FORMAT[gpu], kernel=KERNEL)
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            moe_latency(gpu, **grid, format=FORMAT[gpu], kernel=KERNEL)
            seconds.append(time.perf_counter() - start)
        per_gpu[gpu] = size / min(seconds)
    return {
        "predictions_per_s": min(per_gpu.values()),
        "by_gpu": per_gpu,
        "rows": size,
        "kernel": KERNEL,
        "routing": "uniform",
        "cores": os.cpu_count(),
    }
