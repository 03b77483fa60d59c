"""What the machine can do at most, measured in the same run: dense matrix products, reading memory, copying it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perfmodel.kernels import cubins, operands, stream, timing
from perfmodel.kernels.clocks import Sensor
from perfmodel.kernels.launch import Launch

if TYPE_CHECKING:
    from torch import Tensor

SIDE = 8192
"""Of the square matrices."""
COPY_BYTES = 1 << 31
"""Read, and as many written."""
LEAST_FP8 = (8, 9)
"""Compute capability."""
Calls = list[Callable[[], None]]


def ceilings(weight_bytes: int, sensor: Sensor) -> dict[str, float | None]:
    """bf16_tflops, fp8_tflops (None below Ada), read_TBps of `weight_bytes` at a time, copy_TBps with bytes read and written counted.

    Of several ways to do each the fastest counts.
    """
    import torch

    calls: dict[str, Calls] = {f"bf16 {name}": [call] for name, call in _bf16_products().items()}
    if torch.cuda.get_device_capability() >= LEAST_FP8:
        calls["fp8"] = [_fp8_product()]
    calls["copy"] = [_copy()]
    calls |= {f"read {name}": reads for name, reads in _reads(weight_bytes).items()}
    times = timing.measure({name: timing.capture(call) for name, call in calls.items()}, sensor=sensor)

    def rate(kind: str, work: float) -> float | None:
        """In tera per second."""
        best = min((found.us for name, found in times.items() if name.startswith(kind)), default=None)
        return None if best is None else work / best / 1e6

    products = 2 * SIDE**3
    return {
        "bf16_tflops": rate("bf16", products),
        "fp8_tflops": rate("fp8", products),
        "read_TBps": rate("read", weight_bytes),
        "copy_TBps": rate("copy", 2 * COPY_BYTES),
    }


def _bf16_products() -> dict[str, Callable[[], None]]:
    import torch

    a, b = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    return {"normal": lambda: _drop(torch.mm(a, b, out=out)), "transposed": lambda: _drop(torch.mm(a, b.T, out=out))}


def _fp8_product() -> Callable[[], None]:
    import torch

    a, b = (torch.randn(SIDE, SIDE, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    return lambda: _drop(torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True))


def _copy() -> Callable[[], None]:
    import torch

    source = torch.randint(0, 255, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return lambda: _drop(target.copy_(source))


def _reads(size: int) -> dict[str, Calls]:
    """Our reading kernels, over two buffers in turn: as many CTAs as the GPU holds, or one turn for each CTA."""
    import torch

    device = torch.cuda.current_device()
    sources = [torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda") for _ in range(2)]
    made: dict[str, Calls] = {}
    for config, variant in zip(stream.CONFIGS, stream.VARIANTS, strict=True):
        resident = cubins.resident_ctas(cubins.load_variant(variant, device), device)
        for ctas in (resident, -(-size // (stream.THREADS * stream.VECTOR_BYTES * config.unroll))):
            made[f"{variant.name} {ctas} CTAs"] = [on_stream(read_launch(config, source, ctas)) for source in sources]
    return made


def read_launch(config: stream.Config, source: Tensor, ctas: int) -> Launch:
    """A launch of the reading kernel over a tensor of a multiple of 16 bytes."""
    import torch

    variant = stream.VARIANTS[stream.CONFIGS.index(config)]
    out = torch.zeros(ctas * stream.THREADS // 32, dtype=torch.int32, device=source.device)
    vectors = source.numel() * source.element_size() // stream.VECTOR_BYTES
    arguments = [("u64", operands.address(source)), ("u64", operands.address(out)), ("u32", vectors)]
    return Launch(cubins.load_variant(variant, source.device.index), (ctas, 1), arguments, keep=(source, out))  # type: ignore[arg-type]


def on_stream(*launches: Launch) -> Callable[[], None]:
    """A function that enqueues launches on torch's current stream."""
    import torch

    def enqueue() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        for launch in launches:
            launch(stream)

    return enqueue


def _drop(_result: Any) -> None:
    """Calls that are timed return nothing."""
