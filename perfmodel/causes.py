"""The causes of lost time, in the order in which they are attributed. The order is part of the contract."""

from __future__ import annotations

from typing import NamedTuple


class Causes(NamedTuple):
    """Which causes are switched on. The model with all of them off is the ideal: FLOPs at the peak."""

    weights: bool = True
    """Active experts' weights and scales through DRAM once."""
    activations: bool = True
    """The layer's input read and its output written once."""
    clock: bool = True
    """The clock that long tensor work settles at."""
    tensor: bool = True
    """Tensor-core efficiency of the kernel."""
    padding: bool = True
    """Tokens and columns rounded up to whole tiles."""
    scheduling: bool = True
    """Whole waves, prologue and epilogue of tiles, fill and drain, stages one after the other."""
    ramp: bool = True
    """Bandwidth that is not reached, L2 that feeds too slowly."""
    quantise: bool = True
    """Weights converted in the kernel, activations quantised."""
    unfused: bool = True
    """Activations that unfused stages write and read again."""
    imbalance: bool = True
    """Experts with more tokens than others."""
    launch: bool = True
    """Launches, fixed latency, router, top-k and sorting."""
    communication: bool = True
    """Dispatch, combine and all-reduce."""


ON = Causes()
IDEAL = Causes(*[False] * len(Causes._fields))

NAMES = {
    "weights": "weight traffic",
    "activations": "activation traffic",
    "clock": "sustained clock",
    "tensor": "tensor-core efficiency",
    "padding": "tile padding",
    "scheduling": "scheduling",
    "ramp": "bandwidth ramp and L2 limits",
    "quantise": "dequantise and quantise",
    "unfused": "unfused activation traffic",
    "imbalance": "routing imbalance",
    "launch": "launch and sync",
    "communication": "communication",
}
"""The names that users and the JSON see."""

NOT_NATIVE = "format not native"
"""The cause that `--against` adds: the peak held against is that of units which this GPU lacks or this format does not use."""
