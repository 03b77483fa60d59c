"""The registry of kernels: which variants there are, what they take, and how the source of each is built.

A module that has kernels lists them in `VARIANTS` and is named in MODULES. It must import without numba-cuda, so that the list can be
read anywhere: what needs the compiler is imported inside `build`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from perfmodel.errors import PerfModelError, did_you_mean

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
"""What kernels are compiled for: Ampere, Ada, Hopper, Blackwell, Blackwell of the RTX line."""

MODULES: tuple[str, ...] = (
    "perfmodel.kernels.simple",
    "perfmodel.kernels.mma_w4a16",
    "perfmodel.kernels.decode",
    "perfmodel.kernels.decode_ring",
    "perfmodel.kernels.wgmma_w4a16",
    "perfmodel.kernels.wgmma_w4a8",
    "perfmodel.kernels.quantise",
    "perfmodel.kernels.routing",
    "perfmodel.kernels.stream",
)
"""Modules of `perfmodel.kernels` with a tuple `VARIANTS`, in the order of `perfmodel kernels list`."""


Epilogue = Literal["plain", "swiglu", "scatter"]
"""What a grouped GEMM does with its sums: stores them; silu(gate) x up; times a factor, to a row of its own."""
REFERENCES: dict[Epilogue, str] = {
    "plain": "perfmodel.kernels.reference:grouped_gemm",
    "swiglu": "perfmodel.kernels.reference:grouped_gemm_swiglu",
    "scatter": "perfmodel.kernels.reference:grouped_gemm_scatter",
}
"""Epilogue -> the NumPy function that a kernel with it must agree with."""


@dataclass(frozen=True)
class KernelSource:
    """A kernel before it is compiled.

    `function` is plain Python, not yet a `cuda.jit` dispatcher; `signature` the numba types of its arguments. `shared_bytes` is the dynamic
    shared memory of the launch, beside what the kernel declares. `launch_bounds` is (threads of a CTA, least CTAs on an SM): with them
    the assembler knows how many registers a thread may have.
    """

    function: Callable[..., None]
    signature: tuple[Any, ...]
    threads: int
    shared_bytes: int
    launch_bounds: tuple[int, int]


@dataclass(frozen=True)
class Variant:
    """A kernel with all choices made (tile, stages, format): what is compiled, measured and chosen.

    `kind` says what it is: by its instructions "reference", "mma", "decode" (mma.sync for few tokens), "wgmma", or else by its part in a
    layer or a measurement: "quantise", "layer", "ceiling". `formats` are ids of `perfmodel formats`, `archs` come from
    ARCHITECTURES, `reference` is "module:function" of the NumPy function that it must agree with. `build` is a function of a module, or a
    `functools.partial` of one: it goes to other processes.
    """

    name: str
    kind: str
    formats: tuple[str, ...]
    archs: tuple[str, ...]
    reference: str
    build: Callable[[], KernelSource]


def variants(modules: Sequence[str] = MODULES) -> tuple[Variant, ...]:
    """All variants of `modules`. Raises ValueError where two have the same name."""
    found = [variant for module in modules for variant in import_module(module).VARIANTS]
    names = [variant.name for variant in found]
    if len(set(names)) < len(names):
        raise ValueError(f"two variants share a name: {sorted({name for name in names if names.count(name) > 1})}")
    return tuple(found)


def find_variants(names: Sequence[str]) -> tuple[Variant, ...]:
    """The variants of these names, or all where there are none. Raises PerfModelError for an unknown name."""
    known = {variant.name: variant for variant in variants()}
    for name in names:
        if name not in known:
            raise PerfModelError("no such kernel", field="kernel", value=name, mend=did_you_mean(name, known))
    return tuple(known[name] for name in names) if names else tuple(known.values())
