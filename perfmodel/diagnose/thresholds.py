"""The thresholds of a diagnosis, each with its meaning and its source, and what became of those of the background text."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from perfmodel.files import load_yaml
from perfmodel.validated import Strict, validate

FILE = Path(__file__).parent / "thresholds.yaml"


class Threshold(Strict):
    """One number; a fraction unless its name says otherwise."""

    value: float = Field(gt=0, strict=False)
    meaning: str
    source: str
    status: Literal["datasheet", "measured", "derived", "estimated"]
    background: str | None = None
    """What the background text says."""
    verdict: Literal["kept", "corrected", "rejected"] | None = None
    why: str | None = None
    """Reason of the verdict."""


@cache
def thresholds() -> dict[str, Threshold]:
    """All by name."""
    return {name: validate(Threshold, fields, file=FILE) for name, fields in load_yaml(FILE).items()}


def threshold(name: str) -> float:
    """The number of this name."""
    return thresholds()[name].value
