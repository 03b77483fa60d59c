"""What numba-cuda 0.30.4 needs help with. `perfmodel.kernels` imports this module, so that it comes before `numba.cuda`.

The extra `kernels` keeps NumPy below 2.5, where nothing is missing. This is for machines whose NumPy is newer and cannot be
changed: numba-cuda 0.30.4 registers an implementation of `numpy.row_stack` when a kernel takes its first array, and NumPy 2.5
has removed that deprecated alias of `numpy.vstack`: every such kernel would fail to compile.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

if not hasattr(np, "row_stack"):
    setattr(np, "row_stack", np.vstack)  # noqa: B010  (mypy knows that the name is gone)


@contextmanager
def stand_in_device(capability: tuple[int | str, ...]) -> Iterator[None]:
    """While compiling for `capability`, what numba-cuda takes for the current GPU.

    numba-cuda 0.30.4 asks the current GPU for its compute capability whenever it compiles a device function, although `cuda.compile` is
    told the target: without this no kernel that calls device functions compiles on a machine without a GPU.
    """
    from types import SimpleNamespace

    from numba.cuda import dispatcher

    asked = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = asked
