"""Kernel profiles in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfmodel.profiles import Fit, Profile


def render_list(profiles: list[Profile], console: Console) -> None:
    """One line a profile: what it is, and on which architectures it runs which formats; estimated ones in brackets."""
    table = Table(header_style="bold", pad_edge=False, show_lines=True)
    for name in ("kernel", "kind", "what it is", Text("formats by architecture\n(in brackets: estimated)")):
        table.add_column(name)
    for profile in profiles:
        table.add_row(profile.id, profile.kind, profile.summary, Text("\n".join(_support(profile))))
    console.print(table)


def _support(profile: Profile) -> list[str]:
    """`hopper: bf16 [fp8 fp8-block]` for each architecture."""
    lines = []
    for architecture in dict.fromkeys(a for fit in profile.fits for a in fit.architectures):
        fits = [fit for fit in profile.fits if architecture in fit.architectures]
        sure = [f for fit in fits if fit.provenance.status != "estimated" for f in fit.formats]
        guessed = [f for fit in fits if fit.provenance.status == "estimated" for f in fit.formats]
        lines.append(f"{architecture}: " + " ".join([*sure, *([f"[{' '.join(guessed)}]"] if guessed else [])]))
    return lines


def render_one(profile: Profile, console: Console) -> None:
    """A profile's stages, its fits with provenance, then a table of their parameters."""
    console.print(Text(f"{profile.id}: {profile.name}", style="bold"))
    tokens = "all tokens of the expert-parallel group" if profile.token_rows == "all" else "tokens with an expert on the rank"
    console.print(f"{profile.summary} {profile.launches} launches; the stages pass over {tokens}.")
    for stage in profile.stages:
        console.print(Text(f"  {stage.name}: {stage.rows} x {stage.width} x {' + '.join(stage.moves)}"))
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("fit", no_wrap=True)
    for number, fit in enumerate(profile.fits, start=1):
        table.add_column(str(number), justify="right")
        console.print(Text(f"\n{number}  {' '.join(fit.architectures)}: {' '.join(fit.formats)}", style="bold"))
        known = fit.provenance
        on = f"on {', '.join(known.gpus)} alone" if known.gpus else None
        origin = ", ".join(filter(None, (known.status, on, known.date, known.dataset)))
        console.print(Text(f"   {origin}: {fit.provenance.source}", style="dim"))
    for name, *values in _rows(profile.fits):
        table.add_row(name, *values)
    console.print()
    console.print(table)


def _rows(fits: tuple[Fit, ...]) -> list[list[str]]:
    names = list(type(fits[0].parameters).model_fields)
    rows = [[name, *(_figure(getattr(fit.parameters, name)) for fit in fits)] for name in names]
    rows.append(["tile rows", *("\n".join(map(str, fit.tiles.m)) for fit in fits)])
    rows.append(["tile columns", *("\n".join(map(str, fit.tiles.n)) for fit in fits)])
    rows.append(["tile chosen by", *(fit.tiles.select for fit in fits)])
    rows.append(["80 % interval", *(f"x {fit.interval.low:g}\nx {fit.interval.high:g}" for fit in fits)])
    return rows


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
