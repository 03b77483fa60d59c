"""What a driver calls a GPU, and its id in the catalogue."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from pydantic import Field

from perfmodel.validated import Strict, load_model


class _Devices(Strict):
    devices: dict[str, str | None] = Field(strict=False)


@cache
def known_devices() -> dict[str, str | None]:
    """Pattern of a driver's name -> catalogue id, None for a device that the catalogue does not have."""
    return load_model(_Devices, Path(__file__).parent / "devices.yaml").devices


def gpu_of(device: str) -> str | None:
    """Catalogue id of a device by the driver's name for it; None for one that the catalogue does not have."""
    return next((gpu for pattern, gpu in known_devices().items() if fnmatchcase(device, pattern)), None)
