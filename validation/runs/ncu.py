"""Counters by Nsight Compute: the command runs itself under `ncu` for each grouped GEMM, and reads what that prints."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.errors import MissingRequirementError, PerfModelError
from perfmodel.kernels.tiles import Tile
from perfmodel.validation.runs.counters import METRICS, add_up, counted, parse_ncu
from perfmodel.validation.runs.points import GemmPoint, Point

TOOL = "ncu"
LIMIT_S = 300.0
"""For one point, its weights made anew."""


def find_ncu() -> str:
    """Path of Nsight Compute. Raises MissingRequirementError where it is not installed."""
    found = shutil.which(TOOL)
    if found is None:
        raise MissingRequirementError(
            f"reading counters needs Nsight Compute (`{TOOL}`)", mend="Install it, it comes with the CUDA toolkit; or leave --ncu away."
        )
    return found


def command(ncu: str, suite: str, point: str) -> list[str]:
    """Nsight Compute over this program, which runs one call of one point between start and stop of the profiler, with cold caches."""
    options = ["--csv", "--print-units", "base", "--metrics", ",".join(METRICS), "--cache-control", "all", "--clock-control", "none"]
    program = [sys.executable, "-m", "perfmodel", "measure", "--suite", suite, "--under-ncu", point]
    return [ncu, *options, "--profile-from-start", "off", *program]


@dataclass(frozen=True)
class CounterRunner:
    """Reads counters of grouped GEMMs; `about` is that of the GPU."""

    about: Mapping[str, Any]
    ncu: str
    suite: str

    def measure(self, point: Point, chosen: tuple[Tile, ...]) -> Mapping[str, Any]:
        """kernel and counters of one call. Raises MissingRequirementError where reading counters is not allowed."""
        pipe = subprocess.PIPE
        with subprocess.Popen(command(self.ncu, self.suite, point.name), stdout=pipe, stderr=pipe, text=True) as process:
            try:
                return read_output(point, *process.communicate(timeout=LIMIT_S))
            except subprocess.TimeoutExpired:
                raise PerfModelError(f"took over {LIMIT_S:.0f} s", field=TOOL, value=point.name, mend="Run the command by hand.") from None
            finally:
                process.kill()


def read_output(point: Point, out: str, errors: str) -> dict[str, Any]:
    """kernel and counters from what `ncu` printed. The program says which variant ran in a line `kernel: NAME` on stderr."""
    if "ERR_NVGPUCTRPERM" in out + errors:
        raise MissingRequirementError(
            "this user may not read the GPU's counters",
            mend="Run as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0; or leave --ncu away.",
        )
    name = next((line.removeprefix("kernel: ") for line in (out + "\n" + errors).splitlines() if line.startswith("kernel: ")), None)
    if name is None:
        raise PerfModelError("did not run the point", field=TOOL, value=(errors or out).strip()[-300:], mend="Run the command by hand.")
    metrics = add_up(parse_ncu(out))
    if not metrics:
        raise PerfModelError("read no counter of every kernel of the call", field=TOOL, value=point.name, mend="Run the command by hand.")
    return {"kernel": name} | counted(metrics)


def run_once(point: GemmPoint, chosen: tuple[Tile, ...]) -> str:
    """What runs under `ncu`: a warm call, then one that is profiled; the kernel's name."""
    import torch

    from perfmodel.validation.runs.runner import GpuRunner

    runner = GpuRunner()
    name, calls = runner.named_calls(point, chosen)
    for call in calls:
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    calls[0]()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    return name


def countable(points: Sequence[Point]) -> list[GemmPoint]:
    """Grouped GEMMs, once each: how long they are held does not matter to counters."""
    found = {(p.contender, p.format, p.experts, p.n, p.k, p.tokens_per_expert): p for p in reversed(points) if isinstance(p, GemmPoint)}
    return list(reversed(found.values()))
