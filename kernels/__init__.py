"""numba.cuda kernels that run on real GPUs, each with a readable reference beside it."""

from perfmodel.kernels import compat as _compat  # noqa: F401  (before anything imports numba.cuda)
