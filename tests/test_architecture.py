"""The import arrows: data flows one way, nothing below report/ and cli/ prints, and the library needs no GPU."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A room may import itself and any room of a lower rank. Rooms of one rank do not know each other.
RANK = {
    "causes": 0,  # the names of the causes of lost time: a word list
    "errors": 0,
    "units": 0,
    "files": 1,
    "validated": 2,
    "formats": 3,
    "hardware": 4,
    "workload": 4,
    "profiles": 5,
    "ops": 6,
    "model": 7,  # the modules straight under perfmodel/: latency, gap
    "diagnose": 8,
    "serving": 8,
    "sweeps": 8,
    "planning": 9,
    "simulation": 9,
    "public": 10,  # the names of perfmodel/__init__.py
    "validation": 10,
    "report": 10,
    "page": 11,
    "server": 12,
    "cli": 13,
}
KERNELS_MAY_IMPORT = {"kernels", "formats", "units", "errors"}
MAY_PRINT = {"report", "cli"}


LINKED = ("gpu_specs", "kernels", "validation")


def modules() -> Iterator[tuple[str, Path]]:
    """(dotted name, file) of every module of the project; the three linked folders are read where they stand."""
    for folder, prefix in (("perfmodel", ""), *((name, "perfmodel.") for name in LINKED)):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if folder == "perfmodel" and parts[1] in LINKED:
                continue  # the links
            yield prefix + ".".join(parts), path


def room_of(module: str) -> str:
    """`perfmodel.ops.gemm` -> ops; `perfmodel.gap` -> model; `perfmodel` -> public. A folder without a rank is a room of its own."""
    name = module.removeprefix("perfmodel").removeprefix(".").split(".")[0]
    if name in ("", "__init__"):
        return "public"
    if name == "__main__":
        return "cli"
    return name if name in (*RANK, *LINKED) or (ROOT / "perfmodel" / name).is_dir() else "model"


def imported(tree: ast.AST, module: str) -> Iterator[str]:
    """Dotted names of what the code in `tree` imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def wrong_arrows(module: str, source: str) -> list[str]:
    """What is wrong with the imports of `source`, taken as the module of that name."""
    room, wrong = room_of(module), []
    for target in imported(ast.parse(source), module):
        if target.split(".")[0] in ("torch", "cupy") or target.startswith("numba.cuda"):
            wrong += [f"{module} imports {target}"] if room not in ("kernels", "validation") else []
        if target.split(".")[0] != "perfmodel":
            continue
        other = room_of(target)
        if room == "kernels":
            allowed = other in KERNELS_MAY_IMPORT
        elif other == "kernels":
            allowed = room in ("validation", "cli")
        else:
            allowed = other in ("gpu_specs", room) or RANK[other] < RANK[room]
        wrong += [] if allowed else [f"{module} imports {target}"]
    return wrong


def prints(source: str) -> list[int]:
    """Lines that print, log, or reach for stdout or stderr."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        stream = isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr", "__stdout__", "__stderr__")
        log = isinstance(node, ast.Import | ast.ImportFrom) and "logging" in {name.split(".")[0] for name in imported(node, "x")}
        lines += [node.lineno] if call or stream or log else []
    return lines


def top_level_imports(tree: ast.Module, module: str) -> Iterator[str]:
    """What runs at import: not inside a function, not under `if TYPE_CHECKING`."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            yield from imported(node, module)


MODULES = list(modules())


def test_every_room_has_its_place():
    assert len(MODULES) > 15
    unknown = {room_of(name) for name, _ in MODULES} - set(RANK) - {"kernels", "gpu_specs"}
    assert not unknown, f"give {unknown} a rank in this test"


@pytest.mark.parametrize(("module", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_arrows(module, path):
    assert not wrong_arrows(module, path.read_text())


@pytest.mark.parametrize(("module", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_nothing_below_report_and_cli_prints(module, path):
    if room_of(module) not in MAY_PRINT:
        assert not prints(path.read_text()), path


def test_torch_and_numba_cuda_are_imported_where_they_are_used():
    for module, path in MODULES:
        if room_of(module) == "validation":
            heavy = [
                t
                for t in top_level_imports(ast.parse(path.read_text()), module)
                if t.split(".")[0] == "torch" or t.startswith("numba.cuda")
            ]
            assert not heavy, (module, heavy)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("perfmodel.ops.gemm", "from perfmodel.cli.output import note"),
        ("perfmodel.ops.gemm", "def f():\n    import perfmodel.report.table"),
        ("perfmodel.formats.codes", "from ..hardware import load_gpu"),
        ("perfmodel.hardware.catalog", "from perfmodel.workload import load_model"),
        ("perfmodel.gap", "from perfmodel.kernels.gemm import run"),
        ("perfmodel.gap", "from perfmodel import validation"),
        ("perfmodel.gap", "from numba import cuda"),
        ("perfmodel.report.table", "import torch"),
        ("perfmodel.kernels.gemm", "from perfmodel.ops import grouped_gemm"),
        ("perfmodel.kernels.gemm", "import perfmodel"),
        ("perfmodel.validation.score", "from perfmodel.cli.output import note"),
    ],
)
def test_a_wrong_arrow_is_seen(module, source):
    assert wrong_arrows(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("perfmodel.ops.gemm", "from perfmodel.errors import PerfModelError"),
        ("perfmodel.kernels.gemm", "from perfmodel.formats import get_format\nfrom numba import cuda\nimport torch"),
        ("perfmodel.hardware.catalog", "from importlib.resources import files\nfrom perfmodel import gpu_specs"),
        ("perfmodel.cli.validate", "from perfmodel.validation import tables"),
    ],
)
def test_a_right_arrow_is_let_through(module, source):
    assert not wrong_arrows(module, source)


@pytest.mark.parametrize(
    "source", ["print(1)", "import sys\nsys.stderr.write('x')", "from logging import getLogger", "import logging.config"]
)
def test_printing_is_seen(source):
    assert prints(source)
