"""Launching compiled kernels at little cost: arguments are packed once, shared memory over 48 KiB is allowed, tensor maps are made.

`cuLaunchKernel` with arguments prepared beforehand costs about 5 us on the host; a captured graph replays for less. Pointers are plain
integers (`tensor.data_ptr()`); nothing here depends on torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perfmodel.errors import MissingRequirementError, PerfModelError
from perfmodel.kernels.compile import Compiled

CType = Literal["u64", "u32", "i32", "f32"]
CTYPES: dict[str, Any] = {"u64": ctypes.c_uint64, "u32": ctypes.c_uint32, "i32": ctypes.c_int32, "f32": ctypes.c_float}


def driver() -> Any:
    """cuda.bindings.driver. Raises MissingRequirementError where it, the NVIDIA driver or a GPU is missing."""
    try:
        from cuda.bindings import driver as bindings
    except ImportError as error:
        raise MissingRequirementError("launching kernels needs cuda-bindings", mend="Install the extra `gpu`.") from error
    try:
        result = bindings.cuInit(0)[0]
    except RuntimeError as error:
        raise MissingRequirementError("no NVIDIA driver was found", mend="Run this on a machine with a GPU.") from error
    if int(result) != 0:
        raise MissingRequirementError(f"no GPU can be used ({result.name})", mend="Run this on a machine with a GPU.")
    return bindings


def checked(answer: tuple[Any, ...]) -> Any:
    """What a driver call returns beside its status. Raises PerfModelError with the driver's words where it failed."""
    status, *values = answer
    if int(status) != 0:
        raise PerfModelError(f"the CUDA driver answers {status.name}", mend="Check shapes, pointers and the free memory of the GPU.")
    return values[0] if values else None


@dataclass(frozen=True)
class Loaded:
    """A kernel on the current GPU."""

    compiled: Compiled
    function: Any
    threads: int
    shared_bytes: int
    module: Any = field(repr=False)
    """Kept alive as long as the function."""

    def resident_ctas(self) -> int:
        """CTAs that the current GPU holds at once: the grid of a persistent kernel."""
        cuda = driver()
        device = checked(cuda.cuCtxGetDevice())
        count = checked(cuda.cuDeviceGetAttribute(cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device))
        per_sm = checked(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, self.threads, self.shared_bytes))
        return int(count * per_sm)


def load(compiled: Compiled, threads: int, shared_bytes: int) -> Loaded:
    """Load a cubin into the current context and allow its launches `shared_bytes` of dynamic shared memory."""
    cuda = driver()
    module = checked(cuda.cuModuleLoadData(compiled.cubin))
    function = checked(cuda.cuModuleGetFunction(module, compiled.entry.encode()))
    limit = cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    checked(cuda.cuFuncSetAttribute(function, limit, shared_bytes))
    return Loaded(compiled, function, threads, shared_bytes, module)


class Launch:
    """One launch with its arguments packed: call it with a stream (an integer handle) as often as wanted."""

    def __init__(
        self, kernel: Loaded, grid: tuple[int, int], arguments: Sequence[tuple[CType, int | float]], keep: Sequence[object] = ()
    ) -> None:
        """`arguments` are (type, value) in the order of the kernel; `keep` holds what their pointers point to."""
        self._cuda = driver()
        self._kernel, self._grid, self._keep = kernel, grid, tuple(keep)
        self._values = [CTYPES[kind](value) for kind, value in arguments]
        self._pointers = (ctypes.c_void_p * len(self._values))(*(ctypes.addressof(value) for value in self._values))
        self._address = ctypes.addressof(self._pointers)

    def set(self, index: int, value: int | float) -> None:
        """Change one argument for the calls to come; a graph keeps the value that it was captured with."""
        self._values[index].value = value

    def __call__(self, stream: int = 0) -> None:
        """Enqueue on `stream`; 0 is the default stream. Capturable in a CUDA graph."""
        kernel = self._kernel
        status = self._cuda.cuLaunchKernel(
            kernel.function, self._grid[0], self._grid[1], 1, kernel.threads, 1, 1, kernel.shared_bytes, stream, self._address, 0
        )
        if int(status[0]) != 0:
            checked(status)


def tensor_map(pointer: int, rows: int, columns: int, *, box: tuple[int, int], element_bytes: int = 2) -> bytes:
    """The 128 bytes that describe a row-major matrix [rows, columns] to the bulk copy engine, for boxes [box rows, box columns].

    Boxes are 128 bytes wide and swizzled by 128; what lies outside the matrix comes as zeros. Raises PerfModelError for a pointer or
    row pitch that is not a multiple of 16 bytes. CUDA Driver API, cuTensorMapEncodeTiled.
    """
    import numpy as np

    pitch = columns * element_bytes
    if pointer % 16 or pitch % 16:
        raise PerfModelError(
            "rows must begin at multiples of 16 bytes", field="x", value=(pointer % 16, pitch), mend="Give a contiguous array."
        )
    cuda = driver()
    kinds = cuda.CUtensorMapDataType
    kind = {1: kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8, 2: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16}[element_bytes]
    encoded = checked(
        cuda.cuTensorMapEncodeTiled(
            kind,
            2,
            pointer,
            [cuda.cuuint64_t(columns), cuda.cuuint64_t(rows)],
            [cuda.cuuint64_t(pitch)],
            [cuda.cuuint32_t(box[1]), cuda.cuuint32_t(box[0])],
            [cuda.cuuint32_t(1)] * 2,
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            cuda.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            cuda.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return np.array([int(word) for word in encoded.opaque], dtype=np.uint64).tobytes()
