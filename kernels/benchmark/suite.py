"""The suites of `perfmodel kernels bench`: ceilings, then contenders problem by problem, then the whole layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.kernels import cubins, quantise, routing, stream, tiles, timing
from perfmodel.kernels.benchmark import contenders as make
from perfmodel.kernels.benchmark.ceilings import ceilings
from perfmodel.kernels.benchmark.contenders import Contender, Problem, Shape
from perfmodel.kernels.benchmark.device import l2_bytes, provenance, require_gpu
from perfmodel.kernels.benchmark.whole_layer import layer_variants, measure_layer
from perfmodel.kernels.clocks import Sensor, sensor_of
from perfmodel.kernels.grouped import Packed, pack
from perfmodel.kernels.synthetic import BLOCK, random_weights
from perfmodel.kernels.tiles import Tile
from perfmodel.kernels.variants import Variant
from perfmodel.kernels.weights import FORMATS, Weights

if TYPE_CHECKING:
    from torch import Tensor

Note = Callable[[str], None]
LEAST_FP8_TOKENS = 512
"""Tokens per expert from which on 8-bit activations are worth a comparison."""
COLD_FACTOR = 4
"""Copies of the weights together hold this many times L2."""


@dataclass(frozen=True)
class Suite:
    """What is measured."""

    shapes: tuple[Shape, ...]
    tokens: tuple[int, ...]
    """Of each expert."""
    formats: tuple[str, ...]
    all_tiles: bool = False
    """Every tile that suits, not just the one of the table."""
    hold_s: tuple[float, ...] = (timing.HOLD_S,)


FIRST = Shape(16, 4096, 7168)
FP4 = ("mxfp4-w4a16", "nvfp4-w4a16", "mxfp4-w4a8")
SUITES = {
    "quick": Suite((FIRST,), (1, 16, 64, 128, 512, 2048), FP4),
    "full": Suite(
        (FIRST, Shape(32, 5760, 2880), Shape(16, 7168, 2048)),
        (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048),
        (*FP4, "int4-w4a16", "nf4-w4a16"),
        all_tiles=True,
        hold_s=(timing.HOLD_S, 1.5),
    ),
}


def get_suite(name: str) -> Suite:
    """A suite by name. Raises PerfModelError for an unknown one."""
    if name not in SUITES:
        raise PerfModelError("no such suite", field="--suite", value=name, mend=did_you_mean(name, SUITES))
    return SUITES[name]


def narrow(
    suite: Suite,
    *,
    shape: str | None = None,
    tokens: str | None = None,
    formats: Sequence[str] = (),
    all_tiles: bool | None = None,
    hold_s: float | None = None,
) -> Suite:
    """A suite with only this shape, these tokens per expert (`1,64`) and formats, and other choices; None leaves it as it is.

    Raises PerfModelError for what cannot be read.
    """
    for form in formats:
        if form not in FORMATS:
            raise PerfModelError("no kernel takes this format", field="--format", value=form, mend=did_you_mean(form, FORMATS))
    return replace(
        suite,
        shapes=suite.shapes if shape is None else (Shape(*make.parse_sizes(shape, ("experts", "n", "k"))),),
        tokens=suite.tokens if tokens is None else _counts(tokens),
        formats=tuple(formats) or suite.formats,
        all_tiles=suite.all_tiles if all_tiles is None else all_tiles,
        hold_s=suite.hold_s if hold_s is None else (hold_s,),
    )


def _counts(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    return tuple(make.parse_size(part, "each", "--tokens") for part in parts)


def run(suite: Suite, *, jobs: int, note: Note = lambda text: None) -> dict[str, Any]:
    """Measure a suite on the current GPU: `device`, `ceilings`, `rows`, `layer` and `provenance`, ready for JSON.

    jobs: processes that compile first. Raises MissingRequirementError without a GPU or torch.
    """
    require_gpu()
    import torch

    device = torch.cuda.current_device()
    arch, sensor = cubins.architecture_of(torch.cuda.get_device_capability(device)), sensor_of(device)
    wanted = [variant for variant in needed(suite, arch) if arch in variant.archs]
    cubins.compile_all([(variant, arch) for variant in wanted], jobs=jobs, done=lambda name: note(f"compiled {name}"))
    about = provenance()
    measured = ceilings(int(make.stored_bytes(suite.shapes[0], suite.formats[0])) // 16 * 16, sensor)
    note(", ".join(f"{name} {value:.4g}" for name, value in measured.items() if value is not None))
    rows = []
    for row in _rows(suite, arch, sensor):
        note(f"{row['kernel']} {row['tokens_per_expert']} tokens: {row['us']:.2f} us, error {_error(row)}")
        rows.append(row)
    layer = measure_layer(sensor)
    note(f"layer: {layer['us']:.1f} us, error {_error(layer)}")
    return {"device": about["device"], "ceilings": measured, "rows": rows, "layer": layer, "provenance": about}


def _error(row: Mapping[str, Any]) -> str:
    return "NaN" if row["rel_err"] is None else f"{row['rel_err']:.1e}"


def needed(suite: Suite, arch: str) -> list[Variant]:
    """The kernels that a suite runs."""
    found = [quantise.VARIANTS[0], *stream.VARIANTS, *routing.VARIANTS, *layer_variants(arch)]
    for form in suite.formats:
        menu = {choice.tile: choice.variant for choice in tiles.menu(form, "plain", arch)}
        found += [menu[tile] for tokens in suite.tokens for tile in tiles_to_try(suite, form, tokens, arch) if tile in menu]
    return list(dict.fromkeys(found))


def tiles_to_try(suite: Suite, form: str, tokens: int, arch: str) -> list[Tile]:
    """The table's tile for this many tokens per expert; with all_tiles the others that waste no more than half of a tile, too."""
    menu = tiles.menu(form, "plain", arch)
    if not menu or (form.endswith("w4a8") and tokens < LEAST_FP8_TOKENS):
        return []
    pick = tiles.nearest(menu, tiles.tile_for(tokens, arch)).tile
    fitting = [choice.tile for choice in menu if choice.columns <= max(2 * tokens, 16) and choice.columns * 8 >= min(tokens, 512)]
    return sorted({pick, *(fitting if suite.all_tiles else ())})


@dataclass(eq=False)
class Stock:
    """Weights of a shape and format, made when they are first needed, and enough packed copies to be found in DRAM each time."""

    shape: Shape
    form: str

    @cached_property
    def weights(self) -> Weights:
        """As a checkpoint has them."""
        return random_weights(self.form, self.shape.experts, self.shape.n, self.shape.k, device="cuda")

    @cached_property
    def packed(self) -> tuple[Packed, ...]:
        """For our kernels."""
        packed = pack(self.weights)
        return make.copies(packed, copies_for(packed.tiles.numel()))


@dataclass(eq=False)
class DenseStock:
    """The same weights for torch's kernels."""

    weights: Weights

    @cached_property
    def bf16(self) -> list[Tensor]:
        """[E, N, K], and copies."""
        dense = make.torch_bf16_weights(self.weights)
        return [dense, *(dense.clone() for _ in range(copies_for(2 * dense.numel()) - 1))]

    @cached_property
    def fp8(self) -> tuple[list[Tensor], Tensor]:
        """[E, N, K] and copies, and scales [E, N]."""
        dense, scales = make.torch_fp8_weights(self.bf16[0])
        return [dense, *(dense.clone() for _ in range(copies_for(dense.numel()) - 1))], scales


def copies_for(size: int) -> int:
    """How many copies of so many bytes are `COLD_FACTOR` times as large as L2, two at least."""
    return max(2, -(-COLD_FACTOR * l2_bytes() // size))


def _rows(suite: Suite, arch: str, sensor: Sensor) -> Iterator[dict[str, Any]]:
    import torch

    for shape in suite.shapes:
        stocks = [Stock(shape, form) for form in suite.formats if shape.k % BLOCK[form] == 0]
        dense = DenseStock(stocks[0].weights)
        for tokens in suite.tokens:
            problem = make.draw_problem(shape, [tokens] * shape.experts, seed=tokens)
            there = [make.ours(problem, s.weights, s.packed, tile) for s in stocks for tile in tiles_to_try(suite, s.form, tokens, arch)]
            there += _of_torch(problem, dense, tokens)
            for hold_s in suite.hold_s if tokens >= LEAST_FP8_TOKENS else suite.hold_s[:1]:
                yield from measure_problem(problem, there, tokens, hold_s, sensor)
            del problem, there
            torch.cuda.empty_cache()
        del stocks, dense
        torch.cuda.empty_cache()


def _of_torch(problem: Problem, dense: DenseStock, tokens: int) -> list[Contender]:
    """torch's kernels for this GPU."""
    import torch

    if torch.cuda.get_device_capability() != (9, 0):  # grouped GEMMs of torch are for Hopper
        return []
    found = [make.torch_grouped_mm(problem, dense.bf16)]
    if tokens >= LEAST_FP8_TOKENS:
        found.append(make.torch_scaled_grouped_mm(problem, *dense.fp8))
    return found


def measure_problem(
    problem: Problem, contenders: Sequence[Contender], tokens: int, hold_s: float, sensor: Sensor
) -> Iterator[dict[str, Any]]:
    """A row for each contender, timed in turn. Outputs are poisoned first, and checked as the timing left them."""
    names = {f"{contender.kernel} {contender.format}": contender for contender in contenders}
    replays = {name: timing.capture(contender.calls) for name, contender in names.items()}
    for contender in contenders:
        contender.out().fill_(float("nan"))
    times = timing.measure(replays, hold_s=hold_s, sensor=sensor)
    shape = problem.shape
    for name, contender in names.items():
        time, (error, nan) = times[name], make.errors(problem, contender)
        yield {
            "kernel": contender.kernel, "ours": contender.ours, "math": contender.math, "format": contender.format,
            "experts": shape.experts, "n": shape.n, "k": shape.k, "tokens_per_expert": tokens, "us": time.us,
            "tflops": 2 * problem.tokens * shape.n * shape.k / time.us / 1e6, "weight_TBps": contender.weight_bytes / time.us / 1e6,
            "rel_err": error if error == error else None, "nan": nan, "sm_MHz": time.sm_MHz, "power_W": time.power_W,
            "hold_s": hold_s, "us_low": time.us_low, "us_high": time.us_high, "burst_us": time.burst_us,
        }  # fmt: skip
