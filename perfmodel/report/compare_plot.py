"""Pictures of measured against predicted: a scatter, and residuals by tokens and by regime."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.files import write_atomic
from perfmodel.report.gap_plot import STYLE, check_suffix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

KERNEL_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's: told apart by the colour-blind, on white and on black."""
OTHERS = "#8c8c8c"
INK = "#010203"
"""Of text and axes; a page puts its own colour in its place."""
WIDE = 1.5
"""Residuals beyond this factor are drawn at the edge."""
LEAST_OF_A_MEDIAN = 5
"""Rows."""
REGIMES = ("overhead", "memory", "link", "compute")
Points = Mapping[str, Sequence[Any]]
Draw = Callable[["Axes", Points, Mapping[str, str]], None]


def save(result: Mapping[str, Any], points: Points, path: str) -> None:
    """Draw all three pictures beside each other into a PNG, SVG or PDF."""
    check_suffix(path)
    kind = Path(path).suffix[1:].lower()
    write_atomic(path, _rendered((16.0, 5.2), list(PICTURES.values()), points, kind, title=_title(result)))


def svg(name: str, points: Points) -> str:
    """One of PICTURES as an <svg> element that fits the width it is given and takes the text colour of the page around it."""
    text = _rendered((5.0, 4.2), [PICTURES[name]], points, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(
        r'<svg ([^>]*?)width="[^"]*" height="[^"]*"|<svg ([^>]*?)height="[^"]*" ([^>]*?)width="[^"]*"', r"<svg \1\2\3", text, count=1
    )
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for mark in ('id="', 'href="#', "url(#"):  # several pictures on a page
        text = text.replace(mark, f"{mark}{name}-")
    return text.replace(INK, "currentColor")


def colours(points: Points) -> dict[str, str]:
    """Kernel -> colour, the commonest first; all beyond the colours there are share a grey."""
    common = [kernel for kernel, _ in Counter(points["kernel"]).most_common()]
    return {kernel: KERNEL_COLOURS[i] if i < len(KERNEL_COLOURS) else OTHERS for i, kernel in enumerate(common)}


def _title(result: Mapping[str, Any]) -> str:
    overall = result["overall"]
    median = "-" if overall["median_ape"] is None else f"{overall['median_ape']:.1%}"
    return f"{result['target']}: {overall['scored']:,} rows scored, median error {median}"


def _rendered(size: tuple[float, float], draw: Sequence[Draw], points: Points, kind: str, title: str = "") -> bytes:
    import os
    import warnings

    os.environ["MPLBACKEND"] = "Agg"
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    ink = {f"{part}color": INK for part in ("text.", "axes.label", "xtick.", "ytick.", "axes.edge")}
    style = STYLE | ink | {"figure.facecolor": "none" if kind == "svg" else "white", "axes.facecolor": "none"}
    with plt.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        figure, axes = plt.subplots(1, len(draw), figsize=size, layout="constrained", squeeze=False)
        chosen = colours(points)
        for axis, one in zip(axes[0], draw, strict=True):
            one(axis, points, chosen)
        _legend(figure, chosen)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
        plt.close(figure)
    return buffer.getvalue()


def _legend(figure: Figure, chosen: Mapping[str, str]) -> None:
    """Kernels under the pictures; those that share the grey as one."""
    from matplotlib.lines import Line2D

    named = [(kernel, colour) for kernel, colour in chosen.items() if colour != OTHERS]
    rest = len(chosen) - len(named)
    named += [(f"{rest} others", OTHERS)] if rest else []
    handles = [Line2D([], [], marker="o", ls="", color=colour, label=kernel) for kernel, colour in named]
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=3 if figure.get_figwidth() < 8 else 7, frameon=False, fontsize=8)


def scatter(axes: Axes, points: Points, chosen: Mapping[str, str]) -> None:
    """Predicted against measured time, both on logarithmic axes, with the diagonal and 20 % to either side."""
    measured, predicted = (np.array(points[name], float) for name in ("measured_us", "predicted_us"))
    axes.set(xscale="log", yscale="log", xlabel="measured [µs]", ylabel="predicted [µs]", title="Predicted against measured")
    _dots(axes, measured, predicted, points, chosen)
    if len(measured):
        ends = np.array([min(measured.min(), predicted.min()), max(measured.max(), predicted.max())])
        for factor, line in ((1.0, "-"), (1.2, ":"), (1 / 1.2, ":")):
            axes.plot(ends, ends * factor, color=INK, lw=0.8, ls=line, zorder=3)
    _plain(axes.xaxis, axes.yaxis)


def by_tokens(axes: Axes, points: Points, chosen: Mapping[str, str]) -> None:
    """Predicted over measured, against tokens; the line is the median near each power of two."""
    tokens = np.array(points["tokens"], float)
    axes.set(xscale="log", xlabel="tokens (of each expert for single GEMMs)", title="Residuals by tokens")
    ratio = _ratio(points)
    _dots(axes, tokens, ratio, points, chosen)
    power = np.round(np.log2(np.maximum(tokens, 1.0)))
    steps = [step for step in np.unique(power) if (power == step).sum() >= LEAST_OF_A_MEDIAN]
    axes.plot([2.0**step for step in steps], [np.median(ratio[power == step]) for step in steps], color=INK, lw=2, zorder=3)
    _plain(axes.xaxis)
    _residual_axis(axes)


def by_regime(axes: Axes, points: Points, chosen: Mapping[str, str]) -> None:
    """Predicted over measured in each regime: box from quarter to quarter, whiskers from tenth to tenth."""
    ratio, regime = _ratio(points), np.array(points["regime"], str)
    there = [name for name in REGIMES if (regime == name).any()]
    if there:
        axes.boxplot(
            [ratio[regime == name] for name in there], whis=(10, 90), showfliers=False, widths=0.5,
            boxprops={"color": INK}, whiskerprops={"color": INK}, capprops={"color": INK},
            medianprops={"color": KERNEL_COLOURS[1], "lw": 2},
        )  # fmt: skip
        axes.set_xticks(range(1, len(there) + 1), [f"{name}\n{int((regime == name).sum()):,}" for name in there])
    axes.set(xlabel="nearest limit, rows drawn", title="Residuals by regime")
    _residual_axis(axes)


def _dots(axes: Axes, x: np.ndarray, y: np.ndarray, points: Points, chosen: Mapping[str, str]) -> None:
    kernel = np.array(points["kernel"], str)
    for name in reversed(list(chosen)):
        mine = kernel == name
        axes.scatter(x[mine], y[mine], s=9, color=chosen[name], alpha=0.7, lw=0)
    axes.grid(color=OTHERS, alpha=0.25, lw=0.5)


def _plain(*axes: Axis) -> None:
    """1,000 in place of a power of ten: the style draws no formulas."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,.10g}"))
        axis.set_minor_formatter(NullFormatter())


def _ratio(points: Points) -> np.ndarray:
    ratio = np.array(points["predicted_us"], float) / np.array(points["measured_us"], float)
    clipped: np.ndarray = np.clip(ratio, 1 / WIDE, WIDE)
    return clipped


def _residual_axis(axes: Axes) -> None:
    axes.set(yscale="log", ylim=(1 / WIDE / 1.03, WIDE * 1.03), ylabel="predicted / measured")
    ticks = (1 / WIDE, 0.8, 0.9, 1.0, 1.1, 1.25, WIDE)
    axes.set_yticks(ticks, [f"{tick:.2f}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.axhline(1.0, color=INK, lw=0.8)


PICTURES: dict[str, Draw] = {"scatter": scatter, "tokens": by_tokens, "regime": by_regime}
"""Name -> what draws it."""
