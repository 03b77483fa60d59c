"""Plotly figures as dictionaries: time by cause, roofline, Pareto fronts. The style sheet colours their text and lines."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import Any

from perfmodel.page.words import gpu_name
from perfmodel.planning.results import Plan, PlanResult
from perfmodel.report.gap import label, parts
from perfmodel.report.numbers import number, percent
from perfmodel.report.palette import COLOURS
from perfmodel.report.plan import instances

Figure = dict[str, Any]
CAUSE_COLOURS = COLOURS | {"communication": "#5f4b32"}
"""As in the terminal and in files, but for black, which a dark page would swallow."""
PATTERNS = {
    "sustained clock": "|", "tile padding": "\\", "routing imbalance": "/", "communication": "x",
}  # fmt: skip
"""Hatches tell apart what a colour-blind eye could mistake."""
REACHED, CHOSEN, ROOF = "#3a7fc1", "#e8590c", "#7b8794"
"""What is reached, the token count that is explained, and the roof."""
FRONTS = ("#3a7fc1", "#d1495b", "#2a9d63", "#9d5fb5", "#a8641b", "#35978f")
"""A colour a GPU, beside a dash a GPU."""
FONT = {"family": "Inter, Roboto, system-ui, sans-serif", "size": 13, "color": "#1f2933"}
MOST_LABELS = 12
"""Labels along an axis that do not collide."""
COLUMN, LEAST_COLUMNS = 0.72, 4
"""Width of a column where the next one is 1 away, and the columns that there is room for at least."""
ROOMY = 20
"""Right of the ridge by this factor its label has room on a phone, and no point is near."""
CONFIG = {"displayModeBar": False, "responsive": True, "scrollZoom": False}


def _layout(**more: Any) -> Figure:
    axis = {"gridcolor": "#e3e7eb", "linecolor": "#9aa5b1", "zeroline": False, "automargin": True}
    base: Figure = {
        "font": FONT, "paper_bgcolor": "#ffffff", "plot_bgcolor": "rgba(0,0,0,0)", "margin": {"l": 56, "r": 16, "t": 24, "b": 48},
        "showlegend": False, "hoverlabel": {"font": {"family": FONT["family"]}}, "xaxis": dict(axis), "yaxis": dict(axis),
        "dragmode": False,
    }  # fmt: skip
    for name, value in more.items():
        base[name] = base[name] | value if isinstance(value, dict) and isinstance(base.get(name), dict) else value
    return base


def shown_causes(result: dict[str, Any]) -> list[str]:
    """The parts that take 1 % or more of some row: those that the eye can see."""
    rows = result["rows"]
    names = [cause for cause, _ in parts(rows[0])]
    return [name for place, name in enumerate(names) if any(parts(row)[place][1] >= 0.01 * row["latency_us"] for row in rows)]


def marker(cause: str) -> Figure:
    """Colour and hatch of a cause, the same in every plot."""
    pattern = {"shape": PATTERNS.get(cause, ""), "size": 6, "solidity": 0.2, "fillmode": "overlay", "fgcolor": "#ffffff", "fgopacity": 0.5}
    return {"color": CAUSE_COLOURS[cause], "line": {"width": 0}, "pattern": pattern}


def time_by_cause(result: dict[str, Any], at: int, *, shares: bool) -> Figure:
    """Stacked time of each token count by cause: shares in percent, or microseconds. The row of `at` tokens stands out."""
    rows = result["rows"]
    names = [_tokens(row["tokens"]) for row in rows]
    places, labelled = list(range(len(rows))), _labelled(rows, at)
    data: list[Figure] = []
    for cause in shown_causes(result):
        times = [dict(parts(row))[cause] for row in rows]
        portions = [t / row["latency_us"] for t, row in zip(times, rows, strict=True)]
        data.append({
            "type": "bar", "name": label(cause), "x": places, "width": COLUMN, "y": [100 * p for p in portions] if shares else times,
            "marker": marker(cause), "hovertext": names,
            "customdata": [[number(t), percent(p), row["tokens"]] for t, p, row in zip(times, portions, rows, strict=True)],
            "hovertemplate": f"<b>{label(cause)}</b><br>%{{customdata[0]}} µs, %{{customdata[1]}}<br>%{{hovertext}} tokens<extra></extra>",
        })  # fmt: skip
    tops = [100.0 if shares else row["latency_us"] for row in rows]
    notes = [
        {"x": at_x, "y": top, "text": f"<b>{number(row['latency_us'])}</b>" if row["tokens"] == at else number(row["latency_us"]),
         "showarrow": False, "yshift": 10, "font": {"size": 11}}
        for at_x, top, row in zip(places, tops, rows, strict=True) if at_x in labelled
    ]  # fmt: skip
    place = next((i for i, row in enumerate(rows) if row["tokens"] == at), None)
    frame = [] if place is None else [_frame(place, tops[place])]
    layout = _layout(
        barmode="stack", annotations=notes, shapes=frame,
        xaxis=_title("tokens entering the layer") | _columns(len(rows), labelled) | {"ticktext": [names[i] for i in labelled]},
        yaxis=_title("share of the time (%)" if shares else "time (µs)") | {"range": [0, 108] if shares else [0, 1.08 * max(tops)]},
    )  # fmt: skip
    return {"data": data, "layout": layout, "config": CONFIG}


def _labelled(rows: list[dict[str, Any]], at: int) -> list[int]:
    """Places of the rows that get a label: as many as do not collide, and the chosen one in place of its neighbours."""
    step = -(-len(rows) // MOST_LABELS)
    chosen = [i for i, row in enumerate(rows) if row["tokens"] == at]
    return sorted({*chosen, *(i for i in range(0, len(rows), step) if not any(0 < abs(i - c) < step for c in chosen))})


def _columns(count: int, labelled: list[int]) -> Figure:
    """An axis of `count` columns, with room for some where they are few; no label is left out, it turns where it lacks the room."""
    side = max(count, LEAST_COLUMNS) / 2
    middle = (count - 1) / 2
    labels = {"tickvals": labelled, "autotickangles": [0, 45, 90], "ticklabeloverflow": "allow"}
    return {"range": [middle - side, middle + side], "showgrid": False, **labels}


def _frame(place: int, top: float) -> Figure:
    half = COLUMN / 2 + 0.04
    return {"type": "rect", "x0": place - half, "x1": place + half, "y0": 0, "y1": top, "line": {"color": CHOSEN, "width": 2}}


def _tokens(count: int) -> str:
    return f"{count:,}"


def roofline(result: dict[str, Any], at: int) -> Figure:
    """Reached TFLOPS against FLOP per byte, under the roof of bandwidth and peak; the ridge is where they meet."""
    rows, peak = result["rows"], result["peak_tflops"]
    ridge = rows[0]["ridge"]
    x = [row["arithmetic_intensity"] for row in rows]
    left, right, low = min([*x, ridge]) / 2, max([*x, ridge]) * 2.5, min(row["tflops"] for row in rows) / 2
    roof = {"x": [left, ridge, right], "y": [peak * left / ridge, peak, peak], "line": {"color": ROOF, "width": 2}}
    fall = {"x": [ridge, ridge], "y": [low, peak], "line": {"color": ROOF, "width": 1, "dash": "dot"}}
    line = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    note = {"showarrow": False, "xanchor": "right", "font": {"size": 12}}
    beside = {"xanchor": "left", "xshift": 6} if right > ROOMY * ridge else {"xshift": -6}
    layout = _layout(
        xaxis=_title("arithmetic intensity (FLOP/B)") | _decades(left, right),
        yaxis=_title("TFLOPS") | _decades(low / 1.3, peak * 1.8),
        annotations=[
            {"x": _log(ridge), "y": _log(low), "text": f"ridge {ridge:,.0f} FLOP/B", "yshift": 8, **note, **beside},
            {"x": _log(right), "y": _log(peak), "text": f"peak {peak:,.0f} TFLOPS", "yshift": 11, **note},
        ],
    )
    data = [{**line, "name": "roof", **roof}, {**line, "name": "ridge", **fall}, _reached(rows, at)]
    return {"data": data, "layout": layout, "config": CONFIG}


def _reached(rows: list[dict[str, Any]], at: int) -> Figure:
    """The rows as points under the roof, the chosen one larger."""
    chosen, labelled = [row["tokens"] == at for row in rows], _labelled(rows, at)
    flat = [row["arithmetic_intensity"] > row["ridge"] for row in rows]
    return {
        "type": "scatter", "mode": "lines+markers+text", "name": "reached", "line": {"color": REACHED, "width": 2},
        "x": [row["arithmetic_intensity"] for row in rows], "y": [row["tflops"] for row in rows],
        "marker": {"size": [13 if c else 8 for c in chosen], "color": [CHOSEN if c else REACHED for c in chosen], "opacity": 1},
        "text": [_tokens(row["tokens"]) if i in labelled else "" for i, row in enumerate(rows)],
        "textposition": ["bottom center" if f else "bottom right" for f in flat], "cliponaxis": False, "textfont": {"size": 11},
        "customdata": [[number(row["tflops"]), number(row["arithmetic_intensity"]), row["tokens"]] for row in rows],
        "hovertemplate": "<b>%{customdata[2]:,} tokens</b><br>%{customdata[0]} TFLOPS at %{customdata[1]} FLOP/B<extra></extra>",
    }  # fmt: skip


def _log(value: float) -> float:
    return log10(value)


def _title(words: str) -> Figure:
    return {"title": {"text": words, "standoff": 10, "font": {"size": 13}}}


def _decades(low: float, high: float) -> Figure:
    """A logarithmic axis from `low` to `high` with its ticks at the powers of ten."""
    return {"type": "log", "dtick": 1, "tickformat": ",~r", "range": [_log(low), _log(high)]}


def _ticks(values: list[float]) -> Figure:
    """A logarithmic axis with its ticks at 1, 2 and 5."""
    low, high = min(values), max(values)
    ticks = [digit * 10.0**power for power in range(floor(_log(low)), ceil(_log(high)) + 1) for digit in (1, 2, 5)]
    near = [tick for tick in ticks if low / 2.2 <= tick <= high * 2.2]
    return {"type": "log", "tickvals": near, "ticktext": [number(tick) for tick in near]}


def pareto(result: PlanResult) -> Figure:
    """Answered tokens/s of a GPU against those of a user: a front a GPU, the plans within the limits as stars."""
    data: list[Figure] = []
    names = list(dict.fromkeys(p.gpu for p in (*result.pareto, *result.plans)))
    for place, name in enumerate(names):
        colour, dash = FRONTS[place % len(FRONTS)], ("solid", "dash", "dot", "dashdot")[place % 4]
        front = sorted((p for p in result.pareto if p.gpu == name), key=lambda p: p.tokens_per_s_per_user)
        data.append(
            _points(front, gpu_name(name), {"mode": "lines+markers", "line": {"color": colour, "width": 2, "dash": dash}}, colour, 6)
        )
        best = [p for p in result.plans if p.gpu == name]
        data.append(_points(best, f"{gpu_name(name)}: plans", {"mode": "markers"}, colour, 15))
        data[-1]["marker"] |= {"symbol": "star", "line": {"width": 1, "color": "#ffffff"}}
    layout = _layout(
        xaxis=_title("tokens/s of a user (1 / TPOT)") | _ticks([p.tokens_per_s_per_user for p in (*result.pareto, *result.plans)]),
        yaxis=_title("answered tokens/s of a GPU") | _ticks([p.tokens_per_s_per_gpu for p in (*result.pareto, *result.plans)]),
        showlegend=True,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    )  # fmt: skip
    return {"data": [trace for trace in data if trace["x"]], "layout": layout, "config": CONFIG}


def _points(plans: list[Plan], name: str, style: Figure, colour: str, size: int) -> Figure:
    return {
        "type": "scatter", "name": name, **style, "marker": {"size": size, "color": colour},
        "x": [p.tokens_per_s_per_user for p in plans], "y": [p.tokens_per_s_per_gpu for p in plans],
        "customdata": [[f"{p.gpus} × {gpu_name(p.gpu)}, {instances(p)}, {p.format}", number(p.tokens_per_s_per_gpu),
                        number(p.tokens_per_s_per_user), p.batch] for p in plans],
        "hovertemplate": "<b>%{customdata[0]}</b><br>batch %{customdata[3]}<br>%{customdata[1]} tokens/s per GPU, "
                         "%{customdata[2]} tokens/s per user<extra></extra>",
    }  # fmt: skip


def for_file(drawn: Figure, title: str) -> Figure:
    """The figure as it is saved: with its title and legend, which the page writes around it."""
    margin = {"l": 70, "r": 30, "t": 90, "b": 140}
    heading = {"text": title, "x": 0.02, "xanchor": "left", "font": {"size": 18}}
    legend = {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0, "traceorder": "normal"}
    font = FONT | {"family": "Arial, Helvetica, sans-serif"}  # a picture has no web fonts: widths are those of what it is drawn with
    layout = drawn["layout"] | {
        "font": font,
        "title": heading,
        "margin": margin,
        "showlegend": True,
        "legend": legend,
        "width": 1100,
        "height": 700,
    }
    return {"data": drawn["data"], "layout": layout}
