"""Runs as CSV or Parquet: each row carries its whole provenance, so that a file can be split, joined and read again without loss."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.files import write_atomic
from perfmodel.validation.runs.record import NAMES, Run, parse_run, sql_type

HEAD = "# perfmodel runs, schema 1: a measurement a row; `perfmodel runs import` reads it"
ENDINGS = (".csv", ".parquet")
MARKS = ("run_id", "point", "kernel", "flop")
"""Columns by which a file of ours is known."""


def write_runs(path: Path, runs: Sequence[Run]) -> None:
    """Write runs as CSV or Parquet, whole or not at all. Raises PerfModelError for another ending."""
    check_ending(path)
    write_atomic(path, _csv(runs) if path.suffix == ".csv" else _parquet(runs))


def check_ending(path: Path) -> None:
    """Raises PerfModelError for a file that is neither CSV nor Parquet."""
    if path.suffix not in ENDINGS:
        raise PerfModelError("must end in .csv or .parquet", field="FILE", value=str(path), mend=did_you_mean(path.suffix, ENDINGS))


def read_parquet(path: Path) -> list[Run]:
    """Runs of a Parquet file that `write_runs` made. Raises PerfModelError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.exists():
        raise PerfModelError("is not there", file=path, mend="Check the path.")
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise PerfModelError("is no Parquet file that can be read", file=path, mend="Export it again.") from error
    if not set(MARKS) <= set(table.column_names):
        raise PerfModelError("holds no runs", file=path, mend=f"It needs the columns {', '.join(MARKS)}, ...")
    check_columns(path, table.column_names, 1)
    return [parse_run(row, file=str(path), line=line) for line, row in enumerate(table.to_pylist(), 1)]


def check_columns(path: Path, names: Sequence[str], line: int) -> None:
    """Raises PerfModelError for a column that is unknown, whose figures would be lost, or stands there twice."""
    for place, name in enumerate(names):
        if name not in NAMES:
            raise PerfModelError("no such column", file=path, line=line, field=name, mend=did_you_mean(name, NAMES))
        if name in names[:place]:
            raise PerfModelError("the column stands there twice", file=path, line=line, field=name, mend="Keep one of the two.")


def read_rows(path: Path, rows: Iterator[tuple[int, dict[str, Any]]]) -> list[Run]:
    """Runs of the (line, cells) of a CSV file that `write_runs` made."""
    return [parse_run(cells, file=str(path), line=line) for line, cells in rows]


def _csv(runs: Sequence[Run]) -> str:
    text = io.StringIO()
    text.write(HEAD + "\n")
    writer = csv.DictWriter(text, NAMES, lineterminator="\n")
    writer.writeheader()
    writer.writerows(run.model_dump() for run in runs)
    return text.getvalue()


def _parquet(runs: Sequence[Run]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"VARCHAR": pa.string(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_()}
    columns = {name: pa.array([getattr(run, name) for run in runs], types[sql_type(name)]) for name in NAMES}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns).replace_schema_metadata({"perfmodel": HEAD.lstrip("# ")}), sink)
    raw: bytes = sink.getvalue().to_pybytes()
    return raw
