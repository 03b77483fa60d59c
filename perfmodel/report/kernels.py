"""Our kernels in a terminal."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from perfmodel.errors import PerfModelError, did_you_mean


def list_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line a kernel: kind, formats, architectures, reference."""
    table = Table(header_style="bold", pad_edge=False)
    table.add_column("kernel", no_wrap=True, min_width=max((len(row["name"]) for row in rows), default=0))
    for name in ("kind", "formats", "architectures", "agrees with"):
        table.add_column(name)
    for row in rows:
        table.add_row(row["name"], row["kind"], " ".join(row["formats"]), " ".join(row["archs"]), row["reference"])
    return table


def check_report(rows: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    """A table with one line a kernel and architecture: what it takes and what its machine code holds. Then what is wrong, in words."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("kernel", "arch"):
        table.add_column(name, overflow="fold")
    for name in ("regs", "shared\nKiB", "spilled\nbytes", "tensor ops", "16-byte\nloads"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        shared = None if row["shared_bytes"] is None else f"{row['shared_bytes'] / 1024:.1f}"
        figures = (row["registers"], shared, row["spill_bytes"], _tensor(row["sass"]), (row["sass"] or {}).get("loads_16B"))
        verdict = Text("ok", style="green") if row["ok"] else Text("wrong", style="red")
        table.add_row(row["name"], row["arch"], *("-" if figure is None else str(figure) for figure in figures), verdict)
    yield table
    yield from (Text(f"{row['name']} {row['arch']}: {row['problem']}", style="red") for row in rows if not row["ok"])


def _tensor(sass: Mapping[str, int] | None) -> str | None:
    """`32 HGMMA`, or None where there is no disassembler."""
    if sass is None:
        return None
    return ", ".join(f"{n} {name}" for name, n in sass.items() if name.endswith("MMA") and n) or "0"


def run_report(row: Mapping[str, Any]) -> Text:
    """What one run gave, in two lines."""
    error = "NaN" if row["rel_err"] is None else f"{row['rel_err']:.1e}"
    text = Text(f"{row['kernel']}: {row['us']:.1f} us, {row['tflops']:.1f} TFLOPS\n")
    verdict = f"error {error} of at most {row['tolerance']:.0e}, {row['nan']} NaN"
    return text.append(verdict, style="green" if row["ok"] else "red")


def bench_report(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The ceilings, a table with one line a contender and number of tokens, the layer."""
    ceilings = result["ceilings"]
    yield f"{result['device']}: " + ", ".join(f"{name} {value:.4g}" for name, value in ceilings.items() if value is not None)
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("E x N x K", "tokens", "kernel", "format"):
        table.add_column(name, no_wrap=True)
    for name in ("hold s", "us", "TFLOPS", "of dense", "TB/s", "of read", "error", "MHz"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result["rows"]:
        dense = ceilings["bf16_tflops" if row["math"] == "bf16" else "fp8_tflops"]
        figures = (f"{row['us']:.2f}", f"{row['tflops']:.0f}", _share(row["tflops"], dense))
        traffic = (f"{row['weight_TBps']:.2f}", _share(row["weight_TBps"], ceilings["read_TBps"]))
        error = "NaN" if row["rel_err"] is None or row["nan"] else f"{row['rel_err']:.1e}"
        place = (f"{row['experts']} x {row['n']} x {row['k']}", str(row["tokens_per_expert"]), row["kernel"], row["format"])
        table.add_row(*place, f"{row['hold_s']:g}", *figures, *traffic, error, str(row["sm_MHz"] or "-"))
    yield table
    layer = result["layer"]
    error = "NaN" if layer["rel_err"] is None else f"{layer['rel_err']:.1e}"
    yield f"layer of {layer['experts']} experts, {layer['tokens']} tokens, {layer['format']}: {layer['us']:.1f} us, error {error}"


def bench_writer(path: Path) -> Callable[[Mapping[str, Any]], str]:
    """What makes the text of a result for such a file. Raises PerfModelError for endings but .json and .csv, and without a folder."""
    if not path.parent.is_dir():
        raise PerfModelError("the folder is not there", field="--out", value=str(path.parent), mend="Make it first.")
    writers = {".json": lambda result: json.dumps(result, indent=1, allow_nan=False) + "\n", ".csv": bench_csv}
    if path.suffix not in writers:
        raise PerfModelError("must end in .json or .csv", field="--out", value=str(path), mend=did_you_mean(path.suffix, writers))
    if path.exists() and not path.is_file():
        raise PerfModelError("is no ordinary file", field="--out", value=str(path), mend="Name another.")
    try:  # before minutes on the GPU, not after
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}"):
            pass
    except OSError as error:
        raise PerfModelError(f"cannot be written: {error.strerror}", field="--out", value=str(path), mend="Name another place.") from None
    return writers[path.suffix]


def bench_csv(result: Mapping[str, Any]) -> str:
    """Rows as CSV, after comment lines with the provenance, the ceilings and the layer."""
    text = io.StringIO()
    for name in ("provenance", "ceilings", "layer"):
        text.write(f"# {name}: {json.dumps(result[name], allow_nan=False)}\n")
    writer = csv.DictWriter(text, list(result["rows"][0]) if result["rows"] else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(result["rows"])
    return text.getvalue()


def _share(value: float, ceiling: float | None) -> str:
    return "-" if ceiling is None else f"{value / ceiling:.2f}"
