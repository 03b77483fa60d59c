"""A kernel profile as the text of its YAML file: what stands above `fits` is kept as it is, the fits are written anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perfmodel.errors import PerfModelError
from perfmodel.profiles import Fit, Interval, Parameters, Profile, TileMenu
from perfmodel.profiles.op_profile import OpFit, OpProfile

WIDTH = 138


def profile_text(profile: Profile | OpProfile, before: str) -> str:
    """The file of `profile`, of which `before` is the present text. Raises PerfModelError where that has no line `fits:`."""
    head, found, _ = before.partition("\nfits:\n")
    if not found:
        raise PerfModelError("has no line `fits:`", field="profile", value=profile.id)
    return head + found + "".join(f"{line}\n" for fit in profile.fits for line in _fit(fit))


def _fit(fit: Fit | OpFit) -> Iterator[str]:
    yield f"  - architectures: [{', '.join(fit.architectures)}]"
    yield f"    formats: [{', '.join(fit.formats)}]"
    if isinstance(fit, Fit):
        yield f"    tiles: {{{', '.join(_tiles(fit.tiles))}}}"
    elif fit.menus:
        menus = [f"{name}: [{', '.join(map(str, menu))}]" for name, menu in fit.menus.items()]
        yield f"    menus: {{{', '.join(menus)}}}"
    values = _parameters(fit.parameters) if isinstance(fit, Fit) else fit.parameters
    if values:
        yield "    parameters:"
        yield from _wrapped("      {", [f"{name}: {_number(value)}" for name, value in values.items()], "}")
    yield f"    interval: {_interval(fit.interval)}"
    if fit.intervals:
        yield from _wrapped("    intervals: {", [f"{name}: {_interval(one)}" for name, one in fit.intervals.items()], "}")
    yield "    provenance:"
    known: Mapping[str, object] = fit.provenance.model_dump(exclude_none=True)
    for name, value in known.items():
        yield f"      {name}: {_known(name, value)}"


def _known(name: str, value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(value)}]"
    return str(value) if name in ("status", "rows") else _quoted(str(value))


def _parameters(parameters: Parameters) -> Mapping[str, float]:
    """All but those that are what they would be if they were not there."""
    fields = Parameters.model_fields
    return {name: value for name, value in parameters.model_dump().items() if value != fields[name].default}


def _tiles(tiles: TileMenu) -> Iterator[str]:
    yield f"m: [{', '.join(map(str, tiles.m))}]"
    yield f"n: [{', '.join(map(str, tiles.n))}]"
    if tiles.paired:
        yield "paired: true"
    for name in ("waves", "select", "order"):
        if getattr(tiles, name) != TileMenu.model_fields[name].default:
            yield f"{name}: {getattr(tiles, name)}"


def _interval(interval: Interval) -> str:
    return f"{{low: {_number(interval.low)}, high: {_number(interval.high)}}}"


def _number(value: float) -> str:
    """Three digits; what follows them no row can tell."""
    return f"{float(f'{value:.3g}'):g}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _wrapped(head: str, parts: list[str], tail: str) -> Iterator[str]:
    """Parts with commas between them, on as many lines as they need."""
    line = head
    for number, part in enumerate(parts):
        text = part + ("," if number < len(parts) - 1 else tail)
        if len(line) + len(text) + 1 > WIDTH:
            yield line.rstrip()
            line = " " * len(head)
        line += text + " "
    yield line.rstrip()
