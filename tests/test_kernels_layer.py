"""The layer's wiring without a GPU: launches that do what the references say, over torch tensors of the CPU."""

import contextlib
import ctypes
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra `gpu`")

import torch

from perfmodel.errors import PerfModelError
from perfmodel.kernels import cubins, decode, grouped, launch, reference, routing_reference, steps
from perfmodel.kernels import layer as layers
from perfmodel.kernels.layer import MoELayer
from perfmodel.kernels.mma_w4a16 import PARAMETERS
from perfmodel.kernels.synthetic import random_weights
from perfmodel.kernels.torch_reference import TorchMoELayer

EXPERTS, TOPK, HIDDEN, INTER, MOST = 4, 2, 256, 128, 24
I32, F32, BF16, E4M3 = torch.int32, torch.float32, torch.bfloat16, torch.float8_e4m3fn


def at(pointer, dtype, *shape):
    """The tensor at an address."""
    size = int(np.prod(shape)) * dtype.itemsize
    return torch.frombuffer((ctypes.c_char * size).from_address(pointer), dtype=dtype).view(*shape)


def rows_at(pointer, dtype, rows, width):
    """x[rows] of the matrix at an address."""
    return at(pointer, dtype, int(rows.max()) + 1, width)[rows]


class Launch:
    """Computes by the reference what the kernel would, from the very arguments that it would get."""

    log: ClassVar[list[str]] = []
    unpacked: ClassVar[dict[tuple[int, int], object]] = {}
    """(N, K) -> the weights that were packed."""

    def __init__(self, variant, grid, arguments, keep=()):
        self.name, self.grid, self.keep = variant.name, grid, keep
        self.values = [value for _, value in arguments]

    def set(self, index, value):
        self.values[index] = value

    def __call__(self, stream):
        self.log.append(self.name)
        step = self.name.removeprefix("numba-").split("-")[0]
        getattr(self, step, self.gemm)(*self.values)

    def route(self, logits, experts, weights, tokens, count, topk):
        chosen, factors = routing_reference.route(at(logits, F32, tokens, count), topk, "renormalised" in self.name)
        at(experts, I32, tokens, topk).copy_(chosen)
        at(weights, F32, tokens, topk).copy_(factors)

    def sort(self, experts, weights, offsets, pairs, rows, factors, places, end, count, topk):
        order, starts = reference.permutation(at(experts, I32, end).long(), count)
        at(offsets, I32, count + 1).copy_(starts)
        at(pairs, I32, end).copy_(order)
        at(rows, I32, end).copy_(order // topk)
        at(factors, F32, end).copy_(at(weights, F32, end)[order])
        at(places, I32, end)[order] = torch.arange(end, dtype=I32)

    def gather(self, x, rows, out, hidden):
        count = self.grid[0]
        at(out, BF16, count, hidden).copy_(rows_at(x, BF16, at(rows, I32, count), hidden))

    def quantise(self, x, codes, scales, rows, tokens, k):
        order = at(rows, I32, tokens) if rows else torch.arange(tokens)
        values = rows_at(x, BF16, order, k).float()
        scale = values.abs().amax(1) / 448
        at(codes, E4M3, tokens, k).copy_((values / scale[:, None]).to(E4M3))
        at(scales, F32, tokens).copy_(scale)

    def combine(self, y, places, weights, out, hidden, topk):
        rows = at(y, BF16, self.grid[0], topk, hidden)
        at(out, BF16, self.grid[0], hidden).copy_(rows.double().sum(1))

    def gemm(self, *values):
        packed, call = self.keep[:2]
        weights = self.unpacked[packed.n, packed.k]
        x = call.x.double() if call.token_scale is None else call.x.double() * call.token_scale.double()[:, None]
        if self.name.startswith(("numba-mma", "numba-decode")) and "gather" in self.name:
            given = dict(zip(decode.PARAMETERS if "decode" in self.name else PARAMETERS, values, strict=True))
            x = rows_at(given["x"], BF16, at(given["x_rows"], I32, call.tokens), packed.k).double()
        y = reference.grouped_gemm(x, weights, call.offsets)
        if "swiglu" in self.name:  # rows as `fused` puts them: 8 gates, their 8 ups
            gate, up = y.view(len(y), -1, 2, 8).unbind(2)
            call.out.copy_((gate * torch.sigmoid(gate) * up).reshape(len(y), -1))
        else:
            call.out[call.out_rows.long()] = (y * call.factors.double()[:, None]).to(BF16)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A Hopper GPU that is none."""
    pack = grouped.pack

    def remember(weights):
        packed = pack(weights)
        Launch.unpacked[packed.n, packed.k] = weights
        return packed

    monkeypatch.setattr(layers, "pack", remember)
    for module in (grouped, layers):
        monkeypatch.setattr(module, "arch_of", lambda device: "sm_90a")
    for module in (launch, steps):
        monkeypatch.setattr(module, "Launch", Launch)
    monkeypatch.setattr(launch, "tensor_map", lambda *_, **__: bytes(128))
    monkeypatch.setattr(cubins, "load_variant", lambda variant, device: variant)
    monkeypatch.setattr(cubins, "resident_ctas", lambda kernel, device: 132)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    Launch.log.clear()


def make(form="mxfp4-w4a16", **choices):
    gate_up = random_weights(form, EXPERTS, 2 * INTER, HIDDEN, seed=1)
    down = random_weights(form, EXPERTS, HIDDEN, INTER, seed=2)
    keywords = {"topk": TOPK, "max_tokens": MOST} | choices
    return MoELayer(gate_up, down, **keywords), TorchMoELayer(gate_up, down, topk=TOPK, renormalise=keywords.get("renormalise", True))


def inputs(tokens, seed=0):
    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randn(tokens, HIDDEN, generator=generator).to(BF16), torch.randn(tokens, EXPERTS, generator=generator)


@pytest.mark.parametrize(
    ("form", "kernels", "tolerance"),
    [
        ("mxfp4-w4a16", "mma gather", 5e-3),
        ("nf4-w4a16", "mma gather", 5e-3),
        ("mxfp4-w4a16", "wgmma", 5e-3),
        ("mxfp4-w4a8", "w4a8", 8e-2),
    ],
)
@pytest.mark.parametrize("renormalise", [True, False])
def test_result_for_any_number_of_tokens(form, kernels, tolerance, renormalise):
    tile = layers.Tile("wgmma", 64) if kernels == "wgmma" else None
    layer, exact = make(form, renormalise=renormalise, tile=tile and (lambda problem: tile))
    for tokens in (MOST, 1, 5, MOST):  # the larger first: its leftovers in the buffers must not show
        x, logits = inputs(tokens, seed=tokens)
        assert reference.relative_error(layer(x, logits), exact(x, logits)) < tolerance


@pytest.mark.parametrize(
    ("form", "tile", "steps_between"),
    [
        ("mxfp4-w4a16", ("mma", 8), ["mma-mxfp4-w4a16-n8-swiglu-gather", "mma-mxfp4-w4a16-n8-scatter"]),
        ("mxfp4-w4a16", ("wgmma", 64), ["gather", "wgmma-mxfp4-w4a16-n64-swiglu", "wgmma-mxfp4-w4a16-n64-scatter"]),
        (
            "mxfp4-w4a8",
            ("wgmma", 64),
            ["quantise-e4m3", "wgmma-mxfp4-w4a8-n64-swiglu", "quantise-e4m3", "wgmma-mxfp4-w4a8-n64-scatter"],
        ),
    ],
)
def test_steps(form, tile, steps_between):
    layer, _ = make(form, tile=lambda problem: layers.Tile(*tile))
    layer(*inputs(3))
    assert Launch.log == [f"numba-{name}" for name in ("route-renormalised", "sort-by-expert", *steps_between, "combine")]
    assert layer.kernels(3) == tuple(name for name in Launch.log if "swiglu" in name or "scatter" in name)


def test_the_tile_is_chosen_by_tokens_of_the_experts_that_have_any():
    asked = []
    layer, _ = make(tile=lambda problem: asked.append(problem.tokens) or layers.Tile("mma", 8))
    for tokens in (1, 2, 24):
        layer.prepare(tokens)
    assert asked == [1, 1, 1, 1, 12, 12]  # 2 pairs on 2 experts, 4 on 4, 48 on 4; each of both grouped GEMMs asks


def test_the_router_of_the_layer():
    x, _ = inputs(6)
    router = torch.randn(EXPERTS, HIDDEN).to(BF16)
    layer, exact = make(router=router)
    assert reference.relative_error(layer(x), exact(x, (x @ router.T).float())) < 5e-3


def test_outputs_do_not_share_memory():
    layer, _ = make()
    first = layer(*inputs(4, seed=1))
    kept = first.clone()
    layer(*inputs(4, seed=2))
    assert torch.equal(first, kept)


@pytest.mark.parametrize(
    ("x", "logits", "message"),
    [
        (torch.zeros(3, HIDDEN), torch.zeros(3, EXPERTS), "x: must be bfloat16"),
        (torch.zeros(3, HIDDEN, dtype=BF16), torch.zeros(3, EXPERTS, dtype=BF16), "logits: must be float32"),
        (torch.zeros(3, HIDDEN, dtype=BF16), torch.zeros(2, EXPERTS), r"logits: must have the shape \[3, 4\]"),
        (torch.zeros(MOST + 1, HIDDEN, dtype=BF16), torch.zeros(MOST + 1, EXPERTS), r"must hold 1 to 24 tokens \(got 25\)"),
        (torch.zeros(3, HIDDEN, dtype=BF16), None, "this layer has no router"),
    ],
)
def test_calls_that_are_refused(x, logits, message):
    layer, _ = make()
    with pytest.raises(PerfModelError, match=message):
        layer(x, logits)


@pytest.mark.parametrize(
    ("form", "error"), [("mxfp4-w4a16", 0.13), ("nvfp4-w4a16", 0.1), ("int4-w4a16", 0.13), ("nf4-w4a16", 0.1), ("mxfp4-w4a8", 0.13)]
)
def test_random_weights_are_quantised_gaussians(form, error):
    """The error of four bits on a Gaussian, which is what was drawn, and the standard deviation asked for."""
    weights = random_weights(form, 2, 64, 256, seed=3)
    generator = torch.Generator()
    generator.manual_seed(3)
    drawn = torch.randn(64, 256, generator=generator) / 16
    values = reference.dequantise(weights)
    assert 0.5 * error < reference.relative_error(values[0], drawn.double()) < error
    assert abs(float(values.std()) * 16 - 1) < 0.03
    assert not torch.equal(values[0], values[1])


def test_formats_and_sizes_of_random_weights():
    with pytest.raises(PerfModelError, match=r"Did you mean .*mxfp4-w4a16"):
        random_weights("mxfp4", 1, 16, 128)
    with pytest.raises(PerfModelError, match="K: must be a multiple of 128 in int4-w4a16"):
        random_weights("int4-w4a16", 1, 16, 64)
