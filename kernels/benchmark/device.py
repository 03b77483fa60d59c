"""The machine that is measured: whether there is one, and what a result must say about it."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from perfmodel.errors import MissingRequirementError
from perfmodel.kernels import clocks

PACKAGES = ("perfmodel", "torch", "numba-cuda", "numba", "llvmlite", "cuda-core", "cuda-bindings", "nvidia-nvvm", "numpy")


def require_gpu() -> None:
    """Raise MissingRequirementError where torch, or a GPU that it can use, is missing."""
    if find_spec("torch") is None:
        raise MissingRequirementError("running kernels needs torch", mend="Install the extra `gpu`: pip install 'perfmodel[gpu]'.")
    import torch

    if not torch.cuda.is_available():
        raise MissingRequirementError("running kernels needs an NVIDIA GPU", mend="Run this on a machine with one and a torch for CUDA.")
    torch.zeros(1, device="cuda")  # makes the context


def l2_bytes() -> int:
    """L2 cache of the current GPU."""
    import torch

    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)


def provenance() -> dict[str, Any]:
    """Device, driver, versions and date of a measurement."""
    import torch

    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "device": device.name,
        "compute_capability": f"{device.major}.{device.minor}",
        "sms": device.multi_processor_count,
        "memory_bytes": device.total_memory,
        "driver": clocks.driver_version(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {package: found for package in PACKAGES if (found := _version(package)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
