"""The comparison as one HTML page: figures, pictures, worst misses, checks. Self-contained, without scripts; light, dark, on a phone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError
from perfmodel.files import is_folder, write_atomic
from perfmodel.report.compare_plot import PICTURES, Points, svg
from perfmodel.report.validate import percent
from perfmodel.units import MB

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --line: #d5d8dc; --soft: #5b6168; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --paper: #16181b; --line: #3a3f45; --soft: #a3a9b0; } }
body { color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.soft { color: var(--soft); }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 1rem; }
figure { margin: 0; } figure svg { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
"""
CAPTIONS = {
    "scatter": "Each dot is a row. The dotted lines are 20 % off.",
    "tokens": "Above 1 the model is too slow; the line is the median. What is further off than 1.5 times lies at the edge.",
    "regime": "overhead: predicted at over three times its floor; else the higher roof, compute or memory, or the link between GPUs.",
}
ERRORS = ("median_ape", "mape", "p90_ape", "bias", "coverage80")
HEADS = ("scored", "median", "mean", "p90", "bias", "in 80 %")
MOST_FAMILIES = 60
"""Of checks."""


def check_page(path: str) -> None:
    """Raises PerfModelError for a name that is no page, or a folder that is not there; call it before the work."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise PerfModelError("is no page", field="--html", value=path, mend="End the name in .html.")
    if len(path) > 1000 or not is_folder(Path(path).parent):
        raise PerfModelError("the folder does not exist", field="--html", value=path, mend="Choose a folder that exists.")


def save(result: Mapping[str, Any], points: Points, path: str) -> None:
    """Write the page, whole or not at all."""
    check_page(path)
    write_atomic(path, page(result, points))


def page(result: Mapping[str, Any], points: Points) -> str:
    """The page as text."""
    title = f"Model against measurements: {result['target']}"
    body = [
        f"<h1>{escape(title)}</h1>",
        *_about(result),
        *_pictures(points),
        *_scores(result),
        *_dram(result),
        *_worst(result),
        *_checks(result),
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
    return (
        f'<!doctype html>\n<html lang="en">\n<head>{head}<style>{STYLE}</style></head>\n<body>\n' + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _about(result: Mapping[str, Any]) -> Iterable[str]:
    """What data, when, which versions; the figures over all."""
    overall = result["overall"]
    flagged = ", ".join(f"{count:,} {reason}" for reason, count in overall["flagged_by"].items()) or "none"
    yield (
        f"<p><strong>{overall['scored']:,} of {overall['n']:,} rows scored: median error {percent(overall['median_ape'])}, mean "
        f"{percent(overall['mape'])}, 80 % intervals hold {percent(overall['coverage80'])}.</strong> Flagged: {escape(flagged)}.</p>"
    )
    versions = ", ".join(f"{package} {number}" for package, number in result["versions"].items())
    yield f'<p class="soft">Made {escape(result["made"])} with {escape(versions)}.</p>'
    yield "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in [*result["data"], *result["notes"]]) + "</ul>"


def _pictures(points: Points) -> Iterable[str]:
    shown, of = len(points["tokens"]), points["of"][0]
    yield f'<h2>Pictures</h2><p class="soft">{shown:,} of {of:,} scored rows are drawn.</p>'
    figures = (f'<figure>{svg(name, points)}<figcaption class="soft">{escape(CAPTIONS[name])}</figcaption></figure>' for name in PICTURES)
    yield '<div class="pictures">' + "".join(figures) + "</div>"


def _scores(result: Mapping[str, Any]) -> Iterable[str]:
    for title, key, name in (
        ("By regime", "regimes", lambda row: row["regime"]),
        ("By tokens", "tokens", lambda row: f"{row['from']:,} to {row['to']:,}"),
        ("By family", "families", lambda row: f"{row['gpu']} {row['kernel']} {row['format']}"),
    ):
        rows = [[name(row), f"{row['scored']:,}/{row['n']:,}", *_errors(row)] for row in result[key]]
        yield f"<h2>{title}</h2>" + _table((title.removeprefix("By "),), HEADS, rows)


def _errors(row: Mapping[str, Any]) -> list[str]:
    return [percent(row[name], signed=name == "bias") for name in ERRORS]


def _dram(result: Mapping[str, Any]) -> Iterable[str]:
    if not result.get("counter_rows"):
        return
    dram = result["dram_bytes"]
    yield f"<h2>DRAM bytes</h2><p>{dram['scored']} grouped GEMMs under the profiler: median error {percent(dram['median_ape'])}.</p>"
    rows = []
    for row in result["counter_rows"]:
        sizes = ", ".join(f"{name} {row[name]}" for name in ("experts", "n", "k", "tokens_per_expert") if name in row)
        counted, predicted = row["dram_bytes"], row["predicted_dram_bytes"]
        figures = [f"{counted / MB:,.1f}", f"{predicted / MB:,.1f}", percent(predicted / counted - 1, signed=True)]
        rows.append([row["kernel"], sizes, *figures, "-" if row["l2_hit_pct"] is None else f"{row['l2_hit_pct']:.0f} %"])
    yield _table(("kernel", "sizes"), ("counted MB", "predicted MB", "error", "L2 hits"), rows)


def _worst(result: Mapping[str, Any]) -> Iterable[str]:
    rows = []
    for row in result["worst"]:
        words = " ".join(str(row[name]) for name in ("gpu", "kernel", "format", "routing", "source") if row.get(name))
        rows.append([words, row["sizes"], f"{row['latency_us']:,.1f}", f"{row['predicted_us']:,.1f}", percent(row["error"], signed=True)])
    yield "<h2>Rows furthest off</h2>" + _table(("row", "sizes"), ("measured µs", "predicted µs", "error"), rows)


def _checks(result: Mapping[str, Any]) -> Iterable[str]:
    """What is wrong in the measurements themselves."""
    checks, overall = result["checks"]["checks"], result["checks"]["overall"]
    yield f"<h2>Checks on the measurements</h2><p>{overall['any']:,} of {overall['n']:,} rows fail one or more.</p>"
    yield "<ul>" + "".join(f"<li>{escape(name)}, {overall[name]:,}: {escape(text)}</li>" for name, text in checks.items()) + "</ul>"
    failing = [family for family in result["checks"]["families"] if family["any"]]
    rows = [
        [f"{family['kernel']} {family['gpu']} {family['source']}", *(f"{family[name]:,}" for name in ("n", "any", *checks))]
        for family in failing[:MOST_FAMILIES]
    ]
    if rows:
        yield _table(("family",), ("rows", "any", *checks), rows)
    if len(failing) > MOST_FAMILIES:
        yield f'<p class="soft">and {len(failing) - MOST_FAMILIES} families with fewer.</p>'


def _table(names: Sequence[str], figures: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first columns are words and whose others are numbers. Every cell is escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names) + "".join(f'<th class="n">{escape(name)}</th>' for name in figures)

    def cell(place: int, text: str) -> str:
        return f"<td>{escape(text)}</td>" if place < len(names) else f'<td class="n">{escape(text)}</td>'

    lines = ("<tr>" + "".join(cell(place, text) for place, text in enumerate(row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
