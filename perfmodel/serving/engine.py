"""How efficiently serving engines run the ops of a step, and what they add: a few numbers for all models and GPUs, fitted to measured
services."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

from perfmodel.files import load_yaml

FILE = Path(__file__).parent / "engines.yaml"


@dataclass(frozen=True)
class Engine:
    """Shares of the GPU's rates, and times in microseconds. All in one place, so that one fit finds them together."""

    bandwidth: float = 0.75
    """Share of the DRAM bandwidth that streams weights."""
    cache_bandwidth: float = 0.6
    """Share of the DRAM bandwidth that streams keys and values in decode."""
    expert_bandwidth: float = 0.65
    """Share of the DRAM bandwidth that streams experts."""
    tensor: float = 0.6
    """Share of the peak in dense GEMMs, FP8 and 16 bits."""
    tensor_fp4: float = 0.45
    expert_tensor: float = 0.4
    """Share of the peak in the experts' grouped GEMMs."""
    tile: float = 16.0
    """Rows that are computed beside an active expert's tokens, which fill no whole tiles."""
    attention: float = 0.4
    """Share of the bf16 peak in prompts' attention."""
    link: float = 0.5
    """Share of a link's bandwidth in collectives."""
    collective_us: float = 7.0
    """One all-reduce of nothing."""
    dispatch_us: float = 15.0
    """One exchange of tokens between ranks of data-parallel attention."""
    pass_bytes: float = 30.0
    """Bytes for each token, layer and element of the hidden state that norms, residuals, rotations and quantisation move."""
    layer_us: float = 20.0
    """Launches and gaps of a layer in decode."""
    moe_layer_us: float = 15.0
    """What an MoE layer adds to that."""
    latent_layer_us: float = 15.0
    """What latent attention adds to a layer."""
    state_layer_us: float = 15.0
    """What a recurrent mixer adds to a layer."""
    blackwell_overhead: float = 0.9
    """What launches and gaps of a layer take on Blackwell, over what they take on Hopper."""
    blackwell_tensor: float = 0.8
    """The share of the peak on Blackwell over that on Hopper."""
    step_us: float = 500.0
    """Scheduling, sampling and detokenising of a step."""
    sequence_us: float = 5.0
    """The same for each sequence of it."""
    prompt_layer_us: float = 100.0
    """A layer of a prompt that is launched kernel by kernel."""
    first_us: float = 15_000.0
    """From the arrival of a request to its first step, and from its first token to the client."""
    interference: float = 0.8
    """Share of a prompt's time that running sequences wait for it."""
    burst: float = 0.05
    """Share of the requests that arrive together, at the start, and wait for each other's prompts."""
    wait: float = 0.5
    """Of the waiting time of a queue at the prefill instances, of that of a queue with random arrivals and equal prompts twice this."""
    transfer_us: float = 50_000.0
    """A cache on its way from the instance that made it to one that decodes, and what a router adds."""


NAMES = tuple(field.name for field in fields(Engine))


@cache
def _file() -> dict[str, dict[str, float]]:
    return load_yaml(FILE)


def load_engine(backend: str | None = None) -> Engine:
    """The fitted engine, of a backend or of all together."""
    found = _file()
    return replace(Engine(**found["all"]), **found.get(backend or "", {}))
