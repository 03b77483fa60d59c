"""The kernels for few tokens: their PTX run by the emulator and held against float64; what the assembler makes of them; and on a GPU."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")

from kernel_problems import BF16, BOUND, NO_CONFLICTS, Problem, ptx_of, random_weights

from perfmodel.kernels import decode, decode_ring, reference
from perfmodel.kernels.compile import compile_variant
from perfmodel.kernels.emulator import Machine
from perfmodel.kernels.emulator_hopper import HopperMachine
from perfmodel.kernels.emulator_program import Memory
from perfmodel.kernels.rounding import round_bf16
from perfmodel.kernels.weights import pack

VARIANTS = {variant.name: variant for variant in (*decode.VARIANTS, *decode_ring.VARIANTS)}
CONFIGS = {config.name.removeprefix("numba-decode-"): config for config in (*decode.CONFIGS, *decode_ring.CONFIGS)}
FORMATS = ("mxfp4-w4a16", "nvfp4-w4a16")


def emulate(problem, config, grid, lockstep=True):
    """The output; what is not written stays NaN."""
    module = decode if isinstance(config, decode.Config) else decode_ring
    weights = pack(problem.weights.fused() if config.epilogue == "swiglu" else problem.weights)
    shape = (len(problem.x), weights.n // 2 if config.epilogue == "swiglu" else weights.n)
    memory, (ptx, shared_bytes) = Memory(1 << 23), ptx_of("sm_90a", module.build, config)
    arrays = {
        "x": problem.x, "weights": weights.tiles, "alphas": weights.alpha, "offsets": problem.offsets.astype(np.int32),
        "x_rows": problem.x_rows.astype(np.int32), "out_rows": problem.out_rows.astype(np.int32),
        "factors": problem.factors.astype(np.float32),
    }  # fmt: skip
    experts, row_tiles = weights.tiles.shape[:2]
    given = {name: memory.place(array) for name, array in arrays.items()}
    given |= {"experts": experts, "n": weights.n, "k": weights.k, "row_tiles": row_tiles, "out": memory.room(2 * int(np.prod(shape)))}
    machine = (Machine if module is decode else HopperMachine)(ptx, memory)
    machine.launch(grid, config.threads, shared_bytes, [given[name] for name in decode.PARAMETERS], lockstep=lockstep)
    assert set(machine.conflicts.values()) <= NO_CONFLICTS
    return memory.read(given["out"], shape, BF16).astype(np.float64)


@pytest.mark.parametrize(
    ("name", "n", "k", "counts"),
    [
        ("mxfp4-w4a16-n8", 144, 320, (5, 0, 11)),
        ("nvfp4-w4a16-n8-scatter", 136, 144, (3, 8)),
        ("mxfp4-w4a16-n8-swiglu-gather", 272, 64, (1, 9)),
        ("mxfp4-w4a16-n16", 272, 320, (5, 0, 19)),
        ("nvfp4-w4a16-n16", 520, 144, (16, 1)),
        ("mxfp4-w4a16-n16-swiglu-gather", 272, 160, (2, 17)),
        ("nvfp4-w4a16-n16-scatter", 144, 656, (7, 16)),
    ],
)
def test_emulated(name, n, k, counts):
    """Empty experts, more tokens than a tile, N and K that end inside a tile, more stages than the ring has, more tiles than CTAs."""
    config = CONFIGS[name]
    problem = Problem.random(random_weights(config.format, len(counts), n, k), counts)
    tiles = sum(-(-count // config.columns) for count in counts) * -(-n // 128)
    got = emulate(problem, config, tiles if isinstance(config, decode.Config) else 2)
    assert not np.isnan(got).any()
    assert reference.relative_error(got, round_bf16(problem.wanted(config))) < BOUND[config.format]


@pytest.mark.parametrize("name", ["mxfp4-w4a16-n8", "nvfp4-w4a16-n8-scatter"])
def test_warps_may_run_in_any_order(name):
    """Each warp as far as its next barrier, the last first: a missing barrier shows as stale or unwritten data."""
    config, counts = CONFIGS[name], (5, 11)
    problem = Problem.random(random_weights(config.format, len(counts), 136, 320), counts)
    got = emulate(problem, config, 6, lockstep=False)
    assert reference.relative_error(got, round_bf16(problem.wanted(config))) < BOUND[config.format]


@pytest.mark.parametrize(("name", "registers"), [("mxfp4-w4a16-n8", 128), ("nvfp4-w4a16-n8", 128)])
def test_four_ctas_fit_an_sm(name, registers):
    made = compile_variant(VARIANTS[f"numba-decode-{name}"], "sm_90a")
    assert (made.registers <= registers, made.spill_bytes, made.warnings) == (True, 0, ())


@pytest.mark.gpu(only=(9, 0))
class TestGpu:
    """Beside test_kernels_grouped_gpu: K and N that end anywhere, few tiles of K, more experts than a warp has lanes."""

    @pytest.mark.parametrize("form", FORMATS)
    @pytest.mark.parametrize("columns", [8, 16])
    @pytest.mark.parametrize(
        ("n", "k", "counts"),
        [
            (136, 480, (0, 1, 40, 7)),
            (8, 32, (1,)),
            (264, 96, (0, 0, 17)),
            (128, 2880, (9, 0, 16)),
            (144, 160, tuple(i % 4 for i in range(70))),
        ],
    )
    def test_sizes(self, form, columns, n, k, counts):
        torch = pytest.importorskip("torch")
        from perfmodel.kernels.benchmark.contenders import Shape, draw_problem
        from perfmodel.kernels.grouped import GroupedGemm, pack
        from perfmodel.kernels.synthetic import random_weights
        from perfmodel.kernels.tiles import Tile

        weights = random_weights(form, len(counts), n, k, seed=5, device="cuda")
        problem = draw_problem(Shape(len(counts), n, k), counts)
        gemm = GroupedGemm(pack(weights), tile=Tile("decode", columns))
        assert gemm.name == f"numba-decode-{form}-n{columns}"
        out = torch.full((problem.tokens, n), float("nan"), dtype=torch.bfloat16, device="cuda")
        gemm.prepare(problem.x, problem.offsets, out)(torch.cuda.current_stream().cuda_stream)
        limit = 2e-3 if out.numel() > 100 else 2.0**-8  # few results: bf16 may round all of them as badly as it can
        assert reference.relative_error(out, reference.grouped_gemm(problem.x.double(), weights, problem.offsets)) < limit
