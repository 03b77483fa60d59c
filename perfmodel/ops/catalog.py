"""All ops that have profiles of their own, by id, and the time of each by a profile."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.hardware import GpuSpec
from perfmodel.ops.all_to_all import ALL_TO_ALL
from perfmodel.ops.attention_decode import DECODE
from perfmodel.ops.attention_prefill import PREFILL
from perfmodel.ops.collectives import COLLECTIVES
from perfmodel.ops.fits import check_fit, check_profile
from perfmodel.ops.gemm import GEMM
from perfmodel.ops.op import REGIMES, Op, Use
from perfmodel.ops.quantise import QUANTISE
from perfmodel.profiles import op_profile
from perfmodel.profiles.op_profile import OpFit, OpProfile, load_op_profile, op_profile_ids
from perfmodel.workload.expectation import Array

OPS: Mapping[str, Op] = {op.id: op for op in (GEMM, PREFILL, DECODE, COLLECTIVES, ALL_TO_ALL, QUANTISE)}


def get_op(name: str) -> Op:
    """The op with this id. Raises PerfModelError with the nearest."""
    if name not in OPS:
        raise PerfModelError("no such op", field="op", value=name, mend=did_you_mean(name, OPS))
    return OPS[name]


@lru_cache(maxsize=256)
def get_op_profile(name: str) -> OpProfile:
    """The profile with this id, of an op that is there and can take all its fits. Raises PerfModelError with file, field and mend."""
    profile, file = load_op_profile(name), op_profile.FOLDER / f"{name}.yaml"
    if profile.op not in OPS:
        raise PerfModelError("no such op", file=file, field="op", value=profile.op, mend=did_you_mean(profile.op, OPS))
    check_profile(OPS[profile.op], profile, file)
    return profile


def op_profiles(op: Op) -> list[OpProfile]:
    """The bundled profiles of an op."""
    return [profile for profile in map(get_op_profile, op_profile_ids()) if profile.op == op.id]


def predict_op(op: Op, gpu: GpuSpec, format_id: str, fit: OpFit, sizes: Mapping[str, Array]) -> Array:
    """[4, n] seconds: prediction, physical floor, low and high of the 80 % interval. Raises PerfModelError as `check_fit` does."""
    check_fit(op, fit)
    time = op.time(Use(gpu, format_id, fit.menus), sizes, op.complete(fit.parameters))
    factors = np.array([(one.low, one.high) for one in (fit.intervals.get(name, fit.interval) for name in REGIMES)])
    low, high = factors[time.regime()].T
    return np.stack([time.total, time.floor, np.maximum(time.total * low, time.floor), time.total * high])
