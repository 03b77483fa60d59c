"""A sweep with all that it depends on inside: the same bytes give the same rows on any machine that has the same code."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from socket import gethostname

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.hardware import GpuSpec, load_gpu
from perfmodel.sweeps.request import TRUSTED, SweepRequest
from perfmodel.validated import Strict
from perfmodel.workload import load_model
from perfmodel.workload.layer import MoeLayer
from perfmodel.workload.model import ModelSpec

CHUNK = 8192
"""Points of a chunk. Dask's workers give freed memory back at once, which makes larger vectors slow there (three times at 16,384)."""
NOT_THE_MODEL = ("cli", "gpu_specs", "kernels", "report", "validation")
"""Folders that the rows do not depend on (the GPUs that they do depend on are in the plan)."""


class Contents(Strict):
    """What is packed: the request with its models and GPUs read, and marks of the files and the code that workers must have, too."""

    request: SweepRequest
    models: tuple[ModelSpec, ...]
    gpus: tuple[GpuSpec, ...]
    files: dict[str, str]
    """Path -> SHA-256 of the user's other files: counts and kernel profiles."""
    version: str
    code: str
    chunk: int


@dataclass(frozen=True)
class Plan:
    """A sweep ready to compute."""

    contents: Contents
    axes: dict[str, tuple[str, ...] | np.ndarray]
    layers: tuple[MoeLayer, ...]
    """Of the models, in their order."""

    @property
    def points(self) -> int:
        """Points of the grid."""
        return self.contents.request.points

    @property
    def chunks(self) -> int:
        """Chunks, the last one perhaps shorter."""
        return -(-self.points // self.contents.chunk)

    def span(self, number: int) -> tuple[int, int]:
        """First point of a chunk and the one behind its last."""
        start = number * self.contents.chunk
        return start, min(start + self.contents.chunk, self.points)


def make_plan(request: SweepRequest, chunk: int = CHUNK) -> Plan:
    """Read what the request names. Raises PerfModelError where a file went missing since it was checked."""
    contents = Contents(
        request=request,
        models=tuple(load_model(name) for name in request.model),
        gpus=tuple(load_gpu(name) for name in request.gpu),
        files={name: _file_digest(name) for name in _files(request)},
        version=_version(),
        code=code_digest(),
        chunk=chunk,
    )
    return _plan(contents)


def _plan(contents: Contents) -> Plan:
    layers = tuple(model.moe for model in contents.models if model.moe is not None)
    return Plan(contents, contents.request.axes, layers)


def pack(plan: Plan) -> bytes:
    """The plan as a few compressed kilobytes of JSON, the same for the same plan."""
    return zlib.compress(plan.contents.model_dump_json().encode())


def identity(packed: bytes) -> str:
    """The name of a sweep: parts of a grid, model, GPU, file or code that differ have another."""
    return hashlib.sha256(zlib.decompress(packed)).hexdigest()[:16]


@lru_cache(maxsize=2)
def unpack(packed: bytes) -> Plan:
    """The plan again. Raises PerfModelError where this machine's code or files are not those of the plan."""
    contents = Contents.model_validate_json(zlib.decompress(packed), context=TRUSTED)
    if contents.code != code_digest():
        raise PerfModelError(
            f"{gethostname()} has another version of perfmodel",
            field="scheduler",
            value=_version(),
            mend=f"Install the one that asks ({contents.version}) on every worker.",
        )
    for name, digest in contents.files.items():
        if _file_digest(name) != digest:
            raise PerfModelError(f"differs on {gethostname()}", file=name, mend="Put the file where every worker sees the same.")
    return _plan(contents)


def _files(request: SweepRequest) -> list[str]:
    counts = [word.partition(":")[2] for word in request.routing if word.startswith("counts:")]
    return [*counts, *(word for word in request.kernel if word.endswith((".yaml", ".yml")))]


def _file_digest(name: str) -> str:
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError as error:
        mend = "Put the file where every worker sees it."
        raise PerfModelError(f"cannot read on {gethostname()}: {error.strerror}", file=name, mend=mend) from error


def _version() -> str:
    try:
        return version("perfmodel")
    except PackageNotFoundError:
        return "checkout"


@cache
def code_digest() -> str:
    """Of the code and the data that the rows depend on: a checkout changes more often than its version."""
    top = Path(__file__).resolve().parents[1]
    found = hashlib.sha256()
    for path in sorted(p for p in top.rglob("*") if p.suffix in (".py", ".yaml")):
        name = path.relative_to(top)
        if name.parts[0] not in NOT_THE_MODEL:
            found.update(f"{name.as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()
