"""The runner of `perfmodel measure` on this machine's GPU: grouped GEMMs as `perfmodel kernels bench` times them, and whole layers.

Weights of one shape and format are made once and kept until the next shape or format comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from perfmodel.errors import PerfModelError
from perfmodel.kernels import cubins, quantise, reference, routing, tiles, timing
from perfmodel.kernels.benchmark import contenders as make
from perfmodel.kernels.benchmark.contenders import Contender, Shape
from perfmodel.kernels.benchmark.device import l2_bytes, provenance, require_gpu
from perfmodel.kernels.benchmark.suite import COLD_FACTOR, DenseStock, Stock, measure_problem
from perfmodel.kernels.clocks import sensor_of
from perfmodel.kernels.layer import MoELayer
from perfmodel.kernels.synthetic import random_weights
from perfmodel.kernels.tiles import Tile
from perfmodel.kernels.variants import Variant
from perfmodel.kernels.weights import Weights
from perfmodel.validation.runs.points import GemmPoint, LayerPoint, Point

if TYPE_CHECKING:
    from torch import Tensor

Said = Callable[[str], None]
DEVICE = "cuda"
CHECKED = 256
"""Tokens of a layer that are held against float64."""
MOST_INPUTS = 16
"""Inputs that a layer is called with in turn, so that it does not find its experts in L2."""
FIELDS = ("kernel", "us", "us_low", "us_high", "burst_us", "rel_err", "nan", "sm_MHz", "power_W")


class GpuRunner:
    """Measures points on the current GPU. Raises MissingRequirementError where there is none, or no torch."""

    def __init__(self) -> None:
        require_gpu()
        torch = _torch()
        self._device = torch.cuda.current_device()
        self.arch = cubins.architecture_of(torch.cuda.get_device_capability(self._device))
        self._sensor = sensor_of(self._device)
        self._about = provenance()
        self._held: tuple[tuple[Any, ...], Any] | None = None

    @property
    def about(self) -> Mapping[str, Any]:
        """Device, driver and versions."""
        return self._about

    def compile(self, points: Sequence[tuple[Point, tuple[Tile, ...]]], *, jobs: int, note: Said) -> None:
        """Compile every kernel that the points need, in `jobs` processes."""
        wanted = [variant for point, chosen in points for variant in needed(point, chosen, self.arch)]
        tasks = [(variant, self.arch) for variant in dict.fromkeys(wanted) if self.arch in variant.archs]
        cubins.compile_all(tasks, jobs=jobs, done=lambda name: note(f"compiled {name}"))

    def measure(self, point: Point, chosen: tuple[Tile, ...]) -> Mapping[str, Any]:
        """Time a point and check its result."""
        try:
            return self._gemm(point, chosen) if isinstance(point, GemmPoint) else self._layer(point, chosen)
        finally:
            _torch().cuda.empty_cache()

    def named_calls(self, point: GemmPoint, chosen: tuple[Tile, ...]) -> tuple[str, tuple[Callable[[], None], ...]]:
        """The kernel's name, and functions that enqueue one call of a grouped GEMM, one for each copy of its weights."""
        _, contender = self._contender(point, chosen)
        return contender.kernel, contender.calls

    def _gemm(self, point: GemmPoint, chosen: tuple[Tile, ...]) -> Mapping[str, Any]:
        problem, contender = self._contender(point, chosen)
        (row,) = measure_problem(problem, [contender], point.tokens_per_expert, point.hold_s, self._sensor)
        return {name: row[name] for name in FIELDS}

    def _contender(self, point: GemmPoint, chosen: tuple[Tile, ...]) -> tuple[make.Problem, Contender]:
        shape = Shape(point.experts, point.n, point.k)
        problem = make.draw_problem(shape, [point.tokens_per_expert] * point.experts, seed=point.tokens_per_expert)
        if point.contender == "ours":
            stock: Stock = self._keep(("gemm", shape, point.format), lambda: Stock(shape, point.format))
            return problem, make.ours(problem, stock.weights, stock.packed, chosen[0])
        dense: DenseStock = self._keep(("torch", shape), lambda: DenseStock(Stock(shape, "mxfp4-w4a16").weights))
        if point.format == "bf16":
            return problem, make.torch_grouped_mm(problem, dense.bf16)
        return problem, make.torch_scaled_grouped_mm(problem, *dense.fp8)

    def _layer(self, point: LayerPoint, chosen: tuple[Tile, ...]) -> Mapping[str, Any]:
        gate_up, down = self._keep(("layer", point.format, point.experts, point.hidden, point.inter), lambda: _layer_weights(point, DEVICE))
        by_shape = {(problem.n, problem.k): tile for problem, tile in zip(point.problems, chosen, strict=True)}
        layer = MoELayer(gate_up, down, topk=point.topk, max_tokens=point.tokens, tile=lambda problem: by_shape[problem.n, problem.k])
        inputs = list(_inputs(point, DEVICE))
        outputs: list[Any] = [layer(x, logits) for x, logits in inputs]

        def call(index: int) -> Callable[[], None]:
            def enqueue() -> None:
                outputs[index] = layer(*inputs[index])

            return enqueue

        replay = timing.capture([call(index) for index in range(len(inputs))])
        outputs[0].fill_(float("nan"))
        time = timing.measure({"layer": replay}, hold_s=point.hold_s, sensor=self._sensor)["layer"]
        x, logits = (tensor[:CHECKED] for tensor in inputs[0])
        rounding = reference.QUANTISED if point.format == "mxfp4-w4a8" else reference.EXACT
        expected = reference.moe_layer(x, reference.route(logits, point.topk), gate_up, down, rounding)
        error = reference.relative_error(outputs[0][:CHECKED], expected)
        found = {name: getattr(time, name) for name in FIELDS if hasattr(time, name)}
        nan = int(outputs[0].isnan().sum())
        return found | {"kernel": "+".join(layer.kernels(point.tokens)), "rel_err": error if error == error else None, "nan": nan}

    def _keep(self, key: tuple[Any, ...], make_it: Callable[[], Any]) -> Any:
        """What was made for `key`, or `make_it()`; only the last one is held."""
        if self._held is None or self._held[0] != key:
            self._held = None
            _torch().cuda.empty_cache()
            self._held = key, make_it()
        return self._held[1]


def _torch() -> Any:
    import torch

    return torch


def needed(point: Point, chosen: tuple[Tile, ...], arch: str) -> list[Variant]:
    """The kernels that a point runs."""
    if isinstance(point, GemmPoint):
        found = [quantise.VARIANTS[0]] if point.format in ("mxfp4-w4a8", "fp8") else []
        return found + [_variant(point.format, "plain", arch, tile) for tile in chosen]
    gemms = [_variant(point.format, epilogue, arch, tile) for epilogue, tile in zip(("swiglu", "scatter"), chosen, strict=True)]
    return [*quantise.VARIANTS, *routing.VARIANTS, *gemms]


@lru_cache(maxsize=512)
def _variant(form: str, epilogue: str, arch: str, tile: Tile) -> Variant:
    menu = tiles.menu(form, epilogue, arch)
    if not menu:
        raise PerfModelError(f"no kernel for {arch} takes it", field="format", value=form, mend="Measure on another GPU.")
    return tiles.nearest(menu, tile).variant


def _layer_weights(point: LayerPoint, device: str) -> tuple[Weights, Weights]:
    gate_up = random_weights(point.format, point.experts, 2 * point.inter, point.hidden, seed=1, device=device)
    return gate_up, random_weights(point.format, point.experts, point.hidden, point.inter, seed=2, device=device)


def _inputs(point: LayerPoint, device: str) -> Iterator[tuple[Tensor, Tensor]]:
    """x and logits of so many calls that the experts of all of them overflow L2; each call's favourites are others."""
    import torch

    active = min(point.experts, point.tokens * point.topk)
    size = active * 3 * point.hidden * point.inter // 2
    count = min(max(2, -(-COLD_FACTOR * l2_bytes() // size)), MOST_INPUTS)
    generator = torch.Generator(device=device)
    generator.manual_seed(3)
    for index in range(count):
        x = torch.randn(point.tokens, point.hidden, generator=generator, device=device).to(torch.bfloat16)
        yield x, draw_logits(point, generator, shift=index * active % point.experts, device=device)


def draw_logits(point: LayerPoint, generator: Any, *, shift: int = 0, device: str = "cpu") -> Tensor:
    """Router logits f32 [T, E] whose top-k are routed as the point says; `shift` has other experts be the first.

    balanced: token t goes to experts t k .. t k + k - 1 modulo E. uniform: Gaussian. zipf:S: k different experts, each drawn by
    rank**-S among those that are left (Gumbel noise on the logarithm of the popularity).
    """
    import torch

    noise = torch.randn(point.tokens, point.experts, generator=generator, device=device)
    if point.routing == "uniform":
        return noise
    if point.routing == "balanced":
        first = torch.arange(point.tokens, device=device)[:, None] * point.topk + torch.arange(point.topk, device=device)
        return noise.clamp(-4, 4).scatter_add(1, (first + shift) % point.experts, torch.full(first.shape, 20.0, device=device))
    kind, _, exponent = point.routing.partition(":")
    if kind != "zipf":
        raise PerfModelError("cannot be drawn", field="routing", value=point.routing, mend="Use balanced, uniform or zipf:S.")
    rank = (torch.arange(point.experts, device=device) - shift) % point.experts + 1
    uniform = torch.rand(point.tokens, point.experts, generator=generator, device=device).clamp(1e-12, 1 - 1e-7)
    return -float(exponent) * rank.float().log() - torch.log(-torch.log(uniform))
