"""The mma.sync kernel, its PTX run by the emulator on small shapes and held against float64; and what the assembler makes of it."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")

from kernel_problems import BF16, BOUND, NO_CONFLICTS, Problem, ptx_of, random_weights

from perfmodel.formats.format import Scheme
from perfmodel.kernels import reference
from perfmodel.kernels.compile import compile_variant
from perfmodel.kernels.emulator import Machine
from perfmodel.kernels.emulator_program import Memory
from perfmodel.kernels.mma_tile import matrix_lane
from perfmodel.kernels.mma_w4a16 import CONFIGS, PARAMETERS, VARIANTS, Config, build
from perfmodel.kernels.rounding import round_bf16
from perfmodel.kernels.weights import Weights, pack

BY_NAME = {config.name.removeprefix("numba-mma-"): config for config in CONFIGS}


def emulate(problem, config, *, grid=3, lockstep=True, arch="sm_80"):
    """(output of the kernel, the machine that ran it); what is not written stays NaN."""
    weights = pack(problem.weights.fused() if config.epilogue == "swiglu" else problem.weights)
    shape = (len(problem.x), weights.n // 2 if config.epilogue == "swiglu" else weights.n)
    memory, (ptx, shared_bytes) = Memory(1 << 23), ptx_of(arch, build, config)
    arrays = {
        "x": problem.x, "weights": weights.tiles, "group_scales": weights.group_scales, "alphas": weights.alpha,
        "offsets": problem.offsets.astype(np.int32), "x_rows": problem.x_rows.astype(np.int32),
        "out_rows": problem.out_rows.astype(np.int32), "factors": problem.factors.astype(np.float32),
    }  # fmt: skip
    if weights.rest is not None:
        arrays |= {"rest_tiles": weights.rest.tiles, "rest_start": weights.rest.start, "rest_k_tile": weights.rest.k_tile}
    experts, row_tiles = weights.tiles.shape[:2]
    numbers = {"experts": experts, "n": weights.n, "k": weights.k, "row_tiles": row_tiles, "group_shift": weights.group_shift}
    given = {name: memory.place(array) for name, array in arrays.items() if array is not None} | numbers
    given["out"] = memory.room(2 * int(np.prod(shape)))
    machine = Machine(ptx, memory)
    machine.launch(grid, config.threads, shared_bytes, [given.get(name, 0) for name in PARAMETERS], lockstep=lockstep)
    return memory.read(given["out"], shape, BF16).astype(np.float64), machine


def check(problem, config, **how):
    """The output, once it is what float64 gives, rounded to bf16; and without bank conflicts."""
    got, machine = emulate(problem, config, **how)
    assert not np.isnan(got).any()
    assert reference.relative_error(got, round_bf16(problem.wanted(config))) < BOUND[config.format]
    assert set(machine.conflicts.values()) <= NO_CONFLICTS
    return got


EVERY_PATH = [
    "mxfp4-w4a16-n8", "mxfp4-w4a16-n16-swiglu-gather", "mxfp4-w4a16-n32-scatter", "mxfp4-w4a16-n128", "nvfp4-w4a16-n8-scatter",
    "nvfp4-w4a16-n64-swiglu-gather", "int4-w4a16-n8-swiglu-gather", "int4-w4a16-n32", "int4-w4a16-n128-scatter", "nf4-w4a16-n16-scatter",
    "nf4-w4a16-n64",
]  # fmt: skip


@pytest.mark.parametrize("name", EVERY_PATH)
def test_ragged_experts(name):
    """An empty expert, one with less than a tile, one with more; N and K end inside a tile."""
    config = BY_NAME[name]
    k = 384 if config.format == "int4-w4a16" else 320
    check(Problem.random(random_weights(config.format, 3, 144, k), (5, 0, config.columns + 3)), config)


@pytest.mark.parametrize("counts", [(0, 1), (21, 0), (0, 0, 0, 9), (8, 8), (1, 1, 1, 1, 1, 1)])
def test_token_counts(counts):
    check(Problem.random(random_weights("mxfp4-w4a16", len(counts), 16, 64), counts), BY_NAME["mxfp4-w4a16-n8"])


@pytest.mark.parametrize(
    ("form", "k"),
    [("mxfp4-w4a16", 32), ("mxfp4-w4a16", 160), ("mxfp4-w4a16", 704), ("nvfp4-w4a16", 16), ("nvfp4-w4a16", 144), ("nf4-w4a16", 64)],
)
@pytest.mark.parametrize("columns", [8, 64])
def test_every_multiple_of_the_block(form, k, columns):
    """Fewer tiles of K than stages, odd numbers of tiles, K that ends inside a tile."""
    check(Problem.random(random_weights(form, 2, 136, k), (3, 6)), BY_NAME[f"{form}-n{columns}"])


@pytest.mark.parametrize("n", [8, 120, 128, 264])
def test_every_multiple_of_eight_rows(n):
    check(Problem.random(random_weights("nvfp4-w4a16", 2, n, 64), (3, 6)), BY_NAME["nvfp4-w4a16-n16"])


@pytest.mark.parametrize("grid", [1, 2, 40])
def test_any_grid(grid):
    problem = Problem.random(random_weights("mxfp4-w4a16", 2, 256, 64), (20, 9))
    config = BY_NAME["mxfp4-w4a16-n8"]
    assert np.array_equal(check(problem, config, grid=grid), check(problem, config, grid=5))


@pytest.mark.parametrize("name", ["mxfp4-w4a16-n8", "nvfp4-w4a16-n64", "mxfp4-w4a16-n16-scatter", "int4-w4a16-n32"])
def test_warps_may_run_in_any_order(name):
    """Each warp as far as its next barrier, the last first: a missing barrier shows as stale or unwritten data."""
    config = BY_NAME[name]
    problem = Problem.random(random_weights(config.format, 2, 128, 384), (config.columns + 1, 2))
    assert np.array_equal(check(problem, config, lockstep=False), check(problem, config))


@pytest.mark.parametrize("group", [32, 64, 128, 192])
def test_int4_groups_with_zero_points(group):
    scheme = Scheme(element="int4", per="group", block=(1, group), scale="fp16", zero_point=True)
    name = "int4-w4a16-n16-g32" if group == 32 else "int4-w4a16-n16"
    problem = Problem.random(random_weights("int4-w4a16", 2, 32, 1152, scheme), (3, 2))
    assert problem.weights.zeros is not None
    check(problem, BY_NAME[name])


def test_short_groups_that_end_inside_a_tile():
    scheme = Scheme(element="int4", per="group", block=(1, 32), scale="bf16")
    check(Problem.random(random_weights("int4-w4a16", 2, 16, 224, scheme), (3, 2)), BY_NAME["int4-w4a16-n64-g32"])


class TestScales:
    def test_every_e8m0_byte(self):
        """Rows of one byte each, 1 to 133: no row may lose anything, however far below the largest it lies."""
        codes = np.random.default_rng(0).integers(0, 16, (1, 136, 64), np.uint8)
        scales = np.minimum(np.arange(1, 137), 133).astype(np.uint8)[None, :, None].repeat(2, 2)
        problem = Problem.random(Weights("mxfp4-w4a16", codes, scales), (8,))
        problem.x = problem.x * BF16(2.0**60)
        got, wanted = check(problem, BY_NAME["mxfp4-w4a16-n8"]), problem.wanted(BY_NAME["mxfp4-w4a16-n8"])
        large = np.abs(wanted) > 2.0**-126  # smaller results are subnormal in bf16 too
        assert (np.abs(got - wanted)[large] <= 2.0**-8 * np.abs(wanted)[large]).mean() > 0.98  # sums that cancel lose more
        assert large.mean() > 0.9

    @pytest.mark.parametrize("epilogue", ["", "-swiglu-gather", "-scatter"])
    def test_a_rest(self, epilogue):
        """Bytes 0 to 254 in one expert; tokens are zero where scales are large, so that the rest is all that counts."""
        source = np.random.default_rng(2)
        codes = source.integers(0, 16, (2, 32, 192), np.uint8)
        scales = source.integers(100, 110, (2, 32, 6), np.uint8)
        scales[1, :, :2] = 254
        problem = Problem.random(Weights("mxfp4-w4a16", codes, scales), (3, 5))
        problem.x[:, :64] = 0
        assert pack(problem.weights).rest is not None
        check(problem, BY_NAME[f"mxfp4-w4a16-n16{epilogue}-rest"])

    def test_no_rest_where_one_is_allowed(self):
        problem = Problem.random(random_weights("mxfp4-w4a16", 2, 32, 64), (3, 5))
        config = replace(BY_NAME["mxfp4-w4a16-n16-rest"], rest=False)
        check(problem, config)

    def test_zero_and_extreme_e4m3_scales(self):
        source = np.random.default_rng(3)
        codes, scales = source.integers(0, 16, (2, 16, 64), np.uint8), source.choice(np.array([0, 1, 7, 8, 0x7E], np.uint8), (2, 16, 4))
        weights = Weights("nvfp4-w4a16", codes, scales, np.array([1e-30, 1e30], np.float32))
        check(Problem.random(weights, (3, 0)), BY_NAME["nvfp4-w4a16-n8"])
        check(Problem.random(weights, (0, 3)), BY_NAME["nvfp4-w4a16-n8"])


def test_tokens_beyond_the_last_are_not_read():
    """Rows of x after an expert's last token hold NaN; they are another expert's, or nobody's."""
    problem = Problem.random(random_weights("mxfp4-w4a16", 2, 32, 64), (3, 5))
    problem.x[3:] = np.nan
    got, _ = emulate(problem, BY_NAME["mxfp4-w4a16-n16"])
    assert not np.isnan(got[:3]).any()
    assert np.isnan(got[3:]).all()


def test_huge_gates():
    """silu of a gate far below zero is 0, also where exp overflows; far above, the gate."""
    codes = np.full((1, 16, 32), 7, np.uint8)
    problem = Problem.random(Weights("mxfp4-w4a16", codes, np.full((1, 16, 1), 127, np.uint8)), (2,))
    problem.x[0], problem.x[1] = -3, 3
    got, _ = emulate(problem, BY_NAME["mxfp4-w4a16-n8-swiglu-gather"])
    rows = problem.wanted(BY_NAME["mxfp4-w4a16-n8-swiglu-gather"])
    assert np.allclose(got, rows, rtol=2**-8, atol=1e-30)
    assert sorted(np.unique(got)) == [0.0, np.float64(BF16(576.0**2))]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_other_architectures_compute_the_same(arch):
    problem = Problem.random(random_weights("nvfp4-w4a16", 2, 144, 320), (5, 11))
    config = BY_NAME["nvfp4-w4a16-n8"]
    assert np.array_equal(check(problem, config, arch=arch), check(problem, config))


class TestSource:
    def test_lanes_reach_every_row_of_a_matrix_in_banks_of_their_own(self):
        for columns in (8, 16, 128):
            for matrix in range(4):
                rows = [matrix_lane(8 * matrix + i, columns) for i in range(8)]
                assert sorted(row // 128 % 8 for row, _ in rows) == list(range(8))
                assert sorted(piece // 16 for _, piece in rows) == list(range(8))

    def test_names_say_what_differs(self):
        assert len(BY_NAME) == len(CONFIGS) == len(VARIANTS)
        assert "nvfp4-w4a16-n64-swiglu-gather" in BY_NAME

    def test_threads_that_cannot_share_a_stage(self):
        with pytest.raises(ValueError, match="cannot share out"):
            build(Config("mxfp4-w4a16", 24))

    @pytest.mark.parametrize("name", ["mxfp4-w4a16-n8", "nvfp4-w4a16-n128-swiglu-gather", "nf4-w4a16-n64"])
    @pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
    def test_no_spills(self, name, arch):
        made = compile_variant(next(v for v in VARIANTS if v.name == f"numba-mma-{name}"), arch)
        assert made.spill_bytes == 0
        assert made.registers * BY_NAME[name].threads * BY_NAME[name].least_ctas <= 65536
        assert made.shared_bytes <= 48 * 1024
