"""The decode kernels: what the assembler makes of them, and on a GPU against float64."""

import pytest

pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")

from perfmodel.kernels import decode, reference
from perfmodel.kernels.compile import compile_variant

VARIANTS = {variant.name: variant for variant in decode.VARIANTS}
FORMATS = ("mxfp4-w4a16", "nvfp4-w4a16")


@pytest.mark.parametrize(("name", "registers"), [("mxfp4-w4a16-n8", 64), ("nvfp4-w4a16-n16", 128)])
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
