"""A whole layer of experts on a real model's shape: its time as a CUDA graph, and its result against float64."""

from __future__ import annotations

from typing import Any

from perfmodel.kernels import reference, tiles, timing
from perfmodel.kernels.clocks import Sensor
from perfmodel.kernels.layer import MoELayer
from perfmodel.kernels.synthetic import random_weights
from perfmodel.kernels.variants import Variant

EXPERTS, TOPK, HIDDEN, INTER, TOKENS = 32, 4, 2880, 2880, 512
"""gpt-oss-20b, and a batch that gives each expert 64 tokens on average."""
FORMAT = "mxfp4-w4a16"


def layer_variants(arch: str) -> list[Variant]:
    """The grouped GEMMs of the layer."""
    tile = tiles.tile_for(TOKENS * TOPK / EXPERTS, arch)
    return [tiles.nearest(tiles.menu(FORMAT, epilogue, arch), tile).variant for epilogue in ("swiglu", "scatter")]


def measure_layer(sensor: Sensor) -> dict[str, Any]:
    """rel_err and us, and what was run. The output that is checked is that of the replayed graph, poisoned before."""
    import torch

    gate_up = random_weights(FORMAT, EXPERTS, 2 * INTER, HIDDEN, seed=1, device="cuda")
    down = random_weights(FORMAT, EXPERTS, HIDDEN, INTER, seed=2, device="cuda")
    generator = torch.Generator(device="cuda")
    generator.manual_seed(3)
    x = torch.randn(TOKENS, HIDDEN, generator=generator, device="cuda").to(torch.bfloat16)
    logits = torch.randn(TOKENS, EXPERTS, generator=generator, device="cuda")
    layer = MoELayer(gate_up, down, topk=TOPK, max_tokens=TOKENS)
    outputs: list[Any] = [layer(x, logits)]

    def call() -> None:
        outputs[0] = layer(x, logits)

    replay = timing.capture([call])
    outputs[0].fill_(float("nan"))
    time = timing.measure({"layer": replay}, sensor=sensor)["layer"]
    expected = reference.moe_layer(x, reference.route(logits, TOPK), gate_up, down)
    error = reference.relative_error(outputs[0], expected)
    return {
        "rel_err": error if error == error else None, "us": time.us, "sm_MHz": time.sm_MHz, "format": FORMAT, "experts": EXPERTS,
        "topk": TOPK, "hidden": HIDDEN, "inter": INTER, "tokens": TOKENS, "kernels": list(layer.kernels(TOKENS)),
    }  # fmt: skip
