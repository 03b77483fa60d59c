"""Files of runs: what `perfmodel kernels bench --out` writes, counters of Nsight Compute beside it, and exports of the store."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError
from perfmodel.files import read_text
from perfmodel.hardware.devices import gpu_of
from perfmodel.validation.runs import exchange
from perfmodel.validation.runs.counters import counted
from perfmodel.validation.runs.kernels import named
from perfmodel.validation.runs.record import SIZES, Run, parse_run
from perfmodel.validation.runs.work import Work, gemm_work, layer_work

Lines = Iterator[tuple[int, dict[str, Any]]]
Comments = Mapping[str, tuple[int, str]]
LARGEST = 2**30
"""Bytes: a million runs and more."""
BENCH = {"kernel", "ours", "format", "experts", "n", "k", "tokens_per_expert", "us", "hold_s"}
COUNTERS = {"kernel", "format", "experts", "n", "k", "tokens_per_expert", "metric", "value"}
COPIED = ("us", "us_low", "us_high", "burst_us", "hold_s", "rel_err", "nan", "sm_MHz", "power_W")


def committed() -> list[Path]:
    """The runs that the project keeps, sorted by name."""
    return sorted(Path(str(files("perfmodel.validation"))).joinpath("results").glob("*.csv"))


def read_runs(path: str | Path) -> list[Run]:
    """All runs of a CSV or Parquet file. Raises PerfModelError with file, line, field and mend."""
    path = Path(path)
    if path.suffix == ".parquet":
        return [run.model_copy(update={"source": run.source or path.name}) for run in exchange.read_parquet(path)]
    text = read_text(path, most=LARGEST)
    comments, (start, header), rows = _split(path, text)
    names = set(header)
    if set(exchange.MARKS) <= names:
        exchange.check_columns(path, header, start)
        return [run.model_copy(update={"source": run.source or path.name}) for run in exchange.read_rows(path, rows)]
    about = _About(path, comments, text)
    if names >= COUNTERS:
        return _counter_runs(about, rows)
    if names >= BENCH:
        return [*(_bench_run(about, cells, line) for line, cells in rows), *_layer_run(about)]
    raise PerfModelError(
        "holds no runs", file=path, mend="Give a file of `perfmodel runs export`, `perfmodel kernels bench --out`, or of counters."
    )


class _About:
    """What the comment lines above the header say of every row."""

    def __init__(self, path: Path, comments: Comments, text: str) -> None:
        self.path, self.layer = path, _json(path, comments, "layer")
        self.layer_line = comments.get("layer", (1, ""))[0]
        about = _json(path, comments, "provenance")
        if not isinstance(about.get("device"), str) or not about["device"]:
            raise PerfModelError("does not say on what it was measured", file=path, mend="Keep the line `# provenance: {...}`.")
        self.run = {
            "run_id": hashlib.sha256(text.encode()).hexdigest()[:12],
            "source": path.name,
            "suite": "kernels-bench",
            "date": about.get("date") or "",
            "commit": about.get("commit"),
            "device": about["device"],
            "gpu": gpu_of(about["device"]),
            "versions": json.dumps(about.get("versions", {}), sort_keys=True),
        } | {name: about.get(name) for name in ("driver", "cuda", "python")}

    def make(self, line: int, cells: Mapping[str, Any]) -> Run:
        return parse_run(self.run | dict(cells), file=str(self.path), line=line)

    def work(self, line: int, form: object, count: Callable[[str], Work]) -> Work:
        """What `count` says of a format. Raises PerfModelError with file and line for one that there is not."""
        try:
            return count(str(form))
        except PerfModelError as error:
            raise PerfModelError(error.problem, file=self.path, line=line, field="format", value=form, mend=error.mend) from None


def _bench_run(about: _About, cells: Mapping[str, str], line: int) -> Run:
    measured = {name: cells.get(name) for name in COPIED}
    return about.make(line, _gemm_cells(about, cells, line) | measured | {"ours": cells["ours"]})


def _gemm_cells(about: _About, cells: Mapping[str, str], line: int) -> dict[str, Any]:
    """Kernel, sizes, point and work of a grouped GEMM."""
    sizes = {name: _size(about.path, line, name, cells[name]) for name in ("experts", "n", "k", "tokens_per_expert")}
    experts, n, k, each = sizes.values()
    tokens = experts * each
    work = about.work(line, cells["format"], lambda form: gemm_work(form, experts, n, k, tokens))
    point = f"gemm {cells['kernel']} {cells['format']} experts={experts} n={n} k={k} tokens={each} hold={cells.get('hold_s')}"
    known = named(cells["kernel"])
    return sizes | {
        "kind": "grouped-gemm", "kernel": cells["kernel"], "profile": known.profile, "ours": known.ours, "format": cells["format"],
        "tokens": tokens, "point": point, "flop": work.flop, "bytes": work.bytes,
    }  # fmt: skip


def _counter_runs(about: _About, rows: Lines) -> list[Run]:
    """One run for each kernel and problem of a file with a metric a line."""
    found: dict[str, dict[str, Any]] = {}
    metrics: dict[str, dict[str, float]] = {}
    places: dict[str, int] = {}
    for line, cells in rows:
        try:
            value = float(cells["value"])
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise PerfModelError("is no number", file=about.path, line=line, field="value", value=cells["value"], mend="Measure again.")
        gemm = _gemm_cells(about, cells, line)
        gemm["point"] = gemm["point"].replace("gemm", "counters", 1)
        places.setdefault(gemm["point"], line)
        found[gemm["point"]] = gemm
        metrics.setdefault(gemm["point"], {})[cells["metric"]] = value
    return [about.make(places[point], gemm | counted(metrics[point])) for point, gemm in found.items()]


def _layer_run(about: _About) -> Iterator[Run]:
    """The layer of the comment line of `kernels bench`, routed by Gaussian logits: each token draws its experts at random."""
    layer = about.layer
    if not layer:
        return
    missing = [name for name in (*SIZES["layer"], "kernels", "format") if name not in layer]
    if missing:
        raise PerfModelError(f"its line `# layer:` lacks {missing[0]}", file=about.path, line=about.layer_line, mend="Measure again.")
    shape = {name: _size(about.path, about.layer_line, name, str(layer[name])) for name in SIZES["layer"]}
    experts, topk, hidden, inter, tokens = shape.values()
    names = layer["kernels"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PerfModelError(
            "names no kernels", file=about.path, line=about.layer_line, field="kernels", value=names, mend="Measure again."
        )
    kernel = "+".join(names)
    active = experts * (1.0 - max(0.0, 1.0 - topk / experts) ** tokens)
    work = about.work(about.layer_line, layer["format"], lambda form: layer_work(form, active, topk, hidden, inter, tokens))
    words = " ".join(f"{name}={size}" for name, size in shape.items())
    known = named(kernel)
    cells = {name: layer.get(name) for name in ("us", "rel_err", "sm_MHz", "format")} | shape
    yield about.make(about.layer_line, cells | {
        "kind": "layer", "kernel": kernel, "profile": known.profile, "ours": True, "routing": "uniform",
        "point": f"layer {kernel} {layer['format']} {words} uniform", "flop": work.flop, "bytes": work.bytes,
    })  # fmt: skip


def _split(path: Path, text: str) -> tuple[Comments, tuple[int, list[str]], Lines]:
    """Comment lines by their first word, line and names of the header, and (line, cells) of each row."""
    lines = io.StringIO(text, newline="")
    comments, start = {}, 0
    for start, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            break
        name, _, rest = line.lstrip("# ").partition(":")
        comments[name] = (start, rest.strip())
    else:
        raise PerfModelError("holds no rows", file=path, mend="Measure again.")
    try:
        names = next(csv.reader([line]))
    except csv.Error as error:
        raise PerfModelError(f"broken CSV: {error}", file=path, line=start, mend="Give a file of runs.") from error
    return comments, (start, names), _rows(path, names, lines, start)


def _rows(path: Path, names: list[str], lines: Iterable[str], start: int) -> Lines:
    """(line at which it ends, cells) of the rows below the header; a cell in quotes may hold line breaks."""
    reader = csv.reader(lines)
    try:
        for cells in reader:
            line = start + reader.line_num
            if not cells or cells[0].startswith("#"):
                continue
            if len(cells) != len(names):
                raise PerfModelError(
                    f"has {len(cells)} cells where the header has {len(names)}", file=path, line=line, mend="Give one cell a column."
                )
            yield line, dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise PerfModelError(
            f"broken CSV: {error}", file=path, line=start + reader.line_num, mend="Close the quotes, or leave them out."
        ) from error


def _json(path: Path, comments: Comments, name: str) -> dict[str, Any]:
    line, text = comments.get(name, (0, "{}"))
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise PerfModelError(
            f"`# {name}:` is no JSON: {error.msg}", file=path, line=line, mend="Keep the line as it was written."
        ) from None
    except (ValueError, RecursionError):  # a number of thousands of digits, brackets in brackets in ...
        raise PerfModelError(f"`# {name}:` is no JSON to be read", file=path, line=line, mend="Keep the line as it was written.") from None
    return found if isinstance(found, dict) else {}


def _size(path: Path, line: int, name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 0 < int(text) < 10**9):
        raise PerfModelError("must be a whole number from 1", file=path, line=line, field=name, value=text, mend="Measure again.")
    return int(text)
