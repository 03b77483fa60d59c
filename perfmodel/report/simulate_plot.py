"""A simulation as a picture: percentiles against load or among clients, where a decode step's time goes, what fills the memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.files import write_atomic
from perfmodel.report.gap_plot import STYLE, check_suffix, wrapped
from perfmodel.report.simulate import FIGURES, conditions, subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERCENTILES = {"p50": "#92c5de", "p90": "#4393c3", "p99": "#2166ac"}
OPS = {
    "dense": "#2166ac", "head": "#92c5de", "attention": "#762a83", "experts": "#1b7837", "activations": "#dfc27d",
    "communication": "#1a1a1a", "drafts": "#de77ae", "overhead": "#bababa",
}  # fmt: skip
PARTS = {"weights": "#2166ac", "workspace": "#92c5de", "caches on average": "#1b7837", "caches at most": "#a6dba0"}


def save(result: dict[str, Any], path: str) -> None:
    """Draw the object of `perfmodel.simulate` and write it, whole or not at all, as PNG, SVG or PDF."""
    import io
    import os

    os.environ["MPLBACKEND"] = "Agg"  # whatever stands there: this draws into a file
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    check_suffix(path)
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(11, 7.6), layout="constrained")
        grid = figure.add_gridspec(3, 3, height_ratios=[3.6, 1.4, 1.4])
        for place, (name, title) in enumerate(FIGURES):
            axes = figure.add_subplot(grid[0, place])
            (_draw_curve if len(result.get("curve", ())) > 1 else _draw_percentiles)(axes, result, name)
            axes.set_title(title, fontsize=10, loc="left")
        _draw_step(figure.add_subplot(grid[1, :]), result)
        _draw_memory(figure.add_subplot(grid[2, :]), result)
        figure.suptitle(wrapped(f"{subject(result)}\n{_load(result)}", 115), fontsize=11, x=0.01, ha="left")
        buffer = io.BytesIO()
        kind = Path(path).suffix[1:].lower()
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        plt.close(figure)
    write_atomic(path, buffer.getvalue())


def _load(result: dict[str, Any]) -> str:
    return conditions(result) + (" (the lower two pictures, at the last rate)" if len(result.get("curve", ())) > 1 else "")


def _draw_curve(axes: Axes, result: dict[str, Any], name: str) -> None:
    """Percentiles of one figure against the rate."""
    from matplotlib.ticker import FuncFormatter

    curve = sorted((row for row in result["curve"] if row[name] is not None), key=lambda row: row["rate"])
    for percentile, colour in PERCENTILES.items():
        axes.plot([row["rate"] for row in curve], [row[name][percentile] for row in curve], color=colour, marker="o", label=percentile)
    values = [row[name][p] for row in curve for p in PERCENTILES]
    if values and max(values) > 30 * min(values) > 0:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}" if y >= 1 else f"{y:g}"))
    axes.set(xlabel="requests a second", ylabel="ms")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)


def _draw_percentiles(axes: Axes, result: dict[str, Any], name: str) -> None:
    """Percentiles of one figure as columns."""
    found = result[name] or {}
    names = [p for p in PERCENTILES if p in found]
    bars = axes.bar(names, [found[p] for p in names], color=[PERCENTILES[p] for p in names])
    axes.bar_label(bars, [f"{found[p]:,.3g}" if found[p] < 100 else f"{found[p]:,.0f}" for p in names], padding=2)
    axes.set(ylabel="ms")


def _draw_step(axes: Axes, result: dict[str, Any]) -> None:
    """Ops of the mean decode step, in milliseconds, as one bar."""
    ops = {name: us / 1e3 for name, us in result["step_us"].items() if us > 0}
    mean = result["step"]
    title = f"mean decode step: {mean['sequences']:,.3g} sequences of {mean['context']:,.0f} tokens" if mean else "a decode step"
    _stack(axes, ops, OPS)
    axes.set_xlabel("ms")
    axes.set_title(title, fontsize=10, loc="left")


def _draw_memory(axes: Axes, result: dict[str, Any]) -> None:
    """What a GPU's memory holds, up to its capacity."""
    memory = result["memory"]
    mean, peak = memory["cache_mean_GB"], memory["cache_peak_GB"]
    parts = {
        "weights": memory["weights_GB"],
        "workspace": memory["workspace_GB"],
        "caches on average": mean,
        "caches at most": max(peak - mean, 0.0),
    }
    _stack(axes, parts, PARTS)
    axes.axvline(memory["usable_GB"], color="#b2182b", ls=":", lw=1.5)
    axes.axvline(memory["capacity_GB"], color="#b2182b", lw=1.5)
    axes.set(xlim=(0, memory["capacity_GB"] * 1.02), xlabel="GB")
    axes.set_title("memory of a GPU (lines: what the engine takes, and all of it)", fontsize=10, loc="left")


def _stack(axes: Axes, parts: dict[str, float], colours: dict[str, str]) -> None:
    done = 0.0
    for name, value in parts.items():
        axes.barh([0], [value], left=[done], color=colours.get(name, "#777777"), label=name, lw=0)
        done += value
    axes.set_yticks(np.array([]))
    axes.spines["left"].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05), frameon=False, fontsize=8.5, handlelength=1.2, labelspacing=0.3)
