"""Compiling kernels on any machine: numba-cuda and NVVM, then nvJitLink make machine code; no GPU and no CUDA toolkit is needed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from multiprocessing import get_context
from threading import Thread
from time import perf_counter, sleep
from typing import Any

from perfmodel.errors import MissingRequirementError, PerfModelError, did_you_mean
from perfmodel.kernels import compat, sass
from perfmodel.kernels.variants import ARCHITECTURES, KernelSource, Variant

SHARED_LIMIT = {"sm_80": 163, "sm_89": 99, "sm_90a": 227, "sm_100a": 227, "sm_120a": 99}
"""KiB of shared memory that one CTA may have. CUDA C++ Programming Guide 13.0, table of technical specifications per compute capability."""

FINDINGS = ("Potential Performance Loss", "warning")
"""What marks a line of the assembler's log that a person should read: wgmmas made serial, instructions ignored."""


@dataclass(frozen=True)
class Compiled:
    """One kernel for one architecture. `shared_bytes` is what a CTA takes: declared in the kernel plus dynamic, from its source.

    `registers` is per thread; `spill_bytes` counts stores and loads of registers that did not fit; both None where the assembler kept
    silent. `sass` counts machine instructions (`sass.count`), None where nobody asked or no disassembler is there. `warnings` are the
    assembler's.
    """

    name: str
    arch: str
    cubin: bytes = field(repr=False)
    entry: str
    registers: int | None
    shared_bytes: int
    spill_bytes: int | None
    sass: dict[str, int] | None
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Checked:
    """The verdict on one variant for one architecture: `ok` means that it compiles, assembles, fits, spills nothing and warns of nothing.

    `problem` says what is wrong. The figures are None where there is no machine code.
    """

    name: str
    kind: str
    arch: str
    ok: bool
    problem: str | None
    registers: int | None
    shared_bytes: int | None
    spill_bytes: int | None
    sass: dict[str, int] | None
    seconds: float


def require_compiler() -> None:
    """Raise MissingRequirementError where the packages that compile kernels are not installed."""
    missing = [package for package, module in (("numba-cuda", "numba_cuda"), ("cuda-core", "cuda.core")) if not _is_there(module)]
    if missing:
        raise MissingRequirementError(
            f"compiling kernels needs {' and '.join(missing)}", mend="Install the extra `kernels`: pip install 'perfmodel[kernels]'."
        )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing too
        return False


def compile_variant(variant: Variant, arch: str, *, count_sass: bool = True) -> Compiled:
    """Compile a variant for an architecture (`sm_90a`); see `compile_source`.

    numba's part, the longer one, is done once for all architectures: by the variant's first one, the least.
    """
    source, intermediate = _intermediate(variant)
    return assemble(intermediate, source, arch, variant.name, count_sass=count_sass)


@lru_cache(maxsize=1)
def _intermediate(variant: Variant) -> tuple[KernelSource, bytes]:
    require_compiler()
    source = variant.build()
    return source, to_ltoir(source, variant.archs[0])


def compile_source(source: KernelSource, arch: str, name: str = "kernel", *, count_sass: bool = False) -> Compiled:
    """Compile a kernel for an architecture and say what it takes; with `count_sass`, what the machine code holds, too.

    Raises MissingRequirementError without the extra `kernels`, and whatever numba, NVVM or nvJitLink raises for a kernel that is wrong.
    """
    require_compiler()
    return assemble(to_ltoir(source, arch), source, arch, name, count_sass=count_sass)


def assemble(intermediate: bytes, source: KernelSource, arch: str, name: str, *, count_sass: bool = False) -> Compiled:
    """The second half of `compile_source`: from `to_ltoir`'s output, for this architecture or an earlier one."""
    cubin, log = link(intermediate, arch)
    if not log.strip("\0 \n"):  # seen, rarely, where many processes compile at once
        cubin, log = link(intermediate, arch)
    return Compiled(
        name=name,
        arch=arch,
        cubin=cubin,
        entry=sass.entry_of(cubin),
        registers=_figure(r"ptxas info\s*: Used (\d+) registers", log),
        shared_bytes=source.shared_bytes + (_figure(r" (\d+) bytes smem", log) or 0),
        spill_bytes=_figure(r"(\d+) bytes spill (?:stores|loads)", log),
        sass=sass.count(cubin) if count_sass else None,
        warnings=tuple(line.strip() for line in log.splitlines() if any(mark in line for mark in FINDINGS)),
    )


def to_ptx(source: KernelSource, arch: str) -> str:
    """PTX of a kernel, by numba-cuda and NVVM: to be read, or for the driver."""
    return _compile(source, arch, "ptx")  # type: ignore[no-any-return]


def to_ltoir(source: KernelSource, arch: str) -> bytes:
    """The kernel in NVVM's intermediate form for linking: nvJitLink assembles it as a whole program.

    From PTX nvJitLink makes relocatable code instead, in which `setmaxnreg` is ignored and wgmmas are serialised.
    """
    return _compile(source, arch, "ltoir")  # type: ignore[no-any-return]


def _compile(source: KernelSource, arch: str, output: str) -> Any:
    from numba import cuda

    target = capability(arch)
    with compat.stand_in_device(target):
        code, _ = cuda.compile(
            source.function, source.signature, cc=target, device=False, abi="numba", launch_bounds=source.launch_bounds, output=output
        )
    return code


def capability(arch: str) -> tuple[int | str, ...]:
    """`sm_90a` as numba-cuda names it, (9, 0, "a"). Raises PerfModelError where `arch` is no such name."""
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", arch)
    if match is None:
        raise PerfModelError("is not an architecture of NVIDIA GPUs", field="arch", value=arch, mend=did_you_mean(arch, ARCHITECTURES))
    version = int(match[1]), int(match[2])
    return (*version, match[3]) if match[3] else version


def link(intermediate: bytes, arch: str) -> tuple[bytes, str]:
    """(cubin, the assembler's log with registers, spills and warnings) of `to_ltoir`'s output."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    options = LinkerOptions(arch=arch, verbose=True, link_time_optimization=True, ptxas_options=["-v"])
    linker = Linker(ObjectCode.from_ltoir(intermediate), options=options)
    return linker.link("cubin").code, linker.get_info_log()


def _figure(pattern: str, log: str) -> int | None:
    """The sum of what `pattern` finds in the assembler's log, None where it finds nothing."""
    found: list[str] = re.findall(pattern, log)
    return sum(map(int, found)) if found else None


def check_one(variant: Variant, arch: str, *, count_sass: bool = True) -> Checked:
    """Compile and judge. Whatever goes wrong is a finding about this variant, not a reason to stop looking at the others.

    No verdict rests on the counts of `count_sass`, which take a third of a second each.
    """
    began = perf_counter()
    try:
        made = compile_variant(variant, arch, count_sass=count_sass)
    except MissingRequirementError:
        raise
    except Exception as error:
        return Checked(variant.name, variant.kind, arch, False, _first_lines(error), None, None, None, None, perf_counter() - began)
    problem = problem_of(made)
    figures = (made.registers, made.shared_bytes, made.spill_bytes, made.sass)
    return Checked(variant.name, variant.kind, arch, problem is None, problem, *figures, perf_counter() - began)


def problem_of(made: Compiled) -> str | None:
    """What is wrong with a kernel that compiled, or None."""
    limit = SHARED_LIMIT[made.arch] * 1024
    if made.spill_bytes is None:
        return "assembled, but the assembler does not say what it takes"
    if made.shared_bytes > limit:
        return f"takes {made.shared_bytes} bytes of shared memory, {made.arch} has {limit} for one CTA"
    if made.spill_bytes:
        return f"spills {made.spill_bytes} bytes of registers"
    return made.warnings[0] if made.warnings else None


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:500]}"


def check_all(
    tasks: Iterable[tuple[Variant, str]], *, jobs: int, count_sass: bool = True, done: Callable[[Checked], None] = lambda row: None
) -> list[Checked]:
    """Check each (variant, architecture) in `jobs` processes, the result in the order of `tasks`; `done` hears of each as it is ready."""
    tasks = list(tasks)
    require_compiler()
    places: dict[Variant, list[int]] = {}
    for index, (variant, _) in enumerate(tasks):
        places.setdefault(variant, []).append(index)
    batches = {variant: [tasks[index][1] for index in indices] for variant, indices in places.items()}
    rows: dict[int, Checked] = {}
    for variant, found in _in_order(batches, count_sass) if jobs == 1 else _in_processes(batches, jobs, count_sass):
        for index, row in zip(places[variant], found, strict=True):
            rows[index] = row
            done(row)
    return [rows[index] for index in range(len(tasks))]


def _check_variant(variant: Variant, archs: list[str], count_sass: bool) -> list[Checked]:
    return [check_one(variant, arch, count_sass=count_sass) for arch in archs]


def _in_order(batches: dict[Variant, list[str]], count_sass: bool) -> Iterator[tuple[Variant, list[Checked]]]:
    for variant, archs in batches.items():
        yield variant, _check_variant(variant, archs, count_sass)


def _in_processes(batches: dict[Variant, list[str]], jobs: int, count_sass: bool) -> Iterator[tuple[Variant, list[Checked]]]:
    """As they are ready. Processes start afresh: numba and LLVM do not like to be forked.

    Interrupted, or where one fails, the processes are ended at once: nothing of theirs is worth waiting for.
    """
    pool = ProcessPoolExecutor(
        min(jobs, len(batches)), mp_context=get_context("spawn"), initializer=_end_with_parent, initargs=(os.getpid(),)
    )
    running = {pool.submit(_check_variant, *batch, count_sass): batch[0] for batch in batches.items()}
    try:
        for future in as_completed(running):
            yield running[future], future.result()
    except BaseException:
        for process in list(pool._processes.values()):
            process.kill()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


def _end_with_parent(parent: int) -> None:
    """In a worker: leave interrupts to the parent, and end when it has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            sleep(1.0)
        os._exit(1)

    Thread(target=watch, daemon=True).start()
