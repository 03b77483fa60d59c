"""GPUs as terminal tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.hardware import GpuSpec
from perfmodel.hardware.editing import Difference
from perfmodel.hardware.fields import field_kinds, field_values
from perfmodel.hardware.quantity import Quantity
from perfmodel.units import GB, GBPS, TFLOPS

if TYPE_CHECKING:
    from rich.table import Table

STYLE = {"datasheet": "green", "measured": "green", "derived": "cyan", "estimated": "yellow", "user": "magenta"}
MARK = {"estimated": "~", "user": "*"}
CATALOG_LEGEND = (
    "GB: what the driver shows. 16 bit, fp8, fp4: dense TFLOPS with fp32 accumulation."
    " `perfmodel gpus b200 h200` sets GPUs side by side; --sources says where each number is from."
)
FIELDS_LEGEND = "~ estimated, * given by you. --sources says where each number is from."


def gpus_data(gpus: Sequence[GpuSpec]) -> dict[str, Any]:
    """What `perfmodel gpus --json` prints: the fields of the files, each number with source and status."""
    return {"schema": "perfmodel.gpus/1", "gpus": [gpu_data(gpu) for gpu in gpus]}


def gpu_data(gpu: GpuSpec) -> dict[str, Any]:
    """One GPU as plain data, in the units of the file; `notes` says what a what-if rescaled."""
    return {**gpu.model_dump(mode="json", exclude_none=True), "math_types": list(gpu.math_types), "notes": list(gpu.notes)}


def catalog_table(gpus: Sequence[GpuSpec]) -> Table:
    """One line a GPU: what decides most questions."""
    table = _table(["GPU", "architecture"], ["SMs", "GB", "GB/s", "16 bit", "fp8", "fp4", "W"])
    for gpu in gpus:
        size = f"{gpu.dram_capacity / GB:.1f}", f"{gpu.dram_bandwidth / GBPS:.0f}"
        dense = (_peak(gpu, kinds) for kinds in (("bf16", "fp16"), ("fp8",), ("fp4",)))
        table.add_row(gpu.id, gpu.architecture, str(gpu.sm_count), *size, *dense, f"{gpu.tdp:.0f}")
    return table


def _peak(gpu: GpuSpec, math_types: Sequence[str]) -> str:
    """Dense TFLOPS of the first type that the GPU has."""
    return next((f"{gpu.peak_flops(kind) / TFLOPS:.0f}" for kind in math_types if kind in gpu.math_types), "-")


def fields_table(gpus: Sequence[GpuSpec], *, sources: bool = False, only: Sequence[str] = ()) -> Table:
    """Fields as rows under their section, GPUs as columns; with `sources`, status and source stand below each number."""
    values = [field_values(gpu) for gpu in gpus]
    table = _table(["field"], [])
    for gpu in gpus:
        table.add_column(gpu.id, justify="left" if sources else "right", overflow="fold")
    shown = [f for f in field_kinds() if f != "id" and any(f in v for v in values) and (not only or f in only)]
    above = ""
    for field in shown:
        section, _, name = field.rpartition(".")
        if section != above:
            table.add_row(f"[bold]{section}[/]")
            above = section
        table.add_row(("  " if section else "") + name, *(_cell(v.get(field), sources) for v in values))
    return table


def difference_table(first: GpuSpec, second: GpuSpec, pairs: Sequence[Difference]) -> Table:
    """The fields that two GPUs do not share; sources where nothing else differs."""
    table = _table(["field", first.id, second.id if second.id != first.id else f"{second.id} (second)"], [])
    for pair in pairs:
        sources = isinstance(pair.first, Quantity) and isinstance(pair.second, Quantity) and pair.first.value == pair.second.value
        table.add_row(pair.field, _cell(pair.first, sources), _cell(pair.second, sources))
    return table


def difference_data(first: GpuSpec, second: GpuSpec, pairs: Sequence[Difference]) -> dict[str, Any]:
    """What `perfmodel spec diff --json` prints."""
    rows = [{"field": pair.field, "a": _plain(pair.first), "b": _plain(pair.second)} for pair in pairs]
    return {"schema": "perfmodel.spec-diff/1", "a": first.id, "b": second.id, "differences": rows}


def _plain(value: object) -> object:
    return value.model_dump(mode="json") if isinstance(value, Quantity) else value


def _cell(value: object, sources: bool) -> str:
    from rich.markup import escape

    if value is None:
        return "-"
    if isinstance(value, tuple):
        return escape(", ".join(value))
    if not isinstance(value, Quantity):
        return escape(str(value))
    style = STYLE[value.status]
    if sources:
        return f"{value.value:,.10g} [{style}]{value.status}[/]\n[dim]{escape(value.source)}[/]"
    mark = MARK.get(value.status, "")
    return f"[{style}]{mark}{value.value:,.10g}[/]" if mark else f"{value.value:,.10g}"


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for place, name in enumerate(left):
        table.add_column(name, no_wrap=place == 0, overflow="fold")
    for name in right:
        table.add_column(name, justify="right")
    return table
