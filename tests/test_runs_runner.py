"""The runner of `perfmodel measure`, as far as a CPU can run it: routing, wiring, what is compiled."""

from dataclasses import replace

import numpy as np
import pytest
from runs_examples import POINTS

from perfmodel.errors import PerfModelError
from perfmodel.kernels.tiles import Tile
from perfmodel.validation.runs.points import LayerPoint


def test_logits_route_as_the_point_says():
    torch = pytest.importorskip("torch")
    from perfmodel.validation.runs.runner import draw_logits

    def counts(routing, shift=0, tokens=64):
        generator = torch.Generator()
        generator.manual_seed(0)
        logits = draw_logits(LayerPoint("mxfp4-w4a16", 32, 4, 256, 256, tokens, routing), generator, shift=shift)
        experts = logits.topk(4, -1).indices
        return np.bincount(experts.flatten().numpy(), minlength=32)

    assert counts("balanced").tolist() == [8] * 32
    assert counts("balanced", shift=4, tokens=1).nonzero()[0].tolist() == [4, 5, 6, 7]
    skewed = counts("zipf:1", tokens=2048)
    assert skewed[0] > 3 * skewed[-1] > 0
    assert skewed.sum() == 4 * 2048
    assert counts("zipf:1", shift=5, tokens=2048).argmax() == 5
    assert counts("uniform", tokens=2048).min() > 0.7 * 256
    with pytest.raises(PerfModelError, match="cannot be drawn"):
        counts("powerlaw:1.2")


class CpuLayer:
    """The layer as the reference computes it, on the CPU; asks for its two tiles as `MoELayer` does."""

    def __init__(self, gate_up, down, *, topk, max_tokens, tile):
        from perfmodel.kernels.tiles import Problem

        self.weights, self.topk, self.form = (gate_up, down), topk, down.format
        self.tiles = [tile(Problem(w.format, 1, *w.codes.shape[1:], 1.0)) for w in self.weights]

    def __call__(self, x, logits):
        import torch

        from perfmodel.kernels import reference

        return reference.moe_layer(x, reference.route(logits, self.topk), *self.weights).to(torch.bfloat16)

    def kernels(self, tokens):
        return tuple(
            f"numba-{tile.kind}-{self.form}-n{tile.columns}-{e}" for tile, e in zip(self.tiles, ("swiglu", "scatter"), strict=True)
        )


@pytest.mark.parametrize("routing", ["balanced", "zipf:1"])
def test_the_runner_of_layers_without_a_gpu(monkeypatch, routing):
    pytest.importorskip("torch")
    from perfmodel.kernels import timing
    from perfmodel.validation.runs import runner as running

    called = []

    def capture(calls):
        called.extend(calls)
        return calls

    def timed(replays, **options):
        for call in replays["layer"]:
            call()  # the replay fills what was poisoned
        return {"layer": timing.Timing(12.5, 12.0, 13.0, 11.5, options["hold_s"], 1900, 500.0)}

    for name, stand_in in (("DEVICE", "cpu"), ("MoELayer", CpuLayer), ("l2_bytes", lambda: 10_000)):
        monkeypatch.setattr(running, name, stand_in)
    monkeypatch.setattr(timing, "capture", capture)
    monkeypatch.setattr(timing, "measure", timed)
    gpu = object.__new__(running.GpuRunner)
    gpu._held, gpu._sensor = None, None
    point = LayerPoint("mxfp4-w4a16", 8, 2, 64, 32, 3, routing)
    found = gpu.measure(point, (Tile("wgmma", 16), Tile("decode", 8)))
    assert found["kernel"] == "numba-wgmma-mxfp4-w4a16-n16-swiglu+numba-decode-mxfp4-w4a16-n8-scatter"
    assert (found["us"], found["nan"], found["sm_MHz"]) == (12.5, 0, 1900)
    assert found["rel_err"] < 4e-3  # the result in bf16
    assert len(called) == 3  # 6 experts hold 18 KB: three calls go over four times L2
    weights = gpu._held
    gpu.measure(replace(point, tokens=1), (Tile("wgmma", 16), Tile("decode", 8)))
    assert gpu._held is weights


def test_what_must_be_compiled():
    from perfmodel.validation.runs.runner import needed

    names = {variant.name for variant in needed(POINTS[3], (Tile("wgmma", 256), Tile("wgmma", 256)), "sm_90a")}
    assert {"numba-wgmma-mxfp4-w4a8-n256-swiglu", "numba-wgmma-mxfp4-w4a8-n256-scatter", "numba-quantise-e4m3"} <= names
    assert [v.name for v in needed(POINTS[0], (Tile("wgmma", 64),), "sm_90a")] == ["numba-wgmma-mxfp4-w4a16-n64"]
    assert needed(POINTS[1], (), "sm_90a") == []
