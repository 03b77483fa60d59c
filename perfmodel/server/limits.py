"""How much one request may ask of a server that others use too. The command line asks for more."""

from __future__ import annotations

from typing import Any

from perfmodel.errors import PerfModelError

MOST_BODY = 2**20
"""Bytes of a request."""
SMALL_BODY = 2**12
"""Bytes of a request that is answered beside others; larger ones wait for a process of their own."""
SMALL_SPEC = 2**15
"""As SMALL_BODY, of a specification."""
MOST_PLANNED = {"gpus": 1024, "top": 20}
MOST_SIMULATED = {"gpus": 1024, "requests": 200_000, "concurrency": 20_000, "max_sequences": 4096, "isl": 2**20, "osl": 2**17}
MOST_KINDS = 8
"""Kinds of GPUs of a plan."""
MOST_RATES = 20
MOST_FORMATS = 4


def check_plan(data: dict[str, Any], gpus: list[Any]) -> None:
    """Raises PerfModelError where a plan would take too long."""
    _at_most(data, MOST_PLANNED)
    _few("gpu", gpus, MOST_KINDS)
    _few("format", data.get("format"), MOST_FORMATS)


def check_simulation(data: dict[str, Any]) -> None:
    """Raises PerfModelError where a simulation would take too long."""
    _at_most(data, MOST_SIMULATED)
    _few("rates", data.get("rates"), MOST_RATES)


def _at_most(data: dict[str, Any], limits: dict[str, int]) -> None:
    for field, most in limits.items():
        value = data.get(field)
        if isinstance(value, int | float) and value > most:
            mend = f"Give at most {most:,}, or run the command perfmodel yourself."
            raise PerfModelError("is more than this server computes", field=field, value=value, mend=mend)


def _few(field: str, values: Any, most: int) -> None:
    if isinstance(values, list) and len(values) > most:
        mend = f"Give at most {most}, or run the command perfmodel yourself."
        raise PerfModelError("is more than this server computes", field=field, value=len(values), mend=mend)
