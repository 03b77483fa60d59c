"""The grouped GEMMs on wgmma against float64: in the emulator anywhere, on an H100 or H200 where there is one.

All on a GPU: pytest tests/test_kernels_wgmma.py -k gpu
"""

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")

from perfmodel.errors import PerfModelError
from perfmodel.kernels import quantise, reference, wgmma_w4a8, wgmma_w4a16
from perfmodel.kernels.compile import compile_variant, to_ptx
from perfmodel.kernels.emulator_hopper import HopperMachine, tensor_map
from perfmodel.kernels.emulator_program import Memory
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
class Case:
    """A grouped GEMM with random operands. Scales lie around 2**power."""

    config: object
    n: int
    k: int
    counts: tuple[int, ...]
    power: int = -5
    size: float = 1.0

    def __post_init__(self):
        rng = np.random.default_rng(3)
        experts, tokens = len(self.counts), sum(self.counts)
        shape = (experts, self.n, self.k)
        codes = rng.integers(0, 16, shape, dtype=np.uint8)
        if self.config.format == "nvfp4-w4a16":
            scales = rng.integers(0, 0x7F, (*shape[:2], self.k // 16), dtype=np.uint8)
            weights = Weights(self.config.format, codes, scales, rng.uniform(1e-4, 1e-3, experts).astype(np.float32))
        else:
            scales = (rng.integers(-4, 5, (*shape[:2], self.k // 32)) + 127 + self.power).astype(np.uint8)
            weights = Weights(self.config.format, codes, scales)
        x = (rng.standard_normal((tokens, self.k)) * self.size).astype(BF16)
        made = {
            "weights": weights,
            "x": x,
            "offsets": np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int32),
            "rows": rng.permutation(tokens).astype(np.int32),
            "factors": rng.uniform(0.1, 1, tokens).astype(np.float32),
            "token_scale": None,
        }
        if self.eight_bits:
            made["x"], made["token_scale"] = quantise.quantise_tokens(x)
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def eight_bits(self) -> bool:
        return self.config.format == "mxfp4-w4a8"

    @property
    def width(self) -> int:
        """Of a row of the output."""
        return self.n // 2 if self.config.epilogue == "swiglu" else self.n

    def packed(self):
        rows = self.weights.fused() if self.config.epilogue == "swiglu" else self.weights
        return wgmma_w4a8.pack(rows) if self.eight_bits else pack(rows)

    def expected(self) -> np.ndarray:
        """Float64, of the quantised activations where they are."""
        x = quantise.dequantise_tokens(self.x, self.token_scale) if self.eight_bits else self.x.astype(np.float64)
        if self.config.epilogue == "swiglu":
            return reference.grouped_gemm_swiglu(x, self.weights, self.offsets)
        if self.config.epilogue == "scatter":
            return reference.grouped_gemm_scatter(x, self.weights, self.offsets, self.rows, self.factors)
        return reference.grouped_gemm(x, self.weights, self.offsets)

    def arguments(self, place, x_map: int, out: int) -> list[int]:
        """In the order of `build`; `place` puts an array where the kernel can read it and gives its address."""
        packed = self.packed()
        scales = [packed.row_scale, self.token_scale] if self.eight_bits else [packed.alpha]
        pointers = [place(np.ascontiguousarray(array)) for array in (packed.tiles, *scales, self.offsets)]
        experts, row_tiles, k_tiles, _ = packed.tiles.shape
        return [x_map, *pointers, out, place(self.rows), place(self.factors), experts, self.n, k_tiles, row_tiles]

    def check(self, out: np.ndarray) -> None:
        """Compare an output of GUARD_ROWS more rows, which began as NaN."""
        tokens = sum(self.counts)
        assert np.isnan(out[tokens:].astype(np.float32)).all(), "written beyond the last row"
        found, wanted = out[:tokens].astype(np.float64), self.expected()
        assert np.isfinite(found).all(), "not written, or overflown"
        limit = 2e-3 if self.config.epilogue != "swiglu" and not self.eight_bits else 3e-3
        assert np.linalg.norm(found - wanted) <= limit * np.linalg.norm(wanted)


@cache
def emulated(name: str) -> tuple[str, int]:
    source = VARIANTS[name].build()
    return to_ptx(source, "sm_90a"), source.shared_bytes


def run_emulated(case: Case, grid: int = 2) -> np.ndarray:
    memory = Memory(1 << 24)
    shape = sum(case.counts) + GUARD_ROWS, case.width
    out = memory.room(shape[0] * shape[1] * 2)
    ptx, shared_bytes = emulated(case.config.name)
    arguments = case.arguments(memory.place, tensor_map(memory, case.x, case.config.columns), out)
    HopperMachine(ptx, memory).launch(grid, case.config.threads, shared_bytes, arguments)
    return memory.read(out, shape, BF16)


def names(*wanted: str) -> list[str]:
    """Names of variants without what they have in common."""
    assert all(f"numba-wgmma-{name}" in CONFIGS for name in wanted)
    return list(wanted)


class TestEmulated:
    """An odd number of K tiles whose last is partly there, a strip of rows that is not full, more tiles than CTAs, an empty expert."""

    @pytest.mark.parametrize(
        "name",
        names(
            "mxfp4-w4a8-n16", "mxfp4-w4a8-n64", "mxfp4-w4a8-n128", "mxfp4-w4a8-n256", "mxfp4-w4a8-n16-swiglu", "mxfp4-w4a8-n64-swiglu",
            "mxfp4-w4a8-n32-scatter", "mxfp4-w4a8-n256-scatter", "mxfp4-w4a16-n16", "mxfp4-w4a16-n128", "mxfp4-w4a16-n256-scatter",
            "nvfp4-w4a16-n32-swiglu",
        ),
    )  # fmt: skip
    def test_ragged(self, name):
        case = Case(CONFIGS[f"numba-wgmma-{name}"], n=160, k=352, counts=(5, 0, 37))
        case.check(run_emulated(case))

    @pytest.mark.parametrize("k", [32, 128, 256, 1504])
    def test_any_number_of_stages(self, k):
        """Less than a tile, one, two, and more than the ring has stages."""
        config = CONFIGS["numba-wgmma-mxfp4-w4a8-n16"]
        case = Case(config, n=16, k=k, counts=(3, 16, 1))
        case.check(run_emulated(case, grid=1))
        assert Plan(config).stages < 1504 / config.tile_k

    @pytest.mark.parametrize(("power", "size"), [(-122, 2.0**20), (120, 2.0**-20)])
    def test_scales_near_both_ends(self, power, size):
        case = Case(CONFIGS["numba-wgmma-mxfp4-w4a8-n16"], n=16, k=64, counts=(9,), power=power, size=size)
        case.check(run_emulated(case))

    def test_the_order_of_experts_is_nothing_to_a_row(self):
        """More experts than a warp has lanes."""
        case = Case(CONFIGS["numba-wgmma-mxfp4-w4a8-n16"], n=16, k=32, counts=tuple(i % 3 for i in range(70)))
        case.check(run_emulated(case, grid=3))


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
    @staticmethod
    @cache
    def loaded(name: str):
        from numba import cuda

        cuda.current_context()
        config, compiled = CONFIGS[name], compile_variant(VARIANTS[name], "sm_90a", count_sass=False)
        return load(compiled, config.threads, Plan(config).shared_bytes)

    def run(self, case: Case, grid: int = 132) -> np.ndarray:
        from numba import cuda

        kernel, held = self.loaded(case.config.name), []

        def place(array: np.ndarray) -> int:
            held.append(cuda.to_device(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
            return int(held[-1].device_ctypes_pointer.value)

        shape = sum(case.counts) + GUARD_ROWS, case.width
        out = place(np.full(shape, np.nan, BF16))
        target, size = held[-1], case.x.dtype.itemsize
        described = real_map(place(case.x), *case.x.shape, box=(case.config.columns, case.config.tile_k), element_bytes=size)
        arguments = case.arguments(place, place(np.frombuffer(described, np.uint8)), out)
        kinds = ["u64"] * (len(arguments) - 4) + ["u32"] * 4
        Launch(kernel, (grid, 1), list(zip(kinds, arguments, strict=True)))()
        cuda.synchronize()
        return target.copy_to_host().view(BF16).reshape(shape)

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
        case = Case(CONFIGS[name], n, k, counts)
        case.check(self.run(case))

    @pytest.mark.parametrize("name", [name for name in VARIANTS if "mxfp4" in name and "swiglu" not in name])
    @pytest.mark.parametrize(("power", "size"), [(-122, 2.0**20), (120, 2.0**-20)], ids=["low", "high"])
    def test_scales_near_both_ends(self, name, power, size):
        case = Case(CONFIGS[name], 128, 192, (9, 40), power, size)
        case.check(self.run(case))

    @pytest.mark.parametrize("name", [name for name in VARIANTS if "n256" in name or "n16" in name])
    @pytest.mark.parametrize("grid", [1, 7, 1000])
    def test_any_grid(self, name, grid):
        case = Case(CONFIGS[name], 384, 640, (70, 0, 300))
        case.check(self.run(case, grid))
