"""One grouped GEMM by one kernel, checked and timed: `perfmodel kernels run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.kernels import cubins, tiles, timing
from perfmodel.kernels.benchmark import contenders as make
from perfmodel.kernels.benchmark.contenders import Shape, parse_sizes
from perfmodel.kernels.benchmark.device import require_gpu
from perfmodel.kernels.grouped import pack
from perfmodel.kernels.synthetic import random_weights
from perfmodel.kernels.variants import find_variants
from perfmodel.kernels.weights import FORMATS

TOLERANCE = {"mxfp4-w4a16": 2e-3, "nvfp4-w4a16": 2e-3}
DEFAULT_TOLERANCE = 3e-3
"""||y - ref|| / ||ref|| that rounding explains: INT4 and NF4 in bf16, and E4M3 products."""
HOLD_S = 0.02


@dataclass(frozen=True)
class Task:
    """What to run."""

    shape: Shape
    tokens: int
    """Of each expert."""
    format: str
    kernel: str | None
    """None: what the table of tiles says."""


def make_task(shape: str, format_id: str | None, kernel: str | None) -> Task:
    """A task of what a user wrote; the format is the kernel's where only a kernel is named. Raises PerfModelError."""
    *sizes, tokens = parse_sizes(shape, ("experts", "n", "k", "tokens"))
    parsed = Shape(*sizes)
    if format_id is not None and format_id not in FORMATS:
        raise PerfModelError("no kernel takes this format", field="--format", value=format_id, mend=did_you_mean(format_id, FORMATS))
    if kernel is None:
        return Task(parsed, tokens, format_id or FORMATS[0], None)
    (variant,) = find_variants([kernel])
    if variant.kind not in ("mma", "decode", "wgmma"):
        raise PerfModelError("is no grouped GEMM on tensor cores", field="--kernel", value=kernel, mend="Choose another kind.")
    if format_id not in (None, *variant.formats):
        raise PerfModelError(f"takes {variant.formats[0]}", field="--kernel", value=kernel, mend=f"Leave --format {format_id} away.")
    return Task(parsed, tokens, variant.formats[0], kernel)


def run(task: Task) -> dict[str, Any]:
    """Run a task on the current GPU: kernel, format, sizes, us, tflops, rel_err, nan, tolerance, and `ok`.

    Raises MissingRequirementError without a GPU or torch, PerfModelError for sizes that no kernel takes.
    """
    require_gpu()
    import torch

    device = torch.cuda.current_device()
    arch = cubins.architecture_of(torch.cuda.get_device_capability(device))
    weights = random_weights(task.format, task.shape.experts, task.shape.n, task.shape.k, device=f"cuda:{device}")
    problem = make.draw_problem(task.shape, [task.tokens] * task.shape.experts)
    contender = make.ours(problem, weights, [pack(weights)], _tile(task, arch))
    if task.kernel not in (None, contender.kernel):
        raise PerfModelError("takes weights or tokens that this command does not make", field="--kernel", value=task.kernel)
    replay = timing.capture(contender.calls)
    contender.out().fill_(float("nan"))
    time = timing.measure({contender.kernel: replay}, hold_s=HOLD_S, rounds=1, pause_s=0.0)[contender.kernel]
    error, nan = make.errors(problem, contender)
    tolerance = TOLERANCE.get(task.format, DEFAULT_TOLERANCE)
    shape = task.shape
    return {
        "kernel": contender.kernel, "format": task.format, "experts": shape.experts, "n": shape.n, "k": shape.k,
        "tokens_per_expert": task.tokens, "us": time.us, "tflops": 2 * problem.tokens * shape.n * shape.k / time.us / 1e6,
        "rel_err": error if error == error else None, "nan": nan, "tolerance": tolerance, "ok": nan == 0 and error <= tolerance,
    }  # fmt: skip


def _tile(task: Task, arch: str) -> tiles.Tile:
    if task.kernel is None:
        return tiles.tile_for(task.tokens, arch)
    named = [choice.tile for choice in tiles.menu(task.format, "plain", arch) if choice.variant.name == task.kernel]
    if not named:
        raise PerfModelError(f"is no plain grouped GEMM for {arch}", field="--kernel", value=task.kernel)
    return named[0]
