"""Prices of GPUs by the hour and the power that goes with them, from a YAML file that users may replace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from perfmodel.hardware.quantity import Between, Quantity
from perfmodel.validated import Strict, load_model

FILE = Path(__file__).parent / "prices.yaml"
Money = Annotated[Quantity, Between(0, 1e4, "an hour")]
Share = Annotated[Quantity, Between(0, 2)]


class PowerModel(Strict):
    """A GPU's power as a share of its TDP: idle + memory x busy memory + tensor x busy tensor units, at most 1."""

    idle: Share
    memory: Share
    """At the peak of the DRAM bandwidth."""
    tensor: Share
    """At the dense peak."""
    server_W_per_gpu: Annotated[Quantity, Between(0, 1e4, "W")]
    """CPUs, memory, network and fans of the server, for each GPU."""
    pue: Annotated[Quantity, Between(1, 5)]
    """Power of the data centre over that of its servers."""


class Prices(Strict):
    """The file."""

    currency: str = Field(min_length=1, max_length=12)
    gpu_hour: dict[str, Money]
    """By GPU id; what is not there has no price."""
    power: PowerModel

    def of(self, gpu: str) -> float | None:
        """Price of an hour of a GPU, None where the file has none."""
        found = self.gpu_hour.get(gpu)
        return None if found is None else found.value


def load_prices(path: str | Path | None = None) -> Prices:
    """The bundled prices or those of a user. Raises PerfModelError with file, line, field and mend."""
    return load_model(Prices, FILE if path is None else path)
