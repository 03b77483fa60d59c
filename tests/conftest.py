"""Shared by all tests: what the mark `gpu` means, and how a kernel is run on one."""

import sys
from functools import cache, wraps
from importlib.util import find_spec

import numpy as np
import pytest


@cache
def gpu_capability() -> tuple[int, int] | None:
    """Compute capability of this machine's GPU, None where there is none or numba-cuda is not installed."""
    try:
        import numba_cuda  # noqa: F401
        from numba import cuda
    except ImportError:
        return None
    return tuple(cuda.get_current_device().compute_capability[:2]) if cuda.is_available() else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """`@pytest.mark.gpu` skips where there is no GPU; `least=(8, 9)` below that compute capability, `only=(9, 0)` on any other."""
    marks = list(item.iter_markers("gpu"))
    if not marks:
        return
    if gpu_capability() is None:
        pytest.skip("needs a CUDA GPU and the extra `kernels`")
    for wanted in marks:
        least, only = wanted.kwargs.get("least", (0, 0)), wanted.kwargs.get("only", gpu_capability())
        if gpu_capability() < least or gpu_capability() != only:
            pytest.skip(f"needs compute capability {wanted.kwargs}, not {gpu_capability()}")


def untraced(function):
    """`function` without the tracer that coverage has set."""

    @wraps(function)
    def call(*arguments, **choices):
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            return function(*arguments, **choices)
        finally:
            sys.settrace(tracer)

    return call


@pytest.fixture(scope="session", autouse=True)
def untraced_compiler():
    """Coverage is paused while numba compiles: nothing of ours runs there, and tracing it takes as long again."""
    if sys.gettrace() is None:
        yield
        return
    from numba.core.dispatcher import Dispatcher

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dispatcher, "compile", untraced(Dispatcher.compile))
        if find_spec("numba_cuda") is not None:
            from numba import cuda

            patch.setattr(cuda, "compile", untraced(cuda.compile))
        yield


@pytest.fixture
def launch():
    """`launch(kernel, *arrays, threads=32)` runs one CTA over copies of NumPy arrays and gives the copies back."""

    def run(kernel, *arrays: np.ndarray, threads: int = 32) -> tuple[np.ndarray, ...]:
        from numba import cuda

        import perfmodel.kernels  # noqa: F401  (what numba-cuda needs first)

        held = [cuda.to_device(np.ascontiguousarray(array)) for array in arrays]
        cuda.jit(kernel, launch_bounds=(threads, 1))[1, threads](*held)
        return tuple(array.copy_to_host() for array in held)

    return run


@pytest.fixture
def rng():
    """Random numbers that are the same in every run."""
    return np.random.default_rng(7)


@pytest.fixture
def run(capsys):
    """`run(*words)` calls the command as a user types it, in this process, and gives exit code, stdout and stderr."""
    from perfmodel.cli import main

    def call(*words):
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return call
