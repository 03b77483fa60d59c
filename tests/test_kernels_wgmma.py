"""The grouped GEMMs on wgmma against float64: in the emulator anywhere, on an H100 or H200 where there is one.

All on a GPU: pytest tests/test_kernels_wgmma.py -k gpu
"""

import os
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")

from perfmodel.errors import PerfModelError
from perfmodel.kernels import cubins, quantise, reference, wgmma_w4a8, wgmma_w4a16
from perfmodel.kernels.compile import compile_variant, to_ptx
from perfmodel.kernels.emulator_hopper import HopperMachine, tensor_map
from perfmodel.kernels.emulator_program import EmulationError, Memory
from perfmodel.kernels.launch import Launch, load
from perfmodel.kernels.launch import tensor_map as real_map
from perfmodel.kernels.layouts_w4a8 import pack_mxfp4_w4a8
from perfmodel.kernels.schedule import MAX_EXPERTS
from perfmodel.kernels.weights import Weights, pack
from perfmodel.kernels.wgmma_config import Plan

BF16 = ml_dtypes.bfloat16
CONFIGS = {config.name: config for config in wgmma_w4a16.CONFIGS + wgmma_w4a8.CONFIGS}
VARIANTS = {variant.name: variant for variant in wgmma_w4a16.VARIANTS + wgmma_w4a8.VARIANTS}
GUARD_ROWS = 3
"""Rows of the output behind the last that a kernel may write."""


@dataclass(frozen=True)
class Operands:
    """Random operands of a grouped GEMM. Scales lie around 2**power."""

    weights: Weights
    x: np.ndarray
    token_scale: np.ndarray | None
    offsets: np.ndarray
    rows: np.ndarray
    factors: np.ndarray


@dataclass(frozen=True)
class Case:
    """A grouped GEMM in a format with an epilogue, whatever the tile."""

    format: str
    epilogue: str
    n: int
    k: int
    counts: tuple[int, ...]
    power: int = -5
    size: float = 1.0

    @classmethod
    def of(cls, name: str, *choices) -> "Case":
        return cls(CONFIGS[name].format, CONFIGS[name].epilogue, *choices)

    @property
    def eight_bits(self) -> bool:
        return self.format == "mxfp4-w4a8"

    @property
    def out_shape(self) -> tuple[int, int]:
        """With GUARD_ROWS more rows."""
        return sum(self.counts) + GUARD_ROWS, self.n // 2 if self.epilogue == "swiglu" else self.n

    def arguments(self, place, x_map: int, out: int) -> list[int]:
        """In the order of `build`; `place` puts an array where the kernel can read it and gives its address."""
        given, weights = operands(self), packed(self)
        scales = [weights.row_scale, given.token_scale] if self.eight_bits else [weights.alpha]
        pointers = [place(np.ascontiguousarray(array)) for array in (weights.tiles, *scales, given.offsets)]
        experts, row_tiles, k_tiles, _ = weights.tiles.shape
        return [x_map, *pointers, out, place(given.rows), place(given.factors), experts, self.n, k_tiles, row_tiles]

    def check(self, out: np.ndarray) -> None:
        """Compare an output, which began as NaN."""
        tokens = sum(self.counts)
        assert np.isnan(out[tokens:].astype(np.float32)).all(), "written beyond the last row"
        found, wanted = out[:tokens].astype(np.float64), expected(self)
        assert np.isfinite(found).all(), "not written, or overflown"
        limit = 2e-3 if self.epilogue != "swiglu" and not self.eight_bits else 3e-3
        if self.eight_bits and self.epilogue == "swiglu":
            limit = 3.5e-3  # Hopper adds up E4M3 products in fewer bits than FP32; over K = 7168, gate and up together are 3.13e-3 off
        limit = limit if found.size > 100 else 2.0**-8  # few results: bf16 may round all of them as badly as it can
        assert np.linalg.norm(found - wanted) <= limit * np.linalg.norm(wanted)


@cache
def operands(case: Case) -> Operands:
    rng = np.random.default_rng(3)
    experts, tokens = len(case.counts), sum(case.counts)
    codes = rng.integers(0, 16, (experts, case.n, case.k), dtype=np.uint8)
    if case.format == "nvfp4-w4a16":
        scales = rng.integers(0, 0x7F, (experts, case.n, case.k // 16), dtype=np.uint8)
        weights = Weights(case.format, codes, scales, rng.uniform(1e-4, 1e-3, experts).astype(np.float32))
    else:
        scales = rng.integers(-4, 5, (experts, case.n, case.k // 32)) + 127 + case.power
        weights = Weights(case.format, codes, scales.astype(np.uint8))
    x, token_scale = (rng.standard_normal((tokens, case.k)) * case.size).astype(BF16), None
    if case.eight_bits:
        x, token_scale = quantise.quantise_tokens(x)
    offsets = np.concatenate([[0], np.cumsum(case.counts)]).astype(np.int32)
    rows, factors = rng.permutation(tokens).astype(np.int32), rng.uniform(0.1, 1, tokens).astype(np.float32)
    return Operands(weights, x, token_scale, offsets, rows, factors)


@cache
def packed(case: Case):
    weights = operands(case).weights
    weights = weights.fused() if case.epilogue == "swiglu" else weights
    return wgmma_w4a8.pack(weights) if case.eight_bits else pack(weights)


@cache
def expected(case: Case) -> np.ndarray:
    """Float64, of the quantised activations where they are."""
    given = operands(case)
    x = quantise.dequantise_tokens(given.x, given.token_scale) if case.eight_bits else given.x.astype(np.float64)
    if case.epilogue == "swiglu":
        return reference.grouped_gemm_swiglu(x, given.weights, given.offsets)
    if case.epilogue == "scatter":
        return reference.grouped_gemm_scatter(x, given.weights, given.offsets, given.rows, given.factors)
    return reference.grouped_gemm(x, given.weights, given.offsets)


@cache
def emulated(name: str) -> tuple[str, int]:
    source = VARIANTS[name].build()
    return to_ptx(source, "sm_90a"), source.shared_bytes


def check_emulated(name: str, *choices, grid: int = 2, mistake: tuple[str, str] | None = None) -> None:
    """Run a variant on `Case.of(name, *choices)` and compare; mistake: text of its PTX and what stands there instead."""
    case, config, memory = Case.of(name, *choices), CONFIGS[name], Memory(1 << 24)
    out = memory.room(case.out_shape[0] * case.out_shape[1] * 2)
    ptx, shared_bytes = emulated(name)
    arguments = case.arguments(memory.place, tensor_map(memory, operands(case).x, config.columns), out)
    HopperMachine(ptx.replace(*mistake) if mistake else ptx, memory).launch(grid, config.threads, shared_bytes, arguments)
    case.check(memory.read(out, case.out_shape, BF16))


class TestEmulated:
    """An odd number of K tiles whose last is partly there, a strip of rows that is not full, more tiles than CTAs, an empty expert."""

    @pytest.mark.parametrize(
        "name",
        [
            "mxfp4-w4a8-n16", "mxfp4-w4a8-n64", "mxfp4-w4a8-n128", "mxfp4-w4a8-n256", "mxfp4-w4a8-n16-swiglu", "mxfp4-w4a8-n64-swiglu",
            "mxfp4-w4a8-n32-scatter", "mxfp4-w4a8-n256-scatter", "mxfp4-w4a16-n16", "mxfp4-w4a16-n128", "mxfp4-w4a16-n256-scatter",
            "nvfp4-w4a16-n32-swiglu",
        ],
    )  # fmt: skip
    def test_ragged(self, name):
        check_emulated(f"numba-wgmma-{name}", 160, 352, (5, 0, 37))

    SMALLEST = "numba-wgmma-mxfp4-w4a8-n16"

    @pytest.mark.parametrize("k", [32, 128, 256, 1504])
    def test_any_number_of_stages(self, k):
        """Less than a tile, one, two, and more than the ring has stages."""
        check_emulated(self.SMALLEST, 16, k, (3, 16, 1), grid=1)
        assert Plan(CONFIGS[self.SMALLEST]).stages < 1504 / CONFIGS[self.SMALLEST].tile_k

    @pytest.mark.parametrize(("power", "size"), [(-122, 2.0**20), (120, 2.0**-20)])
    def test_scales_near_both_ends(self, power, size):
        check_emulated(self.SMALLEST, 16, 64, (9,), power, size)

    def test_more_experts_than_a_warp_has_lanes(self):
        check_emulated(self.SMALLEST, 16, 32, tuple(i % 3 for i in range(70)), grid=3)

    @pytest.mark.parametrize(
        ("mistake", "message"),
        [
            (("wait_group.sync.aligned 1;", "wait_group.sync.aligned 2;"), "what a running wgmma reads"),
            (("mbarrier.arrive.shared", "fence.shared"), "all threads wait"),
        ],
        ids=["a stage given back too early", "a stage never given back"],
    )
    def test_mistakes_are_found(self, mistake, message):
        """By the emulator: without a GPU it is all that would."""
        with pytest.raises(EmulationError, match=message):
            check_emulated(self.SMALLEST, 16, 1504, (3,), grid=1, mistake=mistake)


class TestCompiled:
    """What the speed rests on, seen in the machine code. `perfmodel kernels check` compiles all variants."""

    @pytest.mark.parametrize(
        ("name", "registers", "kind"),
        [
            ("mxfp4-w4a16-n256-scatter", 168, "HGMMA"),
            ("nvfp4-w4a16-n128", 96, "HGMMA"),
            ("mxfp4-w4a8-n256", 168, "QGMMA"),
            ("mxfp4-w4a8-n64", 96, "QGMMA"),
        ],
    )
    def test_registers_suffice_and_multiplications_overlap(self, name, registers, kind):
        made = compile_variant(VARIANTS[f"numba-wgmma-{name}"], "sm_90a")
        assert (made.registers, made.spill_bytes, made.warnings) == (registers, 0, ())
        if made.sass is not None:
            loops = 3 if CONFIGS[f"numba-wgmma-{name}"].ahead else 1
            assert made.sass[kind] == 4 * loops

    @pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
    def test_every_ring_has_stages_enough(self, config):
        assert Plan(config).stages >= 4
        assert Plan(config).shared_bytes <= 227 * 1024


class TestRefused:
    """Weights that the W4A8 kernel would multiply wrongly."""

    def weights(self, spread):
        codes = np.ones((1, 128, 64), np.uint8)
        scales = np.full((1, 128, 2), 120, np.uint8)
        scales[0, 7, 1] -= spread
        return Weights("mxfp4-w4a8", codes, scales)

    def test_twelve_binades_fit(self):
        assert wgmma_w4a8.pack(self.weights(11)).rest is None

    def test_a_wider_spread_names_the_other_kernel(self):
        with pytest.raises(PerfModelError, match="W4A16"):
            wgmma_w4a8.pack(self.weights(12))

    def test_tiles_for_other_tables(self):
        weights = self.weights(1)
        with pytest.raises(PerfModelError, match=r"binades.*got 15"):
            wgmma_w4a8.check_weights(pack(weights))
        with pytest.raises(PerfModelError, match=r"rows.*got 64"):
            wgmma_w4a8.check_weights(pack_mxfp4_w4a8(weights.codes, weights.scales, 64, 12))


@pytest.mark.gpu(only=(9, 0))
class TestGpu:
    @pytest.fixture(scope="class", autouse=True)
    def compiled(self):
        """All at once, in processes: one after the other they take minutes."""
        cubins.compile_all([(variant, "sm_90a") for variant in VARIANTS.values()], jobs=os.cpu_count() or 1)

    @staticmethod
    @cache
    def loaded(name: str):
        from numba import cuda

        cuda.current_context()
        made = cubins.compile_cached(VARIANTS[name], "sm_90a")
        return load(made.compiled, made.threads, made.shared_bytes)

    def run(self, name: str, *choices, grid: int = 132) -> None:
        """Run a variant on `Case.of(name, *choices)` and compare."""
        from numba import cuda

        case, config, held = Case.of(name, *choices), CONFIGS[name], []

        def place(array: np.ndarray) -> int:
            held.append(cuda.to_device(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
            return int(held[-1].device_ctypes_pointer.value)

        kernel, x = self.loaded(name), operands(case).x
        out = place(np.full(case.out_shape, np.nan, BF16))
        target = held[-1]
        described = real_map(place(x), *x.shape, box=(config.columns, config.tile_k), element_bytes=x.dtype.itemsize)
        arguments = case.arguments(place, place(np.frombuffer(described, np.uint8)), out)
        kinds = ["u64"] * (len(arguments) - 4) + ["u32"] * 4
        Launch(kernel, (grid, 1), list(zip(kinds, arguments, strict=True)))()
        cuda.synchronize()
        case.check(target.copy_to_host().view(BF16).reshape(case.out_shape))

    @pytest.mark.parametrize("name", VARIANTS)
    @pytest.mark.parametrize(
        ("n", "k", "counts"),
        [
            (544, 2880, (0, 3, 300, 64, 1)),
            (256, 96, (0, 0, 17)),
            (128, 7168, (1000, 0, 5, 129)),
            (16, 32, (1,)),
            (272, 256, (0, 10_000, 0)),
            (64, 128, tuple(i % 5 for i in range(MAX_EXPERTS))),
        ],
        ids=["odd K", "few", "long K", "least", "all on one", "many experts"],
    )
    def test_ragged(self, name, n, k, counts):
        self.run(name, n, k, counts)

    @pytest.mark.parametrize("name", [name for name in VARIANTS if "mxfp4" in name and "swiglu" not in name])
    @pytest.mark.parametrize(("power", "size"), [(-122, 2.0**20), (120, 2.0**-20)], ids=["low", "high"])
    def test_scales_near_both_ends(self, name, power, size):
        self.run(name, 128, 192, (9, 40), power, size)

    @pytest.mark.parametrize("name", [name for name in VARIANTS if "n256" in name or "n16" in name])
    @pytest.mark.parametrize("grid", [1, 7, 1000])
    def test_any_grid(self, name, grid):
        self.run(name, 384, 640, (70, 0, 300), grid=grid)
