"""`perfmodel calibrate`: kernel profiles fitted to measured layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import JsonOption, note, print_json, stoppable
from perfmodel.errors import PerfModelError
from perfmodel.files import read_text, write_atomic

if TYPE_CHECKING:
    from perfmodel.validation.calibrate import Family, Fitted
    from perfmodel.validation.calibrate_ops import FittedOp
    from perfmodel.validation.runs.fit import FittedRuns

HELP = """Fit the kernel profiles to the public measurements (extra `silicon`), less than 5 % of each table, chosen by a hash.

Prints what was found for each kernel, architecture and format; --write puts it into the profiles' files.

Example: `perfmodel calibrate --kernel deepgemm`
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("calibrate", help=HELP)(calibrate)


def calibrate(
    kernel: Annotated[list[str] | None, typer.Option("--kernel", help="Only this profile. Repeatable.")] = None,
    op: Annotated[
        str,
        typer.Option(
            "--op",
            help="moe, an op beside it (gemm, attention, quantise, collectives, a2a); `runs`: our own kernels, by the committed runs; "
            "`serving`: the engine of services; or `anchors`: how alike measured services are.",
        ),
    ] = "moe",
    write: Annotated[bool, typer.Option("--write", help="Write the fits into the profiles' YAML files.")] = False,
    json: JsonOption = False,
) -> None:
    """Fit, print and perhaps write."""
    with stoppable(lambda: "profiles that are noted as written are whole, all others are as they were; fits of no file are lost"):
        if op in ("serving", "anchors"):
            if kernel:
                raise PerfModelError(f"does not go with --op {op}", field="--kernel", value=kernel[0], mend="Leave it out.")
            (_serving if op == "serving" else _anchors)(write, json)
            return
        if op == "runs":
            _runs(kernel or [], write, json)
            return
        fits = _layers(kernel or [], write) if op == "moe" else _ops(op, kernel or [], write)
    if json:
        print_json({"schema": "perfmodel.calibrate/1", "fits": [_as_json(one.family.kernel, one.family.format, one) for one in fits]})


def _layers(kernels: Sequence[str], write: bool) -> Sequence[Fitted]:
    from perfmodel.profiles import load_profile, profile
    from perfmodel.validation.calibrate import calibrate, refitted
    from perfmodel.validation.profile_text import profile_text
    from perfmodel.validation.silicon.usable import usable_rows

    for name in kernels:
        load_profile(name)
    fits = calibrate(*usable_rows(kernels), _heard)
    for name in _names(fits) if write else ():
        path = profile.FOLDER / f"{name}.yaml"
        _write(path, profile_text(refitted(load_profile(name), fits), read_text(path)))
    return fits


def _ops(op: str, kernels: Sequence[str], write: bool) -> Sequence[FittedOp]:
    from perfmodel.profiles import op_profile
    from perfmodel.validation.calibrate_ops import calibrate_ops, refitted_op
    from perfmodel.validation.profile_text import profile_text
    from perfmodel.validation.silicon.usable import usable_rows
    from perfmodel.validation.silicon.validate import read_op

    fits = calibrate_ops(*usable_rows(op_profile.pooled_ids(kernels), read_op(op)), _heard)
    for name in _names(fits) if write else ():
        path = op_profile.FOLDER / f"{name}.yaml"
        _write(path, profile_text(refitted_op(op_profile.load_op_profile(name), fits), read_text(path)))
    return fits


def _runs(kernels: Sequence[str], write: bool, json: bool) -> None:
    from perfmodel.profiles import load_profile, profile
    from perfmodel.validation.profile_text import profile_text
    from perfmodel.validation.runs.fit import fit_runs, refitted

    for name in kernels:
        load_profile(name)
    fits = fit_runs(kernels)
    for fitted in fits:
        note(f"{fitted.profile} {fitted.format}: {fitted.rows} rows, {fitted.fit.provenance.source.partition('; ')[2]}")
    for name in sorted({fitted.profile for fitted in fits}) if write else ():
        path = profile.FOLDER / f"{name}.yaml"
        _write(path, profile_text(refitted(load_profile(name), fits), read_text(path)))
    if json:
        print_json({"schema": "perfmodel.calibrate/1", "fits": [_as_json(one.profile, one.format, one) for one in fits]})


def _serving(write: bool, json: bool) -> None:
    from perfmodel.serving import engine
    from perfmodel.validation.serving.calibrate import as_json, calibrate_serving, engine_text

    calibration, about = calibrate_serving(note)
    if write:
        _write(engine.FILE, engine_text(calibration, about))
    if json:
        print_json({"schema": "perfmodel.calibrate/1", "serving": as_json(calibration), "about": about})


def _anchors(write: bool, json: bool) -> None:
    from perfmodel.serving import anchoring
    from perfmodel.validation.serving.anchored import fit_priors, priors_text

    priors, rows = fit_priors(note)
    if write:
        _write(anchoring.FILE, priors_text(priors, rows))
    if json:
        print_json(
            {"schema": "perfmodel.calibrate/1", "anchors": {name: prior.model_dump() for name, prior in priors.items()}, "rows": rows}
        )


def _heard(family: Family, fitted: Fitted | FittedOp | None) -> None:
    what = "too few rows, or no profile" if fitted is None else fitted.fit.provenance.source.rpartition("; ")[2]
    note(f"{family.kernel} {family.architecture} {family.format}: {what}")


def _names(fits: Sequence[Fitted | FittedOp]) -> list[str]:
    return sorted({fitted.family.kernel for fitted in fits})


def _write(path: Path, text: str) -> None:
    write_atomic(path, text)
    note(f"wrote {path}")


def _as_json(kernel: str, format_id: str, fitted: Fitted | FittedOp | FittedRuns) -> dict[str, object]:
    return {
        "kernel": kernel,
        "architecture": fitted.fit.architectures[0],
        "format": format_id,
        "rows": fitted.rows,
        "parameters": dict(fitted.fit.parameters),
        "standard_errors_of_logarithms": {name: value if value != float("inf") else None for name, value in fitted.errors.items()},
        "interval": fitted.fit.interval.model_dump(),
    }
