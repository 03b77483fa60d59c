"""Checks of the tensors that a launch takes, each mistake with a message of its own, and small helpers around their addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.errors import PerfModelError
from perfmodel.kernels.arrays import dtype_name

if TYPE_CHECKING:
    from torch import Tensor


def check(name: str, tensor: Tensor, dtype: str, shape: tuple[int | None, ...], device: Any, *, alignment: int = 4) -> None:
    """Raise PerfModelError unless a tensor has this type and shape (None: any size), is contiguous, aligned and on this device."""
    if not hasattr(tensor, "data_ptr"):
        raise PerfModelError("must be a torch tensor", field=name, value=type(tensor).__name__)
    if tensor.device != device:
        raise PerfModelError(f"must be on {device}, where the weights are", field=name, value=str(tensor.device), mend="Move it there.")
    if dtype_name(tensor) != dtype:
        raise PerfModelError(f"must be {dtype}", field=name, value=dtype_name(tensor), mend=f"Convert it: {name}.to(torch.{dtype}).")
    sizes = tuple(tensor.shape)
    if len(sizes) != len(shape) or any(want not in (None, size) for want, size in zip(shape, sizes, strict=True)):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise PerfModelError(f"must have the shape [{wanted}]", field=name, value=sizes)
    if not tensor.is_contiguous():
        raise PerfModelError("must be contiguous", field=name, value=tuple(tensor.stride()), mend=f"Pass {name}.contiguous().")
    if tensor.data_ptr() % alignment:
        raise PerfModelError(
            f"must begin at a multiple of {alignment} bytes", field=name, value=tensor.data_ptr() % alignment, mend=f"Pass {name}.clone()."
        )


def address(tensor: Tensor | None) -> int:
    """Where a tensor begins; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()  # type: ignore[no-any-return]


def counting(count: int, like: Tensor) -> Tensor:
    """0 .. count - 1 of the type and on the device of `like`."""
    import torch

    return torch.arange(count, dtype=like.dtype, device=like.device)


def bytes_on(data: bytes, device: Any) -> Tensor:
    """Bytes as a uint8 tensor on a device."""
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
