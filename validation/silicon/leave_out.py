"""GPUs and architectures left out: which rows those are, and predictions by fits that never saw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.hardware import load_gpu
from perfmodel.latency import predict_layers
from perfmodel.profiles import Profile, load_profile
from perfmodel.scenario import resolve
from perfmodel.validation.calibrate import Fitted, architecture_of, refitted
from perfmodel.validation.calibrate_ops import FittedOp
from perfmodel.validation.columns import Kind
from perfmodel.validation.measurements import Floats, Integers, Mask, Measurements
from perfmodel.validation.predicting import Predict

ELDERS = {"blackwell": ("hopper", "ada", "ampere"), "blackwell-rtx": ("ada", "ampere"), "hopper": ("ampere", "ada")}
"""Architecture -> older ones, the nearest first."""


def left_out(rows: Measurements, gpus: Sequence[str], architecture: str | None) -> Mask:
    """[n] rows of these GPUs, or of all of an architecture."""
    there = rows.labels["gpu"].values
    for gpu in gpus:
        load_gpu(gpu)
        if gpu not in there:
            raise PerfModelError("has no measured row", field="--leave-out-gpu", value=gpu, mend=did_you_mean(gpu, there))
    archs = sorted({architecture_of(gpu) for gpu in there})
    if architecture is not None and architecture not in archs:
        raise PerfModelError("has no measured row", field="--leave-out-arch", value=architecture, mend=did_you_mean(architecture, archs))
    if architecture is not None and architecture not in ELDERS:
        mend = f"Leave out {', '.join(ELDERS)}, or GPUs by --leave-out-gpu."
        raise PerfModelError("nothing older was measured to predict it from", field="--leave-out-arch", value=architecture, mend=mend)
    chosen = [gpu in gpus or architecture_of(gpu) == architecture for gpu in there]
    mask: Mask = np.array(chosen)[rows.labels["gpu"].codes]
    return mask


F = TypeVar("F", Fitted, FittedOp)


def carried_over(fits: Sequence[F], architecture: str | None) -> list[F]:
    """For each kernel and format the fit of the nearest older architecture, as one of `architecture`; as they are without one."""
    if architecture is None:
        return list(fits)
    found = {}
    for elder in reversed(ELDERS.get(architecture, ())):
        for fitted in fits:
            if fitted.family.architecture == elder:
                fit = fitted.fit.model_copy(update={"architectures": (architecture,)})
                family = replace(fitted.family, architecture=architecture)
                found[family] = replace(fitted, family=family, fit=fit)
    return list(found.values())


def predict_by(fits: Sequence[Fitted]) -> Predict:
    """A predictor with these fits and no other: no stand-in for layers without a gate, which may have seen what was left out."""
    profiles: dict[str, Profile] = {}
    for kernel in {fitted.family.kernel for fitted in fits}:
        mine = [fitted for fitted in fits if fitted.family.kernel == kernel]
        only = {"fits": tuple(fitted.fit for fitted in mine), "ungated": None}
        profiles[kernel] = refitted(load_profile(kernel), mine).model_copy(update=only)

    def predict(kind: Kind, labels: Mapping[str, str], sizes: Mapping[str, Integers]) -> Floats:
        profile = profiles.get(labels["kernel"])
        count = len(next(iter(sizes.values())))
        if profile is None or not profile.supports(architecture_of(labels["gpu"]), labels["format"]):
            return np.full((4, count), np.nan)
        how = {"routing": labels["routing"], "caches": labels["caches"]}
        scenario = replace(resolve(labels["gpu"], labels["format"], "generic-unfused", **how), profiles=(profile,))
        columns = {name.removeprefix("num_"): column for name, column in sizes.items()}
        answer = predict_layers(scenario, columns, gated=labels["gated"] == "true")
        return np.stack([answer.latency, answer.floor, answer.low, answer.high])

    return predict
