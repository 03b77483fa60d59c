"""Grouped GEMMs of every family and a layer on small shapes, for NVIDIA's compute-sanitizer. Not collected by pytest; on a GPU:

compute-sanitizer --tool memcheck --report-api-errors no python tests/sanitize_kernels.py
compute-sanitizer --tool racecheck python tests/sanitize_kernels.py
"""

import sys

import torch

from perfmodel.kernels import reference, tiles
from perfmodel.kernels.benchmark.contenders import Shape, draw_problem
from perfmodel.kernels.grouped import GroupedGemm, arch_of, pack
from perfmodel.kernels.layer import MoELayer
from perfmodel.kernels.synthetic import random_weights

COUNTS = (17, 0, 40)


def grouped_gemms(form: str, n: int, k: int) -> None:
    """Every tile of a format, on an empty expert and two ragged ones."""
    weights = random_weights(form, len(COUNTS), n, k, seed=5, device="cuda")
    packed, problem = pack(weights), draw_problem(Shape(len(COUNTS), n, k), COUNTS)
    expected = reference.grouped_gemm(problem.x.double(), weights, problem.offsets)
    for choice in tiles.menu(form, "plain", arch_of(problem.x.device)):
        out = torch.full((problem.tokens, n), float("nan"), dtype=torch.bfloat16, device="cuda")
        gemm = GroupedGemm(packed, tile=choice.tile)
        gemm.prepare(problem.x, problem.offsets, out)(torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        sys.stdout.write(f"{gemm.name} N {n} K {k}: {reference.relative_error(out, expected):.1e}\n")


def layer(form: str) -> None:
    """A whole layer."""
    gate_up, down = (random_weights(form, 8, 256, k, device="cuda") for k in (256, 128))
    experts = MoELayer(gate_up, down, topk=2, max_tokens=64)
    for tokens in (5, 64):
        y = experts(torch.randn(tokens, 256, device="cuda").bfloat16(), torch.randn(tokens, 8, device="cuda"))
        torch.cuda.synchronize()
        sys.stdout.write(f"layer {form}, {tokens} tokens: {'finite' if y.isfinite().all() else 'NaN'}\n")


if __name__ == "__main__":
    for name, depths in (("mxfp4-w4a16", (64, 480, 1600)), ("nvfp4-w4a16", (64, 480, 1600)), ("mxfp4-w4a8", (128, 1664))):
        for depth in depths:  # the deepest go round every ring of stages
            grouped_gemms(name, 272, depth)
    for name in ("mxfp4-w4a16", "mxfp4-w4a8"):
        layer(name)
