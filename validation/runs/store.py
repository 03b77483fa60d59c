"""The store of runs: one DuckDB file. Each write is a transaction of its own and holds the file only meanwhile.

A writer that is killed leaves all rows that it had finished and nothing of the one it was at. DuckDB lets one process at a time have a
file; another one waits its turn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.errors import PerfModelError
from perfmodel.validated import validate
from perfmodel.validation.runs.record import NAMES, Run, sql_type

if TYPE_CHECKING:
    import duckdb

DEFAULT = "perfmodel-runs.duckdb"
"""In the working folder."""
SCHEMA = 1
WAIT_S = 60.0
"""How long to wait for another process."""
PAUSE_S = 0.05
MAGIC, MAGIC_AT = b"DUCK", 8
"""What stands in every DuckDB file, and where."""
Said = Callable[[str], None]
Row = tuple[Any, ...]


class Store:
    """Runs in a file, each once."""

    def __init__(self, path: str | Path = DEFAULT, *, wait_s: float = WAIT_S, note: Said = lambda text: None) -> None:
        """`note` hears when another process has the file. Nothing is opened or made before it is needed."""
        self.path, self._wait, self._note = Path(path), wait_s, note

    def add(self, runs: Iterable[Run]) -> int:
        """Write runs in one transaction, all or none of them; how many were not there before. Raises PerfModelError."""
        rows = [(run.key, *(getattr(run, name) for name in NAMES)) for run in runs]
        if not rows:
            return 0
        with self._open() as connection:
            connection.execute("BEGIN")
            before = _count(connection)
            marks = ", ".join("?" * (len(NAMES) + 1))
            connection.executemany(f"INSERT OR IGNORE INTO runs VALUES ({marks})", rows)
            added = _count(connection) - before
            connection.execute("COMMIT")
            return added

    def check(self) -> None:
        """Make the store where there is none. Raises PerfModelError where it cannot be written to or is something else."""
        with self._open():
            pass

    def runs(self) -> list[Run]:
        """All runs, in the order in which they were measured. Raises PerfModelError where there is no store, or something else in it."""
        rows = self._read(f"SELECT {', '.join(map(_quoted, NAMES))} FROM runs ORDER BY date, run_id, point, key")
        return [validate(Run, dict(zip(NAMES, row, strict=True)), file=self.path) for row in rows]

    def done(self, device: str, commit: str | None, suite: str) -> set[str]:
        """Points of a suite that are measured on this device at this commit; none where there is no store yet."""
        if not self.path.exists():
            return set()
        where = "device = ? AND suite = ? AND commit IS NOT DISTINCT FROM ?"
        return {row[0] for row in self._read(f"SELECT DISTINCT point FROM runs WHERE {where}", (device, suite, commit))}

    def overview(self) -> list[dict[str, Any]]:
        """For each run id: suite, device, commit, dates, rows."""
        rows = self._read(
            "SELECT run_id, any_value(suite), any_value(device), any_value(commit), min(date), max(date), count(*) FROM runs "
            "GROUP BY run_id ORDER BY min(date), run_id"
        )
        return [dict(zip(("run_id", "suite", "device", "commit", "first", "last", "rows"), row, strict=True)) for row in rows]

    def _read(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        if not self.path.exists():
            raise PerfModelError("there is no such store", field="--store", value=str(self.path), mend="Measure, or import runs, first.")
        with self._open(read_only=not os.access(self.path, os.W_OK)) as connection:
            return connection.execute(query, values).fetchall()

    @contextmanager
    def _open(self, *, read_only: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
        connection = self._connect(read_only)
        try:
            with connection:
                _prepare(connection, self.path)
                yield connection
        except _duckdb_error() as error:
            raise PerfModelError(
                f"the store failed: {_first_line(error)}", file=self.path, mend="Look at the file, or name another."
            ) from error

    def _connect(self, read_only: bool) -> duckdb.DuckDBPyConnection:
        """A connection, waited for where another process has the file. Raises PerfModelError where it never lets go, or for no store."""
        import duckdb

        _refuse_other_files(self.path)
        end, told = time.monotonic() + self._wait, False
        while True:
            try:
                return duckdb.connect(str(self.path.absolute()), read_only=read_only)  # a bare `:memory:` would be no file
            except duckdb.Error as error:
                if _trouble(error) != "locked":
                    raise PerfModelError(
                        f"is no store of runs: {_first_line(error)}", file=self.path, mend="Name another file, or a folder that exists."
                    ) from error
                if time.monotonic() > end:
                    raise PerfModelError(
                        f"another process has had the store for {self._wait:.0f} s",
                        file=self.path,
                        mend="Wait for it, or name another store.",
                    ) from error
            if not told:
                self._note(f"{self.path}: another process has it; waiting")
                told = True
            time.sleep(PAUSE_S)


def _refuse_other_files(path: Path) -> None:
    """Raises PerfModelError for a file of another kind: DuckDB opens Parquet, CSV and SQLite, too, but keeps nothing that is written."""
    try:
        with path.open("rb") as stream:
            head = stream.read(len(MAGIC) + MAGIC_AT)
    except OSError:
        return  # not there yet, or what DuckDB has words for
    if head and head[MAGIC_AT:] != MAGIC:
        raise PerfModelError("is no store of runs: no DuckDB file", file=path, mend="Name another file.")


def _prepare(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Make the tables of a new store; refuse a store of a later version, and a database that is something else."""
    tables = {row[0] for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if not tables:
        columns = ", ".join(f"{_quoted(name)} {sql_type(name)}" for name in NAMES)
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE about (schema INTEGER)")
        connection.execute("INSERT INTO about VALUES (?)", [SCHEMA])
        connection.execute(f"CREATE TABLE runs (key VARCHAR PRIMARY KEY, {columns})")
        connection.execute("COMMIT")
        return
    if not {"about", "runs"} <= tables:
        raise PerfModelError("is a database, but no store of runs", file=path, mend="Name another file.")
    found = connection.execute("SELECT schema FROM about").fetchone()
    if found is None or found[0] != SCHEMA:
        raise PerfModelError("was written by another version", file=path, value=found and found[0], mend=f"This one knows schema {SCHEMA}.")


def _trouble(error: Exception) -> Literal["locked", "other"]:
    text = str(error).lower()
    return "locked" if "set lock on file" in text or "being used by another process" in text else "other"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200]


def _duckdb_error() -> type[Exception]:
    import duckdb

    return duckdb.Error


def _count(connection: duckdb.DuckDBPyConnection) -> int:
    found = connection.execute("SELECT count(*) FROM runs").fetchone()
    return int(found[0]) if found else 0


def _quoted(name: str) -> str:
    return f'"{name}"'
