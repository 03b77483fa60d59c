"""`--gpu` and `--kernel` of `perfmodel validate`: which rows they leave, and what is said where none is left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.validation.measurements import Mask, Measurements


def chosen_mask(rows: Measurements, gpu: str | None, kernel: str | None) -> Mask:
    """[n] the rows of this GPU and this kernel; None takes all."""
    mask = np.ones(len(rows), bool)
    for name, wanted in (("gpu", gpu), ("kernel", kernel)):
        if wanted is not None:
            mask &= rows.labels[name].where(wanted)
    return mask


def nothing_left(tables: Sequence[Measurements], gpu: str | None, kernel: str | None) -> PerfModelError:
    """The error for a GPU or a kernel that no row of any table has, or no row both."""
    for field, wanted in (("gpu", gpu), ("kernel", kernel)):
        there = {text for rows in tables for text in rows.labels[field].values}
        if wanted is not None and wanted not in there:
            return PerfModelError("no row has it", field=f"--{field}", value=wanted, mend=did_you_mean(wanted, there))
    return PerfModelError("no row has both", field="--gpu, --kernel", value=f"{gpu}, {kernel}", mend="Leave one of them out.")
