"""Files of runs: what `perfmodel kernels bench --out` writes, counters of Nsight Compute beside it, and exports of the store."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError
from perfmodel.files import read_text
from perfmodel.validation.runs import exchange
from perfmodel.validation.runs.counters import counted
from perfmodel.validation.runs.kernels import gpu_of, named
from perfmodel.validation.runs.record import Run, parse_run
from perfmodel.validation.runs.work import gemm_work, layer_work

Lines = Iterator[tuple[int, dict[str, Any]]]
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
    text = read_text(path)
    comments, names, rows = _split(path, text)
    if set(exchange.MARKS) <= names:
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

    def __init__(self, path: Path, comments: Mapping[str, tuple[int, str]], text: str) -> None:
        self.path, self.layer = path, _json(path, comments, "layer")
        about = _json(path, comments, "provenance")
        if not about.get("device"):
            raise PerfModelError("does not say on what it was measured", file=path, mend="Keep the line `# provenance: {...}`.")
        self.run = {
            "run_id": hashlib.sha256(text.encode()).hexdigest()[:12],
            "source": path.name,
            "suite": "kernels-bench",
            "date": str(about.get("date", "")),
            "commit": about.get("commit"),
            "device": about["device"],
            "gpu": gpu_of(about["device"]),
            "versions": json.dumps(about.get("versions", {}), sort_keys=True),
        } | {name: about.get(name) for name in ("driver", "cuda", "python")}

    def make(self, line: int, cells: Mapping[str, Any]) -> Run:
        return parse_run(self.run | dict(cells), file=str(self.path), line=line)


def _bench_run(about: _About, cells: Mapping[str, str], line: int) -> Run:
    measured = {name: cells.get(name) for name in COPIED}
    return about.make(line, _gemm_cells(about, cells, line) | measured | {"ours": cells["ours"]})


def _gemm_cells(about: _About, cells: Mapping[str, str], line: int) -> dict[str, Any]:
    """Kernel, sizes, point and work of a grouped GEMM."""
    sizes = {name: _size(about.path, line, name, cells[name]) for name in ("experts", "n", "k", "tokens_per_expert")}
    experts, n, k, each = sizes.values()
    tokens = experts * each
    try:
        work = gemm_work(cells["format"], experts, n, k, tokens)
    except PerfModelError as error:
        raise PerfModelError(error.problem, file=about.path, line=line, field="format", value=cells["format"], mend=error.mend) from None
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
    try:
        tokens, experts, topk = layer["tokens"], layer["experts"], layer["topk"]
        kernel = "+".join(layer["kernels"])
        active = experts * (1.0 - (1.0 - topk / experts) ** tokens)
        work = layer_work(layer["format"], active, topk, layer["hidden"], layer["inter"], tokens)
    except (KeyError, TypeError) as error:
        raise PerfModelError(f"its line `# layer:` lacks {error}", file=about.path, mend="Measure again.") from None
    shape = {name: layer[name] for name in ("experts", "topk", "hidden", "inter", "tokens")}
    words = " ".join(f"{name}={size}" for name, size in shape.items())
    known = named(kernel)
    cells = {name: layer.get(name) for name in ("us", "rel_err", "sm_MHz", "format")} | shape
    yield about.make(1, cells | {
        "kind": "layer", "kernel": kernel, "profile": known.profile, "ours": True, "routing": "uniform",
        "point": f"layer {kernel} {layer['format']} {words} uniform", "flop": work.flop, "bytes": work.bytes,
    })  # fmt: skip


def _split(path: Path, text: str) -> tuple[dict[str, tuple[int, str]], set[str], Lines]:
    """Comment lines by their first word, the header's names, and (line, cells) of each row."""
    lines = list(enumerate(text.splitlines(), 1))
    comments = {}
    for number, line in lines:
        if line.startswith("#"):
            name, _, rest = line.lstrip("# ").partition(":")
            comments[name] = (number, rest.strip())
    kept = [(number, line) for number, line in lines if line.strip() and not line.startswith("#")]
    if not kept:
        raise PerfModelError("holds no rows", file=path, mend="Measure again.")
    names = next(csv.reader([kept[0][1]]))

    def rows() -> Lines:
        for number, line in kept[1:]:
            cells = next(csv.reader([line]))
            if len(cells) != len(names):
                raise PerfModelError(
                    f"has {len(cells)} cells where the header has {len(names)}", file=path, line=number, mend="Give one cell a column."
                )
            yield number, dict(zip(names, cells, strict=True))

    return comments, set(names), rows()


def _json(path: Path, comments: Mapping[str, tuple[int, str]], name: str) -> dict[str, Any]:
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
