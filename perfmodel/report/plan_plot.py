"""Pareto fronts as a picture: tokens a second and GPU against tokens a second and user, a line a GPU, the plans marked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.files import write_atomic
from perfmodel.planning.results import Plan, PlanResult
from perfmodel.report.gap import changed
from perfmodel.report.gap_plot import STYLE, check_suffix, wrapped
from perfmodel.report.plan import instances

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = ("#2166ac", "#b2182b", "#1b7837", "#762a83", "#8c510a", "#35978f", "#de77ae", "#444444")
MARKS = {"aggregated": "o", "disaggregated": "s"}


def save(result: PlanResult, path: str) -> None:
    """Draw the fronts and write them, whole or not at all, as PNG, SVG or PDF."""
    import io
    import os

    os.environ["MPLBACKEND"] = "Agg"
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    check_suffix(path)
    kind = Path(path).suffix[1:].lower()
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(9, 5.6), layout="constrained")
        _draw(axes, result)
        title = f"{result.model}: prompts of {result.isl:,} tokens, answers of {result.osl:,}"
        if result.changes:
            title += f"\non GPUs{changed(result.changes)}"
        figure.suptitle(wrapped(title, 80), fontsize=13, fontweight="bold", x=0.01, ha="left")
        best = result.plans[0]
        axes.set_title(f"best plan: {best.gpus} {best.gpu}, {instances(best)}, batch {best.batch:,}", fontsize=9, loc="left")
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        plt.close(figure)
    write_atomic(path, buffer.getvalue())


def _draw(axes: Axes, result: PlanResult) -> None:
    names = list(dict.fromkeys(plan.gpu for plan in (*result.pareto, *result.plans)))
    for place, name in enumerate(names):
        colour = LINES[place % len(LINES)]
        _front(axes, [plan for plan in result.pareto if plan.gpu == name], name, colour)
        for plan in (plan for plan in result.plans if plan.gpu == name):
            axes.scatter(*_at(plan), s=110, marker="*", color=colour, edgecolor="black", linewidth=0.6, zorder=5)
    for mode, mark in MARKS.items():
        axes.scatter([], [], marker=mark, color="#777777", s=26, label=mode)
    axes.scatter([], [], marker="*", color="#777777", edgecolor="black", s=110, label="plans within the limits")
    axes.set(xscale="log", yscale="log", xlabel="tokens/s of a user (1 / TPOT)", ylabel="answered tokens/s of a GPU")
    _plain_ticks(axes)
    axes.grid(True, which="both", alpha=0.2)
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def _plain_ticks(axes: Axes) -> None:
    """1, 2, 5, 10 ... as numbers: the style parses no mathematics."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def _front(axes: Axes, plans: list[Plan], name: str, colour: str) -> None:
    points = sorted(_at(plan) for plan in plans)
    low = sorted((plan.tokens_per_s_per_user, *plan.interval.tokens_per_s_per_gpu) for plan in plans)
    axes.fill_between([p[0] for p in low], [p[1] for p in low], [p[2] for p in low], color=colour, alpha=0.12, lw=0)
    axes.plot([p[0] for p in points], [p[1] for p in points], color=colour, lw=1.8, label=f"{name} (80 % interval)")
    for mode, mark in MARKS.items():
        own = [_at(plan) for plan in plans if plan.mode == mode]
        axes.scatter([p[0] for p in own], [p[1] for p in own], marker=mark, color=colour, s=26, zorder=4)


def _at(plan: Plan) -> tuple[float, float]:
    return plan.tokens_per_s_per_user, plan.tokens_per_s_per_gpu
