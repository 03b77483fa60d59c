"""What a row of a file must be before it goes into a store, beyond what its fields say one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.errors import PerfModelError
from perfmodel.hardware import gpu_ids
from perfmodel.validation.columns import parse_choice

if TYPE_CHECKING:
    from perfmodel.validation.runs.record import Run

RANGES = (("us_low", "us_high"), ("predicted_low_us", "predicted_high_us"))
"""Fields of which the first is never over the second."""


def check_plausible(run: Run) -> None:
    """Raises PerfModelError for a GPU that the catalogue lacks, as one such row would stop every validation, and a range upside down."""
    if run.gpu is not None:
        try:
            parse_choice(*gpu_ids())(run.gpu)
        except PerfModelError as error:
            raise PerfModelError("no such GPU in the catalogue", field="gpu", value=run.gpu, mend=error.mend) from error
    for low, high in RANGES:
        ends = getattr(run, low), getattr(run, high)
        if None not in ends and ends[0] > ends[1]:
            raise PerfModelError(f"is over {high}", field=low, value=ends[0], mend="Swap the two, or mend one.")
