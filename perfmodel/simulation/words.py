"""Options of the form WORD:NUMBER."""

from __future__ import annotations

from perfmodel.errors import PerfModelError


def number_after(field: str, text: str, *, low: float, high: float, example: str) -> float:
    """The number after the colon of `text`, from `low` to `high`. Raises PerfModelError that names `field`."""
    _, _, rest = text.partition(":")
    return number_in(field, rest, text, low=low, high=high, example=example)


def number_in(field: str, word: str, text: str, *, low: float, high: float, example: str) -> float:
    """`word`, a part of `text`, as a number from `low` to `high`. Raises PerfModelError that names `field`."""
    try:
        value = float(word) if len(word) <= 40 else float("nan")
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise PerfModelError(f"needs a number from {low:g} to {high:g}", field=field, value=text, mend=f"Give {example}, say.")
    return value
