"""A diagnosis as a picture: how busy each unit is in the kernels that take longest."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.files import write_atomic
from perfmodel.report.gap_plot import STYLE
from perfmodel.report.numbers import number

UNITS = {"DRAM": "#2166ac", "L2": "#92c5de", "L1 and shared memory": "#c2a5cf", "SM pipes": "#dfc27d", "tensor pipe": "#1b7837"}


def save(result: dict[str, Any], path: str, top: int = 8) -> None:
    """Draw the object of `diagnose` and write it, whole or not at all. Raises PerfModelError where no unit was counted."""
    os.environ["MPLBACKEND"] = "Agg"  # whatever stands there: this draws into a file
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = sorted((row for row in result["kernels"] if row["use"]), key=lambda row: -row["us"])[:top]
    if not rows:
        raise PerfModelError("no kernel has counters to draw", field="--plot", mend="Draw a report of ncu with its SpeedOfLight section.")
    units = [unit for unit in UNITS if any(unit in row["use"] for row in rows)]
    places, height = np.arange(len(rows)), 0.8 / len(units)
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(10, 1.2 + 0.75 * len(rows)), layout="constrained")
        for place, unit in enumerate(units):
            use = [100 * row["use"].get(unit, 0.0) for row in rows]
            axes.barh(places + (place - (len(units) - 1) / 2) * height, use, height, color=UNITS[unit], label=unit)
        axes.set_yticks(places, [f"{row['short']}\n{number(row['us'])} us, {row['bound']}" for row in rows])
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of the unit's peak")
        figure.legend(loc="outside upper right", ncols=len(units))
        buffer = io.BytesIO()
        figure.savefig(buffer, format=path.rsplit(".", 1)[-1].lower(), dpi=120)
        plt.close(figure)
    write_atomic(path, buffer.getvalue())
