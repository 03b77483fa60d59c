"""The comparison of formats: storage, error, and the arithmetic that each architecture runs them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.formats import Format, Scheme
from perfmodel.formats.elements import ELEMENT_MATH, get_element
from perfmodel.formats.quality import DISTRIBUTIONS, typical_quality

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from perfmodel.hardware import GpuSpec

ELEMENT_BLOCK = 32
"""Elements are compared alone under one exact FP32 scale for each so many of them."""
SHORT = {"native": "", "rescaled": " rs", "dequantised": " dq"}
LEGEND = (
    "Weights: element, scale / weights that share it (nvfp4: and an FP32 scale a tensor). act.: activations. Range: least, largest.",
    "SQNR: seeded Gaussian weights, then Student t, 4 degrees of freedom. max: largest error, as a share of the block's largest weight.",
    "No mark: runs natively. rs: units multiply the stored elements, the kernel applies the block scales to partial sums.",
    "dq: the kernel first converts the weights to the type that is multiplied. -: no units for it.",
    "some: not on all GPUs of the architecture (--json says which).",
)


def formats_data(formats: Sequence[Format], gpus: Sequence[GpuSpec]) -> dict[str, Any]:
    """What `perfmodel formats --json` prints: every format with its error and arithmetic types, and the element types alone."""
    architectures: dict[str, list[str]] = {}
    for gpu in sorted(gpus, key=lambda gpu: tuple(map(int, gpu.compute_capability.split(".")))):
        architectures.setdefault(gpu.architecture, []).append(gpu.id)
    return {
        "schema": "perfmodel.formats/1",
        "architectures": architectures,
        "formats": [_format_data(form, gpus, architectures) for form in formats],
        "elements": [_element_data(name, gpus) for name in ELEMENT_MATH],
    }


def _format_data(form: Format, gpus: Sequence[GpuSpec], architectures: dict[str, list[str]]) -> dict[str, Any]:
    runs = {gpu.id: next((kind for kind in form.math if kind in gpu.math_types), None) for gpu in gpus}
    return {
        "id": form.id,
        "summary": form.summary,
        "weights": _scheme_data(form.weights),
        "activations": _scheme_data(form.activations),
        "math": list(form.math),
        "architectures": {name: _on_architecture(form, name, [runs[gpu] for gpu in members]) for name, members in architectures.items()},
        "gpus": runs,
        "native_gpus": [gpu.id for gpu in gpus if runs[gpu.id] and form.execution(gpu.architecture) == "native"],
        "instead": list(form.instead),
        "source": form.source,
    }


def _on_architecture(form: Format, architecture: str, kinds: Sequence[str | None]) -> dict[str, Any] | None:
    """Arithmetic type and execution of a format on an architecture whose GPUs run it as `kinds`; None where none of them does."""
    kind = next((math for math in form.math if math in kinds), None)
    if kind is None:
        return None
    return {"math": kind, "execution": form.execution(architecture), "on_all_gpus": set(kinds) == {kind}}


def _scheme_data(scheme: Scheme) -> dict[str, Any]:
    element = get_element(scheme.element)
    return {
        "element": scheme.element,
        "per": scheme.per,
        "block": list(scheme.block) if scheme.block else None,
        "scale": scheme.scale,
        "tensor_scale": scheme.tensor_scale,
        "zero_point": scheme.zero_point,
        "value_bits": scheme.value_bits,
        "scale_bits": scheme.scale_bits,
        "bits": scheme.bits,
        "max": element.max,
        "min_positive": element.min_positive,
        **_quality_data(scheme),
    }


def _quality_data(scheme: Scheme) -> dict[str, Any]:
    quality = {distribution: typical_quality(scheme, distribution) for distribution in DISTRIBUTIONS}
    return {
        "sqnr_db": {name: q.sqnr_db for name, q in quality.items()},
        "max_error": {name: q.max_error for name, q in quality.items()},
    }


def _element_data(name: Any, gpus: Sequence[GpuSpec]) -> dict[str, Any]:
    element = get_element(name)
    alone = Scheme(element=name) if element.bits == 16 else Scheme(element=name, per="group", block=(1, ELEMENT_BLOCK), scale="fp32")
    return {
        "element": name,
        "bits": element.bits,
        "values": element.values.tolist() if element.bits == 4 else None,
        "max": element.max,
        "min_positive": element.min_positive,
        "math": element.math,
        "gpus": [gpu.id for gpu in gpus if element.math in gpu.math_types],
        **_quality_data(alone),
    }


def print_formats(data: dict[str, Any], console: Console) -> None:
    """The tables of `perfmodel formats`, from what `formats_data` gives."""
    console.print(_storage_table(data["formats"]))
    console.print(_arithmetic_table(data["formats"], list(data["architectures"])))
    console.print(_element_table(data["elements"], data["architectures"]))
    for line in (*LEGEND, *(f"{architecture}: {', '.join(gpus)}" for architecture, gpus in data["architectures"].items())):
        console.print(line, highlight=False)


def _storage_table(formats: Sequence[dict[str, Any]]) -> Table:
    table = _table("How weights are stored", ["format", "weights", "act."], ["bits", "range", "SQNR dB", "max %"])
    for form in formats:
        weights, activations = form["weights"], form["activations"]
        stored = weights["element"].upper() + _scale_text(weights)
        table.add_row(form["id"], stored, activations["element"].upper(), f"{weights['bits']:.4g}", *_error_cells(weights))
    return table


def _arithmetic_table(formats: Sequence[dict[str, Any]], architectures: Sequence[str]) -> Table:
    table = _table("What multiplies it", ["format", *architectures], [])
    for form in formats:
        cells = [form["architectures"][architecture] for architecture in architectures]
        table.add_row(form["id"], *(_arithmetic_cell(cell) for cell in cells))
    return table


def _arithmetic_cell(cell: dict[str, Any] | None) -> str:
    return "-" if cell is None else cell["math"] + SHORT[cell["execution"]] + ("" if cell["on_all_gpus"] else " some")


def _element_table(elements: Sequence[dict[str, Any]], architectures: dict[str, list[str]]) -> Table:
    title = f"Element types alone, an FP32 scale every {ELEMENT_BLOCK} (16 bits: none)"
    table = _table(title, ["element", "units on"], ["bits", "range", "SQNR dB", "max %"])
    for element in elements:
        units = [name for name, gpus in architectures.items() if set(gpus) & set(element["gpus"])]
        table.add_row(element["element"].upper(), ", ".join(units) or "none", str(element["bits"]), *_error_cells(element))
    return table


def _error_cells(data: dict[str, Any]) -> tuple[str, str, str]:
    """Range of the element, SQNR on both distributions, largest error on either."""
    sqnr = "  ".join(f"{data['sqnr_db'][name]:.1f}" for name in DISTRIBUTIONS)
    largest = f"{data['max']:.5g}" if data["max"] < 1e6 else f"{data['max']:.0e}"
    return f"{data['min_positive']:.2g}..{largest}", sqnr, f"{100 * max(data['max_error'].values()):.2g}"


def _scale_text(weights: dict[str, Any]) -> str:
    if weights["scale"] is None:
        return ""
    rows, length = weights["block"] or (None, None)
    place = weights["per"] if length is None else f"{length}" if rows == 1 else f"{rows}x{length}"
    return f" {weights['scale'].upper()}/{place}" + (" FP32" if weights["tensor_scale"] else "")


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table
