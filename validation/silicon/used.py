"""How many measured rows the bundled profiles were fitted on."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from perfmodel.profiles import load_profile, profile_ids
from perfmodel.profiles.op_profile import load_op_profile, op_profile_ids
from perfmodel.validation.calibrate import families
from perfmodel.validation.measurements import Mask, Measurements


def rows_used(rows: Measurements, chosen: Mask) -> tuple[int, int]:
    """Rows that the bundled fits of the `chosen` rows [n] were made with, by their provenance, and the rows that those were drawn from.

    Rows without a fit are no part of either: nothing was drawn from them, nor is any predicted.
    A fit is made of all GPUs of an architecture, sometimes of several formats: one chosen GPU counts all of them, on both sides. Fits of
    a profile that differ in their architectures and formats alone are parts of one, whose rows count once.
    """
    load, ids = (load_profile, profile_ids()) if rows.kind == "layer" else (load_op_profile, op_profile_ids())
    used: dict[Hashable, int] = {}
    of: dict[Hashable, int] = {}
    met: set[Hashable] = set()
    for family, index in families(rows, np.ones(len(rows), bool)).items():
        fit = load(family.kernel).find_fit(family.architecture, family.format) if family.kernel in ids else None
        if fit is None:
            continue
        key: Hashable = (family.kernel, fit.model_dump_json(exclude={"architectures", "formats"}))
        used[key] = fit.provenance.rows or 0
        of[key] = of.get(key, 0) + len(index)
        if chosen[index].any():
            met.add(key)
    return sum(used[key] for key in met), sum(of[key] for key in met)
