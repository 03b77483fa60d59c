"""Predictions of measured ops (dense GEMM, attention, ...) by the bundled profiles, or by fits that are handed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from perfmodel.ops.catalog import get_op, get_op_profile, predict_op
from perfmodel.profiles.op_profile import OpFit, op_profile_ids
from perfmodel.validation.calibrate_ops import FittedOp
from perfmodel.validation.columns import Kind
from perfmodel.validation.measurements import Floats, Integers
from perfmodel.validation.predicting import Predict, load_measured_gpu


def predict_op_rows(kind: Kind, labels: Mapping[str, str], sizes: Mapping[str, Integers]) -> Floats:
    """[4, n] seconds, as `Predict` says; NaN where no bundled profile covers the kernel."""
    fit = None
    if labels["kernel"] in op_profile_ids():
        fit = get_op_profile(labels["kernel"]).find_fit(load_measured_gpu(labels["gpu"]).architecture, labels["format"])
    return _predicted(labels, sizes, fit)


def predict_ops_by(fits: Sequence[FittedOp]) -> Predict:
    """A predictor with these fits and no other."""
    found = {(one.family.kernel, one.family.architecture, form): one.fit for one in fits for form in one.fit.formats}

    def predict(kind: Kind, labels: Mapping[str, str], sizes: Mapping[str, Integers]) -> Floats:
        fit = found.get((labels["kernel"], load_measured_gpu(labels["gpu"]).architecture, labels["format"]))
        return _predicted(labels, sizes, fit)

    return predict


def _predicted(labels: Mapping[str, str], sizes: Mapping[str, Integers], fit: OpFit | None) -> Floats:
    if fit is None:
        return np.full((4, len(next(iter(sizes.values())))), np.nan)
    op = get_op(get_op_profile(labels["kernel"]).op)
    return predict_op(op, load_measured_gpu(labels["gpu"]), labels["format"], fit, {name: sizes[name].astype(float) for name in op.sizes})
