"""Compiled kernels kept on disk, and loaded once for each device.

A file in the user's cache folder holds one variant for one architecture. Its name carries a digest of what the machine code depends on:
the variant's choices, the source of every module of ours that its kernel imports, Python and the packages that compile. So nothing in it
is ever stale.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import pickle
import platform
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError
from perfmodel.kernels import launch
from perfmodel.kernels.compile import Compiled, compile_variant, require_compiler
from perfmodel.kernels.variants import Variant

PACKAGE = "perfmodel"
COMPILERS = ("numba-cuda", "numba", "llvmlite", "cuda-core", "cuda-bindings", "nvidia-nvvm", "nvidia-nvjitlink")
"""Packages whose versions change the machine code."""
ARCHITECTURE_OF = {(8, 0): "sm_80", (8, 6): "sm_80", (8, 9): "sm_89", (9, 0): "sm_90a", (10, 0): "sm_100a", (12, 0): "sm_120a"}
"""Compute capability -> the architecture whose kernels run there."""


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel and what its launch needs."""

    compiled: Compiled
    threads: int
    shared_bytes: int
    """Dynamic shared memory of a launch; `compiled.shared_bytes` has the declared memory on top."""


def architecture_of(capability: tuple[int, int]) -> str:
    """The architecture to compile for. Raises PerfModelError for a compute capability without kernels of ours."""
    if capability not in ARCHITECTURE_OF:
        known = ", ".join(f"{major}.{minor}" for major, minor in ARCHITECTURE_OF)
        raise PerfModelError(
            "no kernels for GPUs of this compute capability", field="GPU", value=capability, mend=f"Kernels are there for {known}."
        )
    return ARCHITECTURE_OF[capability]


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/perfmodel/kernels, ~/.cache/perfmodel/kernels where that is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perfmodel" / "kernels"


def cached_file(variant: Variant, arch: str) -> Path:
    """Where the compiled variant is kept; the digest covers all that it depends on."""
    build = variant.build
    module = (build.func if isinstance(build, partial) else build).__module__
    digest = hashlib.sha256(pickle.dumps(build, protocol=4))
    for path in sorted(_sources(module)):
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(json.dumps([platform.python_version(), *(_version(package) for package in COMPILERS)]).encode())
    return cache_folder() / f"{variant.name}-{arch}-{digest.hexdigest()[:20]}.json"


def compile_cached(variant: Variant, arch: str) -> Cubin:
    """The compiled variant: from disk, or compiled now and kept. Raises what `compile_variant` raises."""
    path = cached_file(variant, arch)
    held = _read(path)
    if held is None:
        source = variant.build()
        held = Cubin(compile_variant(variant, arch, count_sass=False), source.threads, source.shared_bytes)
        _write(path, held)
    return held


def compile_all(tasks: Iterable[tuple[Variant, str]], *, jobs: int, done: Callable[[str], None] = lambda name: None) -> None:
    """Compile what the disk does not hold, in `jobs` processes; `done` hears the name of each."""
    missing = [task for task in dict.fromkeys(tasks) if _read(cached_file(*task)) is None]
    if not missing:
        return
    require_compiler()
    with ProcessPoolExecutor(min(jobs, len(missing)), mp_context=get_context("spawn")) as pool:  # numba does not like to be forked
        for name in pool.map(_compile_one, missing):
            done(name)


def load_variant(variant: Variant, device: int) -> launch.Loaded:
    """The variant's kernel on a device of torch, compiled and loaded on first use. Its variants must include the device's architecture."""
    return _load(variant, device)


@cache
def _load(variant: Variant, device: int) -> launch.Loaded:
    import torch

    arch = architecture_of(torch.cuda.get_device_capability(device))
    if arch not in variant.archs:
        raise PerfModelError(f"is not for {arch}", field="kernel", value=variant.name, mend=f"It is for {', '.join(variant.archs)}.")
    cubin = compile_cached(variant, arch)
    with torch.cuda.device(device):
        torch.cuda.current_stream().synchronize()  # makes the device's context current
        return launch.load(cubin.compiled, cubin.threads, cubin.shared_bytes)


def resident_ctas(kernel: launch.Loaded, device: int) -> int:
    """CTAs of a kernel that a device of torch holds at once."""
    import torch

    with torch.cuda.device(device):
        return kernel.resident_ctas()


def _compile_one(task: tuple[Variant, str]) -> str:
    compile_cached(*task)
    return task[0].name


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@cache
def _sources(module: str) -> frozenset[Path]:
    """Files of a module and of all modules of PACKAGE that it imports, in functions too, and so on."""
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if name in found or path is None:
            continue
        found[name] = path
        waiting += _imports(path)
    return frozenset(found.values())


def _file_of(module: str) -> Path | None:
    """The file of a module of PACKAGE; None for one of elsewhere, and for names that are no modules."""
    if not module.startswith(PACKAGE + "."):
        return None
    path = _package().joinpath(*module.removeprefix(PACKAGE + ".").split(".")).with_suffix(".py")
    return path if path.is_file() else None


@cache
def _package() -> Path:
    """Where PACKAGE is installed."""
    found = find_spec(PACKAGE)
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0])


def _imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def _read(path: Path) -> Cubin | None:
    """What a file holds; None where it is missing or damaged."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        compiled = fields["compiled"]
        whole = {**compiled, "cubin": base64.b64decode(compiled["cubin"]), "warnings": tuple(compiled["warnings"])}
        return Cubin(Compiled(**whole), fields["threads"], fields["shared_bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, cubin: Cubin) -> None:
    """Whole or not at all. A folder that cannot be written to costs time only: the kernel is compiled again next time."""
    fields = asdict(cubin)
    fields["compiled"]["cubin"] = base64.b64encode(cubin.compiled.cubin).decode()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w") as stream:
            json.dump(fields, stream)
        Path(temporary).replace(path)
