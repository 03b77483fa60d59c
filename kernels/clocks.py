"""Clock and power of a GPU while it works, by NVML through ctypes: the library comes with the driver."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

SM_CLOCK = 1
"""NVML_CLOCK_SM. NVML API reference, nvmlClockType_t."""


@dataclass(frozen=True)
class State:
    """A reading; None where NVML does not say."""

    sm_MHz: int | None
    power_W: float | None


class Sensor:
    """Reads one GPU."""

    def __init__(self, uuid: str) -> None:
        """uuid: as NVML writes it, "GPU-..."; an unknown one, and a machine without NVML, give readings of None."""
        self._nvml, self._handle = _library(), ctypes.c_void_p()
        if self._nvml is not None and self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._handle)) != 0:
            self._nvml = None

    def read(self) -> State:
        """Clock of the SMs and power drawn, now."""
        if self._nvml is None:
            return State(None, None)
        clock, milliwatts = ctypes.c_uint(), ctypes.c_uint()
        has_clock = self._nvml.nvmlDeviceGetClockInfo(self._handle, SM_CLOCK, ctypes.byref(clock)) == 0
        has_power = self._nvml.nvmlDeviceGetPowerUsage(self._handle, ctypes.byref(milliwatts)) == 0
        return State(clock.value if has_clock else None, milliwatts.value / 1000 if has_power else None)


def sensor_of(device: int) -> Sensor:
    """The sensor of a device of torch."""
    import torch

    uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    return Sensor(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")


def driver_version() -> str | None:
    """Version of the NVIDIA driver, such as 580.159.03."""
    nvml, text = _library(), ctypes.create_string_buffer(80)
    if nvml is None or nvml.nvmlSystemGetDriverVersion(text, len(text)) != 0:
        return None
    return text.value.decode()


@cache
def _library() -> Any:
    """NVML, initialised; None where there is none."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return nvml if nvml.nvmlInit_v2() == 0 else None
