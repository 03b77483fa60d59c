"""Grouped GEMMs, the kernels around them and the whole layer, run on a GPU and held against float64."""

import os
import time

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")
pytest.importorskip("torch", reason="needs the extra `gpu`")

import torch

from perfmodel.kernels import reference, routing_reference, steps, stream, tiles
from perfmodel.kernels.benchmark import single
from perfmodel.kernels.benchmark.ceilings import read_launch
from perfmodel.kernels.benchmark.contenders import Shape, draw_problem
from perfmodel.kernels.cubins import architecture_of, compile_all
from perfmodel.kernels.grouped import GroupedGemm, pack
from perfmodel.kernels.layer import MoELayer
from perfmodel.kernels.synthetic import random_weights
from perfmodel.kernels.tiles import Tile
from perfmodel.kernels.torch_reference import TorchMoELayer

pytestmark = pytest.mark.gpu
E4M3 = torch.float8_e4m3fn
RAGGED = ([0, 1, 130, 7], [0, 0, 300, 0], [1, 1, 1, 1], [17, 64, 129, 257])
FORMATS = ("mxfp4-w4a16", "nvfp4-w4a16", "int4-w4a16", "nf4-w4a16", "mxfp4-w4a8")


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """Compile all at once, on all cores."""
    menus = [tiles.menu(form, epilogue, arch()) for form in FORMATS for epilogue in ("plain", "swiglu", "scatter")]
    compile_all([(choice.variant, arch()) for menu in menus for choice in menu], jobs=os.cpu_count())


def stream_of():
    return torch.cuda.current_stream().cuda_stream


def arch():
    return architecture_of(torch.cuda.get_device_capability())


def poison(rows, width):
    return torch.full((rows, width), float("nan"), dtype=torch.bfloat16, device="cuda")


def operands_of(problem, form):
    """(x for the kernel, keywords, x in float64)."""
    if form.endswith("w4a16"):
        return problem.x, {}, problem.x.double()
    codes, scales = torch.empty_like(problem.x, dtype=E4M3), torch.empty(problem.tokens, device="cuda")
    steps.quantise(problem.x, codes, scales)(stream_of())
    return codes, {"token_scale": scales}, codes.double() * scales.double()[:, None]


def every_kernel():
    """(format, epilogue, tile) of every grouped GEMM; which of them this GPU has is asked when the test runs, not when it is collected."""
    return [
        pytest.param(form, epilogue, Tile(kind, columns), id=f"{form}-{epilogue}-{kind}-{columns}")
        for form in FORMATS
        for epilogue in ("plain", "swiglu", "scatter")
        for kind in ("mma", "decode", "wgmma")
        for columns in (8, 16, 32, 64, 128, 256)
    ]


@pytest.mark.parametrize(("form", "epilogue", "tile"), every_kernel())
def test_ragged_experts(rng, form, epilogue, tile):
    """Every token is computed and nothing else is written: outputs start as NaN and have rows too many."""
    if tile not in {choice.tile for choice in tiles.menu(form, epilogue, arch())}:
        pytest.skip("no such kernel")
    weights = random_weights(form, 4, 272, 384, seed=5, device="cuda")
    gemm = GroupedGemm(pack(weights.fused() if epilogue == "swiglu" else weights), epilogue=epilogue, tile=tile)
    for counts in RAGGED:
        problem = draw_problem(Shape(4, 272, 384), counts)
        x, keywords, values = operands_of(problem, form)
        expected = reference.grouped_gemm(values, weights, problem.offsets)
        out = poison(problem.tokens, gemm.width)
        if epilogue == "swiglu":
            expected = reference.swiglu(expected)
        if epilogue == "scatter":
            to = torch.from_numpy(rng.permutation(problem.tokens + 3)[: problem.tokens].astype(np.int32)).cuda()
            factors = torch.rand(problem.tokens, device="cuda")
            out = poison(problem.tokens + 3, gemm.width)
            keywords |= {"out_rows": to, "factors": factors}
            expected = expected * factors.double()[:, None]
        gemm.prepare(x, problem.offsets, out, **keywords)(stream_of())
        found = out
        if epilogue == "scatter":
            assert int(out.isnan().all(dim=1).sum()) == 3
            found = out[to.long()]
        assert not found.isnan().any()
        limit = 2e-3 if form in ("mxfp4-w4a16", "nvfp4-w4a16") and epilogue == "plain" else 3e-3
        assert reference.relative_error(found, expected) < limit, (gemm.name, counts)


def test_gathered_rows(rng):
    weights = random_weights("mxfp4-w4a16", 4, 256, 384, seed=5, device="cuda")
    gemm = GroupedGemm(pack(weights.fused()), epilogue="swiglu", tile=Tile("mma", 16))
    problem = draw_problem(Shape(4, 256, 384), [3, 0, 20, 1])
    rows = torch.from_numpy(rng.integers(0, problem.tokens, problem.tokens).astype(np.int32)).cuda()
    out = poison(problem.tokens, gemm.width)
    gemm.prepare(problem.x, problem.offsets, out, x_rows=rows)(stream_of())
    expected = reference.grouped_gemm_swiglu(problem.x.double(), weights, problem.offsets, rows)
    assert reference.relative_error(out, expected) < 3e-3


@pytest.mark.parametrize(("tokens", "experts", "topk"), [(1, 4, 2), (37, 32, 4), (4096, 256, 8), (300, 512, 16)])
class TestAround:
    def test_route_and_sort(self, tokens, experts, topk):
        logits = torch.randn(tokens, experts, device="cuda")
        logits[:, 1::5] = logits[:, :1]  # ties
        count = tokens * topk
        chosen, weights = torch.zeros(count, dtype=torch.int32, device="cuda"), torch.zeros(count, device="cuda")
        pairs, rows, places = (torch.zeros(count, dtype=torch.int32, device="cuda") for _ in range(3))
        offsets, factors = torch.zeros(experts + 1, dtype=torch.int32, device="cuda"), torch.zeros(count, device="cuda")
        steps.route(logits, chosen, weights, tokens=tokens, count=experts, topk=topk, renormalise=True)(stream_of())
        steps.sort(chosen, weights, offsets, pairs, rows, factors, places, topk=topk)(stream_of())
        expected, expected_weights = routing_reference.route(logits, topk)
        assert (chosen.view(tokens, topk) == expected).all()
        torch.testing.assert_close(weights.view(tokens, topk).double(), expected_weights, rtol=3e-6, atol=1e-12)
        order, starts = reference.permutation(expected, experts)
        assert (pairs == order).all()
        assert (offsets == starts).all()
        assert (rows == order // topk).all()
        assert (factors == weights[order]).all()
        assert (places[order] == torch.arange(count, device="cuda")).all()

    def test_gather_and_combine(self, tokens, experts, topk):
        x = torch.randn(tokens, 2880, device="cuda").to(torch.bfloat16)
        order = torch.randperm(tokens * topk, device="cuda")
        gathered = poison(tokens * topk, 2880)
        steps.gather(x, (order // topk).int(), gathered)(stream_of())
        assert (gathered == x[order // topk]).all()
        weights = torch.rand(tokens, topk, device="cuda")
        places = torch.empty_like(order)
        places[order] = torch.arange(tokens * topk, device="cuda")
        for keywords, factors in (({}, torch.ones_like(weights)), ({"places": places.int(), "weights": weights}, weights)):
            out = poison(tokens, 2880)
            steps.combine(gathered, out, topk=topk, **keywords)(stream_of())
            rows = gathered[places] if keywords else gathered
            expected = routing_reference.combine(rows, factors)
            torch.testing.assert_close(out.double(), expected, rtol=2**-8 + 1e-6, atol=1e-6 * topk)


@pytest.mark.parametrize("form", ["mxfp4-w4a16", "nvfp4-w4a16", "nf4-w4a16", "mxfp4-w4a8"])
@pytest.mark.parametrize("renormalise", [True, False])
def test_layer_in_a_graph(form, renormalise):
    """Each number of tokens, eagerly and replayed with other inputs, against the torch module in float64."""
    if not tiles.menu(form, "swiglu", arch()):
        pytest.skip("no kernel for this GPU")
    experts, topk, hidden, inter = 16, 4, 512, 384
    gate_up = random_weights(form, experts, 2 * inter, hidden, seed=1, device="cuda")
    down = random_weights(form, experts, hidden, inter, seed=2, device="cuda")
    layer = MoELayer(gate_up, down, topk=topk, max_tokens=600, renormalise=renormalise)
    exact = TorchMoELayer(gate_up, down, topk=topk, renormalise=renormalise)
    tolerance = 1e-2 if form.endswith("w4a16") else 8e-2  # the reference quantises no activations
    for tokens in (1, 3, 40, 600):
        x = torch.randn(tokens, hidden, device="cuda").to(torch.bfloat16)
        logits = torch.randn(tokens, experts, device="cuda")
        assert reference.relative_error(layer(x, logits), exact(x, logits)) < tolerance, (tokens, layer.kernels(tokens))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = layer(x, logits)
        x.copy_(torch.randn_like(x))
        logits.copy_(torch.randn_like(logits))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert reference.relative_error(out, exact(x, logits)) < tolerance, (tokens, layer.kernels(tokens))


def test_layer_with_a_router():
    gate_up, down = (random_weights("mxfp4-w4a16", 8, n, k, seed=n, device="cuda") for n, k in ((512, 256), (256, 256)))
    router = torch.randn(8, 256, device="cuda").to(torch.bfloat16)
    layer = MoELayer(gate_up, down, topk=2, max_tokens=64, router=router)
    x = torch.randn(64, 256, device="cuda").to(torch.bfloat16)
    assert torch.equal(layer(x), layer(x, (x @ router.T).float()))


def test_a_launch_costs_the_host_little():
    weights = random_weights("mxfp4-w4a16", 2, 128, 128, device="cuda")
    gemm = GroupedGemm(pack(weights), tile=Tile("mma", 16))
    problem = draw_problem(Shape(2, 128, 128), [1, 1])
    launch, stream_handle = gemm.prepare(problem.x, problem.offsets, poison(2, 128)), stream_of()
    costs = []
    for _ in range(20):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(50):
            launch(stream_handle)
        costs.append((time.perf_counter() - began) / 50)
    assert sorted(costs)[10] < 10e-6, f"{sorted(costs)[10] * 1e6:.1f} us"


@pytest.mark.parametrize("config", stream.CONFIGS)
@pytest.mark.parametrize("ctas", [1, 100, 5000])
def test_reading_reads_everything(config, ctas):
    source = torch.randint(0, 2**31, (1_000_004,), dtype=torch.int32, device="cuda")
    launch = read_launch(config, source, ctas)
    launch(stream_of())
    out = launch._keep[1].cpu().numpy().view(np.uint32)
    assert stream.checksum(out) == stream.checksum(source.cpu().numpy().view(np.uint32))


@pytest.mark.parametrize("form", FORMATS)
def test_run(form):
    if not tiles.menu(form, "plain", arch()):
        pytest.skip("no kernel for this GPU")
    row = single.run(single.make_task("experts=2,n=256,k=256,tokens=8", form, None))
    assert row["ok"], row
    assert row["us"] > 0
