"""Random weights in the formats of the kernels, made by torch where they are used: Gaussian, quantised as checkpoints are.

Values matter to speed: on zeros a GPU draws less power and runs faster than on anything real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.formats.elements import get_element
from perfmodel.kernels.weights import FORMATS, Weights

if TYPE_CHECKING:
    from torch import Tensor

E2M1_MAX, E4M3_MAX = 6.0, 448.0
BLOCK = {"mxfp4-w4a16": 32, "mxfp4-w4a8": 32, "nvfp4-w4a16": 16, "int4-w4a16": 128, "nf4-w4a16": 64}
"""Format -> K of a block of weights with one scale."""
Parts = tuple[Any, Any, Any]
"""codes [N, K], scales [N, K / block], tensor scale [] or None."""


def random_weights(format_id: str, experts: int, n: int, k: int, *, seed: int = 0, device: Any = "cpu") -> Weights:
    """Weights [E, N, K] of standard deviation K**-0.5, so that outputs are as large as inputs. The same seed gives the same values.

    Raises PerfModelError for an unknown format, and for a K that is no multiple of the format's block.
    """
    import torch

    if format_id not in FORMATS:
        raise PerfModelError("no kernel takes this format", field="format", value=format_id, mend=did_you_mean(format_id, FORMATS))
    if k % BLOCK[format_id]:
        raise PerfModelError(f"must be a multiple of {BLOCK[format_id]} in {format_id}", field="K", value=k, mend="Choose another K.")
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    made = []
    for _ in range(experts):
        values = torch.randn(n, k, generator=generator, device=device) * k**-0.5
        made.append(_quantise(values, format_id))
    codes, scales, tensor_scales = zip(*made, strict=True)
    whole = None if tensor_scales[0] is None else torch.stack(tensor_scales)
    return Weights(format_id, torch.stack(codes), torch.stack(scales), whole)


def _quantise(values: Tensor, format_id: str) -> Parts:
    """One matrix [N, K]."""
    blocks = values.view(values.shape[0], -1, BLOCK[format_id])
    largest = blocks.abs().amax(-1, keepdim=True)
    quantise: dict[str, Callable[[Tensor, Tensor], Parts]] = {"nvfp4-w4a16": _nvfp4, "int4-w4a16": _int4, "nf4-w4a16": _nf4}
    codes, scales, tensor_scale = quantise.get(format_id, _mxfp4)(blocks, largest)
    return codes.view(values.shape), scales[..., 0], tensor_scale


def _mxfp4(blocks: Tensor, largest: Tensor) -> Parts:
    import torch

    exponent = torch.floor(torch.log2(largest)) - 2
    return _nearest(blocks / torch.exp2(exponent), "e2m1"), (exponent + 127).to(torch.uint8), None


def _nvfp4(blocks: Tensor, largest: Tensor) -> Parts:
    import torch

    tensor_scale = largest.max() / (E2M1_MAX * E4M3_MAX)
    scales = (largest / (E2M1_MAX * tensor_scale)).to(torch.float8_e4m3fn)
    return _nearest(blocks / (scales.float() * tensor_scale), "e2m1"), scales.view(torch.uint8), tensor_scale


def _int4(blocks: Tensor, largest: Tensor) -> Parts:
    import torch

    scales = (largest / 7).half().float()
    return (torch.round(blocks / scales).clamp(-8, 7).to(torch.int8) & 15).to(torch.uint8), scales, None


def _nf4(blocks: Tensor, largest: Tensor) -> Parts:
    return _nearest(blocks / largest, "nf4"), largest, None


def _nearest(values: Tensor, element: Literal["e2m1", "nf4"]) -> Tensor:
    """The code of the nearest value of an element type, uint8; beyond the largest, that one."""
    import torch

    table = torch.as_tensor(get_element(element).values, dtype=torch.float32, device=values.device)
    ordered, codes = table.sort(stable=True)
    middles = (ordered[1:] + ordered[:-1]) / 2
    return codes.to(torch.uint8)[torch.bucketize(values, middles)]
