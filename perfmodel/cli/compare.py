"""`perfmodel compare`: the model against measurements, as tables, a picture or a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import JsonOption, note, print_json
from perfmodel.errors import PerfModelError

if TYPE_CHECKING:
    from perfmodel.validation.compare import Compared

HELP = """Show how far the model is from measurements, and what is wrong in the measurements themselves: error tables by family, regime and
tokens, a scatter, residuals, the worst misses. Of `runs` of our kernels, the bundled `tables`, the public `silicon` data, or a CSV.

Example: `perfmodel compare runs --html runs.html` or `perfmodel compare silicon --rows rows.parquet --plot silicon.png`
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", help=HELP)(compare)


def compare(
    target: Annotated[str, typer.Argument(metavar="[runs|tables|silicon|FILE.csv]", help="What to hold the model against.")] = "runs",
    store: Annotated[Path | None, typer.Option("--store", help="Of `runs`: those of this store of `measure`, too.")] = None,
    op: Annotated[str, typer.Option("--op", help="Of `silicon`: moe, gemm, ...")] = "moe",
    rows: Annotated[
        Path | None, typer.Option("--rows", help="Of `silicon`: what `validate silicon --rows` wrote, instead of predicting anew.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page there: self-contained, without scripts.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write the pictures there: .png, .svg or .pdf.")] = None,
    points: Annotated[int, typer.Option("--points", min=10, max=20_000, help="At most so many dots in a picture.")] = 3000,
    json: JsonOption = False,
) -> None:
    """Compare and show."""
    from perfmodel.report import compare as report
    from perfmodel.report import compare_page, compare_plot
    from perfmodel.report.gap_plot import check_suffix

    if html is not None:
        compare_page.check_page(str(html))
    if plot is not None:
        check_suffix(str(plot))
    found = _compared(target, store, op, rows)
    result = found.result()
    drawn = found.points(points) if html or plot else {}
    if html is not None:
        compare_page.save(result, drawn, str(html))
        note(f"wrote {html}")
    if plot is not None:
        compare_plot.save(result, drawn, str(plot))
        note(f"wrote {plot}")
    if json:
        print_json(result)
    elif html is None and plot is None:
        report.print_comparison(result)
    else:
        report.print_summary(result)


def _compared(target: str, store: Path | None, op: str, rows: Path | None) -> Compared:
    from perfmodel.cli.validate import validation_of
    from perfmodel.validation import compare as comparing

    for name, given, wanted in (
        ("--store", store is not None, "runs"),
        ("--rows", rows is not None, "silicon"),
        ("--op", op != "moe", "silicon"),
    ):
        if given and target != wanted:
            raise PerfModelError(f"goes with `{wanted}`", field=name, value=target, mend=f"Write perfmodel compare {wanted}.")
    if target == "runs":
        from perfmodel.validation.runs.validate import validate_runs

        return comparing.compare_runs(validate_runs(store=store))
    if target != "silicon":
        return comparing.compare_tables(validation_of(target, None, None))
    if rows is not None:
        return comparing.compare_rows(rows)
    from perfmodel.validation.silicon.validate import validate_silicon

    return comparing.compare_silicon(validate_silicon(op))
