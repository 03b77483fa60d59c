"""What is timed on one problem: kernels of ours and of torch, each with all that a call needs, and the float64 result it must have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.formats import get_format
from perfmodel.kernels import reference, steps
from perfmodel.kernels.benchmark.ceilings import on_stream
from perfmodel.kernels.grouped import GroupedGemm, Packed
from perfmodel.kernels.tiles import Tile
from perfmodel.kernels.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 2**24
"""Of a size."""
E4M3_MAX = 448.0
TOKEN_SEED = 1_000_003
"""Keeps activations apart from weights: drawn from one seed they would be equal, and some products huge."""


@dataclass(frozen=True)
class Shape:
    """E experts with weights [N, K]."""

    experts: int
    n: int
    k: int


def parse_sizes(text: str, names: Sequence[str]) -> list[int]:
    """The sizes in `experts=2,n=256,k=256`, in the order of `names`, all of which must be there. Raises PerfModelError."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in names:
            raise PerfModelError("no such size", field="--shape", value=name, mend=did_you_mean(name, names))
        if name in sizes:
            raise PerfModelError(f"{name} is given twice", field="--shape", value=text)
        sizes[name] = parse_size(value, name, "--shape")
    if missing := [name for name in names if name not in sizes]:
        raise PerfModelError(f"{', '.join(missing)} missing", field="--shape", value=text, mend=f"Write {'=..,'.join(names)}=...")
    return [sizes[name] for name in names]


def parse_size(text: str, name: str, field: str) -> int:
    """A whole number from 1 to LARGEST. Raises PerfModelError."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST)) and 1 <= int(text) <= LARGEST):
        raise PerfModelError(f"{name} must be a whole number from 1 to {LARGEST:,}", field=field, value=text[:40])
    return int(text)


@dataclass(frozen=True, eq=False)
class Problem:
    """Tokens of one grouped GEMM, sorted by expert."""

    shape: Shape
    x: Tensor
    """bf16 [T, K]"""
    offsets: Tensor
    """i32 [E + 1]"""
    bounds: tuple[int, ...]
    """`offsets` on the host."""

    @property
    def tokens(self) -> int:
        """Over all experts."""
        return self.bounds[-1]

    def of(self, tokens: Tensor, expert: int) -> Tensor:
        """The rows of an expert."""
        return tokens[self.bounds[expert] : self.bounds[expert + 1]]


def draw_problem(shape: Shape, counts: Sequence[int], seed: int = 0) -> Problem:
    """Gaussian activations for `counts` [E] tokens of each expert, on the current GPU."""
    import torch

    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed + TOKEN_SEED)
    bounds = (0, *torch.tensor(counts).cumsum(0).tolist())
    x = torch.randn(bounds[-1], shape.k, generator=generator, device="cuda").to(torch.bfloat16)
    return Problem(shape, x, torch.tensor(bounds, dtype=torch.int32, device="cuda"), bounds)


@dataclass(frozen=True, eq=False)
class Contender:
    """One way to compute a problem."""

    kernel: str
    ours: bool
    math: str
    format: str
    weight_bytes: float
    """Of all experts, as the kernel stores them."""
    calls: tuple[Callable[[], None], ...]
    """One for each copy of the weights."""
    out: Callable[[], Tensor]
    """bf16 [T, N] of the last call."""
    expected: Callable[[int], Tensor]
    """Of an expert, float64 [its tokens, N], for the operands that the kernel multiplies."""


def copies(packed: Packed, count: int) -> tuple[Packed, ...]:
    """The weights, and copies of them at other addresses."""
    others = [name for name in ("group_scales", "row_scale") if getattr(packed, name, None) is not None]

    def clone() -> Packed:
        return replace(packed, tiles=packed.tiles.clone(), **{name: getattr(packed, name).clone() for name in others})

    return packed, *(clone() for _ in range(count - 1))


def stored_bytes(shape: Shape, format_id: str) -> float:
    """Codes and scales of all experts, as a checkpoint holds them."""
    return shape.experts * shape.n * shape.k * get_format(format_id).weights.bits / 8


class Quantised:
    """Activations for FP8 kernels, and the launch that makes them: E4M3 codes [T, K], a scale f32 [T] for each token."""

    def __init__(self, x: Tensor) -> None:
        import torch

        self.codes, self.scales = torch.empty_like(x, dtype=torch.float8_e4m3fn), torch.empty(len(x), device=x.device)
        self.quantise = steps.quantise(x, self.codes, self.scales)

    def values(self, problem: Problem, expert: int) -> Tensor:
        """What the codes of an expert's tokens stand for, float64."""
        return problem.of(self.codes, expert).double() * problem.of(self.scales, expert).double()[:, None]


def ours(problem: Problem, weights: Weights, packed: Sequence[Packed], tile: Tile) -> Contender:
    """A kernel of ours with this tile; W4A8 with the quantisation of the activations before it."""
    import torch

    out = torch.full((problem.tokens, problem.shape.n), float("nan"), dtype=torch.bfloat16, device="cuda")
    gemms = [GroupedGemm(one, tile=tile) for one in packed]
    eight_bits = weights.format.endswith("w4a8")
    tokens = Quantised(problem.x) if eight_bits else None
    if tokens is None:
        calls = [on_stream(gemm.prepare(problem.x, problem.offsets, out)) for gemm in gemms]
    else:
        launches = [gemm.prepare(tokens.codes, problem.offsets, out, token_scale=tokens.scales) for gemm in gemms]
        calls = [on_stream(tokens.quantise, launch) for launch in launches]

    def expected(expert: int) -> Tensor:
        rows = problem.of(problem.x, expert) if tokens is None else tokens.values(problem, expert)
        return reference.grouped_gemm(rows, weights.expert(expert), torch.tensor([0, len(rows)]))

    math = "fp8" if eight_bits else "bf16"
    return Contender(
        gemms[0].name, True, math, weights.format, stored_bytes(problem.shape, weights.format), tuple(calls), lambda: out, expected
    )


def torch_bf16_weights(weights: Weights) -> Tensor:
    """What the weights stand for, as bf16 [E, N, K]."""
    import torch

    return torch.cat([reference.dequantise(weights.expert(e)).to(torch.bfloat16) for e in range(len(weights.codes))])


def torch_grouped_mm(problem: Problem, dense: Sequence[Tensor]) -> Contender:
    """torch._grouped_mm over bf16 weights [E, N, K], each of `dense` a copy."""
    import torch

    ends, last = problem.offsets[1:].clone(), _Last()

    def call(weights: Tensor) -> Callable[[], None]:
        return lambda: last.keep(torch._grouped_mm(problem.x, weights.transpose(-2, -1), offs=ends))

    def expected(expert: int) -> Tensor:
        return problem.of(problem.x, expert).double() @ dense[0][expert].double().T

    calls = tuple(call(weights) for weights in dense)
    return Contender("torch-grouped-mm", False, "bf16", "bf16", 2.0 * dense[0].numel(), calls, last.get, expected)


def torch_fp8_weights(dense: Tensor) -> tuple[Tensor, Tensor]:
    """bf16 weights as E4M3 [E, N, K] and a scale f32 [E, N] for each row."""
    import torch

    scales = dense.abs().amax(-1).float() / E4M3_MAX
    return torch.stack([(one / scale[:, None]).to(torch.float8_e4m3fn) for one, scale in zip(dense, scales, strict=True)]), scales


def torch_scaled_grouped_mm(problem: Problem, dense: Sequence[Tensor], row_scales: Tensor) -> Contender:
    """torch._scaled_grouped_mm over E4M3 weights, with the same quantisation of the activations before it as ours."""
    import torch

    ends, last, tokens = problem.offsets[1:].clone(), _Last(), Quantised(problem.x)
    quantise = on_stream(tokens.quantise)

    def call(weights: Tensor) -> Callable[[], None]:
        def enqueue() -> None:
            quantise()
            columns = weights.transpose(-2, -1)
            scales = tokens.scales, row_scales
            last.keep(torch._scaled_grouped_mm(tokens.codes, columns, *scales, offs=ends, out_dtype=torch.bfloat16, use_fast_accum=True))

        return enqueue

    def expected(expert: int) -> Tensor:
        return tokens.values(problem, expert) @ (dense[0][expert].double() * row_scales[expert].double()[:, None]).T

    calls = tuple(call(weights) for weights in dense)
    return Contender("torch-scaled-grouped-mm", False, "fp8", "fp8", float(dense[0].numel()), calls, last.get, expected)


def errors(problem: Problem, contender: Contender) -> tuple[float, int]:
    """(||y - ref|| / ||ref|| in float64, Frobenius over all experts; how many elements of y are NaN)."""
    out = contender.out()
    difference = size = 0.0
    for expert in range(problem.shape.experts):
        rows = problem.of(out, expert)
        if len(rows):
            expected = contender.expected(expert)
            difference += float(((rows.double() - expected) ** 2).sum())
            size += float((expected**2).sum())
    return (difference / size) ** 0.5, int(out.isnan().sum())


class _Last:
    """Holds the newest output of functions that make a new one each time."""

    def __init__(self) -> None:
        self._held: Any = None

    def keep(self, out: Tensor) -> None:
        self._held = out

    def get(self) -> Tensor:
        return self._held
