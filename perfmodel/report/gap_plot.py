"""The gap as a picture: TFLOPS against tokens with every loss between the peak and what is reached, and the shares of the time."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.files import is_folder, write_atomic
from perfmodel.report.gap import conditions, subject
from perfmodel.report.palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LABELS = 9
"""Labels along the axis that do not collide."""
SUFFIXES = (".png", ".svg", ".pdf")
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "perfmodel",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def check_suffix(path: str) -> None:
    """Raises PerfModelError for a picture format that is not offered; call it before the work."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise PerfModelError("no such picture format", field="plot", value=path, mend=f"End the name in {', '.join(SUFFIXES)}.")
    folder = Path(path).parent
    if len(str(path)) > 1000 or not is_folder(folder):
        raise PerfModelError("the folder does not exist", field="plot", value=path, mend="Choose a folder that exists.")


def wrapped(text: str, width: int) -> str:
    """Lines of at most `width` characters, so that a title ends within the picture."""
    return "\n".join(textwrap.fill(line, width) for line in text.splitlines())


def save(result: dict[str, Any], path: str) -> None:
    """Draw the object of `perfmodel.gap` and write it, whole or not at all, as PNG, SVG or PDF."""
    import io
    import os
    import warnings

    os.environ["MPLBACKEND"] = "Agg"  # whatever stands there: this draws into a file
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    check_suffix(path)
    rows = sorted({row["tokens"]: row for row in result["rows"]}.values(), key=lambda row: row["tokens"])
    every = -(-len(rows) // MOST_LABELS)
    with plt.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name in a script that the font lacks: boxes say enough
        figure, (top, bottom) = plt.subplots(2, 1, figsize=(10.5, 8.4), sharex=True, height_ratios=[3, 2], layout="constrained")
        _draw_tflops(top, rows, result, every)
        _draw_shares(bottom, rows, every)
        figure.suptitle(
            wrapped(f"{subject(result)}: where {result['peak_tflops']:,.0f} TFLOPS go", 85),
            fontsize=13, fontweight="bold", x=0.01, ha="left",
        )  # fmt: skip
        top.set_title(wrapped(conditions(result), 110), fontsize=9, loc="left")
        handles, labels = (a + b for a, b in zip(top.get_legend_handles_labels(), bottom.get_legend_handles_labels(), strict=True))
        figure.legend(handles, labels, loc="outside right upper", frameon=False, title="lost to", alignment="left")
        buffer = io.BytesIO()
        kind = Path(path).suffix[1:].lower()
        figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        plt.close(figure)
    write_atomic(path, buffer.getvalue())


def _draw_tflops(axes: Axes, rows: list[dict[str, Any]], result: dict[str, Any], every: int) -> None:
    """Bands on a log scale: the height of a band is the factor that its cause costs. A single row is drawn as a short stretch."""
    alone = len(rows) == 1
    tokens = np.array([row["tokens"] for row in rows], dtype=float)
    if alone:
        rows, tokens = rows * 2, np.array([tokens[0] / 1.4, tokens[0] * 1.4])
    from matplotlib.patheffects import withStroke

    flops = np.array([row["flops"] for row in rows])
    time = np.array([row["ideal_us"] for row in rows]) * 1e-6
    latency = np.array([row["latency_us"] for row in rows])
    for place, cause in enumerate(x["cause"] for x in rows[0]["losses"]):
        lost = np.array([row["losses"][place]["us"] for row in rows]) * 1e-6
        if (lost * 1e6 > 0.005 * latency).any():
            axes.fill_between(tokens, flops / time / 1e12, flops / (time + lost) / 1e12, color=COLOURS[cause], label=cause, lw=0)
        time = time + lost
    reached = flops / latency / 1e6
    low, high = (flops / np.array([row["interval_us"][i] for row in rows]) / 1e6 for i in (1, 0))
    axes.axhline(result["peak_tflops"], color="black", lw=1.4, ls="--", label="dense peak")
    roof = np.array([row["flops"] / row["floor_us"] / 1e6 for row in rows])
    axes.plot(tokens, np.minimum(roof, result["peak_tflops"]), color="white", lw=3.2)
    axes.plot(tokens, np.minimum(roof, result["peak_tflops"]), color="black", lw=1.4, ls=":", label="physical floor (roofline)")
    errors = np.abs(np.array([low, np.minimum(high, result["peak_tflops"])]) - reached)
    axes.errorbar(
        tokens,
        reached,
        errors,
        fmt="none",
        ecolor="black",
        elinewidth=1.2,
        capsize=4,
        path_effects=[withStroke(linewidth=3, foreground="white")],
        label="80 % interval",
        zorder=4,
    )
    axes.plot(tokens, reached, color=COLOURS["reached"], lw=2.6, marker="o", ms=6, mec="white", label="reached (predicted)", zorder=5)
    for x, y in list(zip(tokens, reached, strict=True))[:: 2 if alone else every]:
        text = f"{y:,.0f}" if y >= 10 else f"{y:.2g}"
        axes.annotate(text, (x, y), textcoords="offset points", xytext=(7, -13), ha="left", fontsize=8.5)
    axes.set(xscale="log", yscale="log", ylabel="TFLOPS of one layer on one GPU")
    axes.set_ylim(reached.min() / 3.5, result["peak_tflops"] * 1.5)
    axes.grid(True, which="major", alpha=0.25)
    from matplotlib.ticker import FuncFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}" if y >= 1 else f"{y:g}"))


def _draw_shares(axes: Axes, rows: list[dict[str, Any]], every: int) -> None:
    """Shares of the latency, each token count a column, with the latency above it."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    tokens = np.array([row["tokens"] for row in rows], dtype=float)
    latency = np.array([row["latency_us"] for row in rows])
    ratio = float(np.min(tokens[1:] / tokens[:-1])) if len(rows) > 1 else 4.0
    spread = ratio**0.38
    done = np.zeros(len(rows))
    names = ["reached", *(x["cause"] for x in rows[0]["losses"])]
    for place, cause in enumerate(names):
        part = np.array([row["ideal_us"] if place == 0 else row["losses"][place - 1]["us"] for row in rows]) / latency * 100
        axes.bar(
            tokens / spread,
            part,
            width=tokens * spread - tokens / spread,
            bottom=done,
            align="edge",
            color=COLOURS[cause],
            lw=0,
            label="at the peak" if place == 0 else None,
        )
        done += part
    for x, us in list(zip(tokens, latency, strict=True))[::every]:
        axes.annotate(f"{us:,.0f} µs" if us >= 10 else f"{us:.2g} µs", (x, 101), ha="center", va="bottom", fontsize=8.5)
    axes.set(ylabel="share of the time, %", xlabel="tokens entering the layer", ylim=(0, 112))
    axes.set_xticks(tokens[::every], [f"{int(t):,}" for t in tokens[::every]])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0f}" if y <= 100 else ""))
