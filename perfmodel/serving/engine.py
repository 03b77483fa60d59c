"""How efficiently serving engines run the ops of a step, and what they add: a few numbers for all models and GPUs, fitted to measured
services."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

from perfmodel.files import load_yaml

FILE = Path(__file__).parent / "engines.yaml"


@dataclass(frozen=True)
class Engine:
    """Shares of the GPU's rates, and times in microseconds. All in one place, so that one fit finds them together."""

    bandwidth: float = 0.8
    """Share of the DRAM bandwidth that streams weights."""
    cache_bandwidth: float = 0.6
    """Share of the DRAM bandwidth that streams keys and values in decode."""
    expert_bandwidth: float = 0.75
    """Share of the DRAM bandwidth that streams experts."""
    fp4: float = 0.85
    """What is left of the bandwidth share of dense layers where they run on FP4 units."""
    tensor: float = 0.6
    """Share of the peak in dense GEMMs, FP8 and 16 bits."""
    tensor_fp4: float = 0.45
    expert_tensor: float = 0.3
    """Share of the peak in the experts' grouped GEMMs."""
    dequantised: float = 0.85
    """What is left of the experts' shares where their weights are converted in the kernel."""
    imbalance: float = 1.0
    """Of the excess of the busiest expert rank, times that of as many random ranks."""
    tile: float = 16.0
    """Rows that are computed beside an active expert's tokens, which fill no whole tiles."""
    attention: float = 0.5
    """Share of the bf16 peak in prompts' attention."""
    link: float = 0.6
    """Share of a link's bandwidth in collectives."""
    collective_us: float = 6.5
    """One all-reduce of nothing between two ranks."""
    hop_us: float = 1.0
    """What each further rank adds."""
    dispatch_us: float = 15.0
    """One exchange of tokens between ranks of data-parallel attention."""
    pass_bytes: float = 40.0
    """Bytes for each token, layer and element of the hidden state that norms, residuals, rotations and quantisation move."""
    layer_us: float = 50.0
    """Launches and gaps of a layer in decode."""
    moe_layer_us: float = 30.0
    """What an MoE layer adds to that."""
    latent_layer_us: float = 20.0
    """What latent attention adds to a layer."""
    scan_layer_us: float = 40.0
    """What the choice of tokens adds to a layer of sparse attention."""
    state_layer_us: float = 20.0
    """What a recurrent mixer adds to a layer."""
    blackwell_overhead: float = 0.8
    """What launches and gaps of a layer take on Blackwell, over what they take on Hopper."""
    blackwell_tensor: float = 0.8
    """The share of the peak on Blackwell over that on Hopper."""
    step_us: float = 300.0
    """Scheduling, sampling and detokenising of a step."""
    sequence_us: float = 7.5
    """The same for each sequence of it."""
    prompt_layer_us: float = 400.0
    """A layer of a prompt that is launched kernel by kernel."""
    prompt_moe_layer_us: float = 300.0
    """What an MoE layer adds to that."""
    first_us: float = 30000.0
    """From the arrival of a request to its first step, and from its first token to the client."""
    interference: float = 0.8
    """Share of a prompt's time that running sequences wait for it; fits find 1.0 to 1.2, so that they wait for what goes with it, too."""
    burst: float = 0.15
    """Share of the requests that arrive together, as at the start of a benchmark, and wait for each other's prompts."""
    wait: float = 0.5
    """Of the waiting time of a queue at the prefill instances, of that of a queue with random arrivals and equal prompts twice this."""
    transfer_us: float = 60000.0
    """A cache on its way from the instance that made it to one that decodes, and what a router adds."""


NAMES = tuple(field.name for field in fields(Engine))


COMMON = (("backend", "architecture", "precision"), ("backend", "gpu"), ("backend", "mode"))
ALIKE: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "tpot": (*COMMON, ("model", "gpu"), ("backend", "model", "gpu"), ("backend", "model", "gpu", "precision")),
    "ttft": (
        *COMMON, ("backend",), ("backend", "architecture"), ("model",), ("backend", "model"), ("backend", "model", "precision"),
        ("backend", "model", "architecture"),
    ),
}  # fmt: skip
"""Figure -> groups of services that have an offset in common: services are alike in these words. What a model's decode differs by on one
GPU says little of another, so that only those on the same GPU share it; the ways its prompts wait do carry over."""


OF_BACKENDS = ("burst", "first_us", "interference", "prompt_layer_us", "layer_us")
"""What every engine has a value of its own for: how it admits prompts and launches layers."""


@dataclass(frozen=True)
class Calibration:
    """A fitted engine, what groups of services differ from it, and how far predictions are off."""

    engine: Engine
    offsets: Mapping[str, Mapping[str, float]]
    """`ttft` and `tpot` -> group, such as "backend=vllm gpu=b200" -> logarithm of measured over predicted."""
    backends: Mapping[str, Mapping[str, float]]
    """Backend -> values of OF_BACKENDS."""
    interval: Mapping[str, Mapping[str, tuple[float, float]]]
    """Mode -> `ttft` and `tpot` -> factors between which 80 % of the measured services lie."""

    def engine_of(self, backend: str | None = None) -> Engine:
        """The engine as a backend runs it; the one of all without."""
        return replace(self.engine, **self.backends.get(backend or "", {}))

    def factor(self, figure: str, words: Mapping[str, str]) -> float:
        """What a predicted figure, `ttft` or `tpot`, is multiplied by. words: backend, model and so on."""
        found = self.offsets.get(figure, {})
        return math.exp(sum(found.get(group, 0.0) for group in groups_of(words, figure)))


def groups_of(words: Mapping[str, str], figure: str) -> list[str]:
    """The groups that a service belongs to by `ttft` or `tpot`; those of words that are not given are left out."""
    return [" ".join(f"{word}={words[word]}" for word in kind) for kind in ALIKE[figure] if all(word in words for word in kind)]


@cache
def load_calibration() -> Calibration:
    """The bundled one, written by `perfmodel calibrate --op serving`."""
    found = load_yaml(FILE)
    return Calibration(
        Engine(**found["engine"]),
        found.get("offsets", {}),
        found.get("backends", {}),
        {mode: {figure: (pair[0], pair[1]) for figure, pair in own.items()} for mode, own in found.get("interval", {}).items()},
    )
