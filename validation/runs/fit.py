"""Profiles of our own kernels, fitted on one shape of the committed runs; the other shapes are the test.

`perfmodel calibrate --op runs` does it: robust least squares on the logarithm of time, as for the public data. What a single GEMM does not
show (fixed time of a layer, stages, routing) and the intervals stay as they stand in the profile. torch's kernels are left as they are:
fitted on these few rows they get worse on earlier measurements of more token counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.latency import gemm_seconds
from perfmodel.ops.machine import parameters_si
from perfmodel.ops.op import Parameter
from perfmodel.profiles import Fit, Parameters, Profile, load_profile, profile_ids
from perfmodel.profiles.profile import Provenance
from perfmodel.scenario import resolve
from perfmodel.units import MICROSECOND
from perfmodel.validation.fitting import solve
from perfmodel.validation.measurements import Floats
from perfmodel.validation.runs.files import committed, read_runs
from perfmodel.validation.runs.predict import SUSTAINED_S, quantise_time
from perfmodel.validation.runs.record import Run

SHAPE = (16, 7168, 2048)
"""Experts, n and k of the rows that parameters are fitted on: the smallest of the shapes. Every other one is unseen."""
LEAST = 3
UNKNOWNS = {
    "gemm_latency_us": Parameter(3.0, 0.7, 0.5, 20.0), "tile_fixed_us": Parameter(1.5, 0.7, 0.1, 20.0),
    "bandwidth_efficiency": Parameter(0.9, 0.2, 0.4, 0.98), "compute_efficiency": Parameter(0.9, 0.3, 0.1, 1.0),
    "l2_efficiency": Parameter(0.9, 0.3, 0.3, 1.0), "overlap_exponent": Parameter(4.0, 0.7, 1.0, 20.0),
    "dequantise_ps": Parameter(10.0, 0.8, 0.5, 60.0), "dequantise_overlap": Parameter(2.0, 0.4, 1.0, 6.0),
    "in_flight_KiB": Parameter(96.0, 0.5, 20.0, 220.0),
}  # fmt: skip
MMA_SYNC = {"numba-decode": {"compute_efficiency": Parameter(0.35, 0.3, 0.1, 1.0)}}
"""Profiles of kernels on mma.sync, which on Hopper reaches a good third of the peak of wgmma."""
CONVERTING = ("dequantise_ps", "dequantise_overlap")
"""Of kernels that make the weights another format."""


@dataclass(frozen=True)
class FittedRuns:
    """What the rows of a profile in a format gave."""

    profile: str
    format: str
    fit: Fit
    rows: int
    errors: Mapping[str, float]
    """Standard error of the logarithm of each parameter; infinite where the rows say nothing of it."""


def is_fitted(run: Run) -> bool:
    """Whether profiles were fitted on rows like this one: grouped GEMMs of our kernels, of SHAPE, timed in a burst."""
    burst = run.us is not None and (run.hold_s is None or run.hold_s < SUSTAINED_S)
    return run.ours and run.kind == "grouped-gemm" and burst and (run.experts, run.n, run.k) == SHAPE


def fit_runs(profiles: Sequence[str] = ()) -> list[FittedRuns]:
    """A fit for each profile (all by default) and format of the committed runs that has rows enough.

    Raises PerfModelError for a profile without such rows.
    """
    runs = [run for path in committed() for run in read_runs(path) if is_fitted(run) and run.gpu is not None]
    there = {run.profile or "" for run in runs}
    for profile in profiles:
        if profile not in there:
            raise PerfModelError("has no run to fit", field="--kernel", value=profile, mend=did_you_mean(profile, there))
    found = []
    for profile, form in sorted({(run.profile or "", run.format) for run in runs}):
        mine = [run for run in runs if (run.profile, run.format) == (profile, form)]
        if profile in profile_ids() and (not profiles or profile in profiles) and len(mine) >= LEAST:
            found.append(_fit(load_profile(profile), form, mine))
    return found


def _fit(profile: Profile, form: str, runs: Sequence[Run]) -> FittedRuns:
    scenario = resolve(str(runs[0].gpu), form, profile.id)
    base = profile.fit(scenario.gpu.architecture, form)
    converts = scenario.format.execution(scenario.gpu.architecture) == "dequantised"
    unknowns = {name: one for name, one in (UNKNOWNS | MMA_SYNC.get(profile.id, {})).items() if converts or name not in CONVERTING}
    measured = np.array([run.us or 0.0 for run in runs]) * MICROSECOND
    sizes = {name: np.array([getattr(run, name) for run in runs], float) for name in ("experts", "n", "k", "tokens_per_expert", "tokens")}
    tiles = np.array([run.case.tile or 0 for run in runs])
    machine = scenario.machine(profile)
    before = quantise_time(sizes.pop("tokens"), sizes["k"], machine)

    def parameters(values: Mapping[str, float]) -> Parameters:
        return base.parameters.model_copy(update=dict(values))

    def predicted(values: Mapping[str, float]) -> Floats:
        out = np.empty(len(runs))
        with_these = replace(machine, **parameters_si(parameters(values), converts))
        for tile in np.unique(tiles):
            rows = tiles == tile
            one = replace(with_these, tiles=machine.tiles.only(int(tile))) if tile else with_these
            out[rows] = gemm_seconds(one, *(column[rows] for column in sizes.values()))
        return out + before

    values, errors = solve(predicted, measured, unknowns)
    rounded = {name: float(f"{value:.3g}") for name, value in values.items()}
    error = float(np.median(np.abs(predicted(rounded) / measured - 1.0)))
    made = base.model_copy(update={"parameters": parameters(rounded), "provenance": _provenance(runs, error)})
    return FittedRuns(profile.id, form, made, len(runs), errors)


def _provenance(runs: Sequence[Run], error: float) -> Provenance:
    experts, n, k = SHAPE
    return Provenance(
        status="measured",
        date=max(run.date for run in runs)[:10],
        dataset=", ".join(sorted({f"validation/results/{run.source}" for run in runs})),
        rows=len(runs),
        gpus=tuple(sorted({str(run.gpu) for run in runs})),
        source=(
            f"perfmodel calibrate --op runs: robust least squares on the single GEMMs of E{experts} N{n} K{k} alone; median error "
            f"{error:.1%}. The other shapes were not seen; stages of a layer and intervals are set by hand"
        ),
    )


def refitted(profile: Profile, fits: Sequence[FittedRuns]) -> Profile:
    """The profile with these fits: each takes the place of the one that has its format, for all the formats of that one."""
    made = {fitted.format: fitted for fitted in fits if fitted.profile == profile.id}
    out = []
    for fit in profile.fits:
        mine = [one for form, one in made.items() if form in fit.formats and one.fit.architectures == fit.architectures]
        out.append(fit.model_copy(update={"parameters": mine[0].fit.parameters, "provenance": mine[0].fit.provenance}) if mine else fit)
    return profile.model_copy(update={"fits": tuple(out)})
