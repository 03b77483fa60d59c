"""A sweep in words."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.sweeps.request import SweepSummary


def lines(summary: SweepSummary) -> Iterator[str]:
    """What was done, and why some points could not be."""
    resumed = f", {summary.resumed} of {summary.chunks} chunks from an earlier run" if summary.resumed else ""
    yield f"{summary.out}: {summary.points:,} points in {summary.seconds:.1f} s ({summary.points_per_s:,.0f} points/s{resumed})"
    if summary.errors:
        yield f"{summary.errors:,} points cannot be (column `error`):"
    for reason in summary.reasons:
        yield f"  {reason.points:,}: {reason.message}"
    more = summary.errors - sum(reason.points for reason in summary.reasons)
    if more:
        yield f"  {more:,}: other reasons"
