"""What the user asks - a GPU, a format, a kernel, a routing, a launch mode - resolved and checked, ready to build layers from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.formats import Format, format_ids, get_format
from perfmodel.hardware import GpuSpec, load_gpu
from perfmodel.moe_layer import Layer, LayerRows
from perfmodel.ops.fabric import Fabric, fabric
from perfmodel.ops.launch import LaunchMode, launch_mode
from perfmodel.ops.machine import Machine, build_machine
from perfmodel.profiles import Profile, load_profile, profiles
from perfmodel.workload.expectation import Array
from perfmodel.workload.layer import MOST_EXPERTS
from perfmodel.workload.loads import AllSlotsLoad
from perfmodel.workload.routing import Problem, Routing, busiest_load, parse_routing

Comm = Literal["exclude", "include"]
Clock = Literal["burst", "sustained"]
Caches = Literal["cold", "warm"]


@dataclass(frozen=True)
class Scenario:
    """Everything but the shape of the layer and the tokens."""

    gpu: GpuSpec
    format: Format
    profiles: tuple[Profile, ...]
    """One, or the candidates of `auto`."""
    routing: Routing
    launch: LaunchMode
    launch_name: str
    fabric: Fabric | None
    clock: Clock
    caches: Caches = "cold"
    """warm: the same layer ran just before, as in a benchmark that repeats it, and L2 still holds what fits of its weights."""

    @property
    def peak(self) -> float:
        """Dense peak of the units that the format runs on, FLOP/s."""
        return self.gpu.peak_flops(self.format.math_type(self.gpu.math_types))

    def profiles_for(self, rows: LayerRows) -> tuple[Profile, ...]:
        """The profiles, each or its stand-in for layers without a gate."""
        return tuple(profile.for_layers(rows.gated, self.gpu.architecture, self.format.id) for profile in self.profiles)

    def machine(self, profile: Profile) -> Machine:
        """The GPU as this profile drives it."""
        return build_machine(self.gpu, self.format, profile, sustained=self.clock == "sustained", warm=self.caches == "warm")

    def layer(self, rows: LayerRows, profile: Profile) -> tuple[Layer, Array]:
        """The layer with its busiest rank's load, and that load over the mean rank's."""
        machine = self.machine(profile)
        load, imbalance = busiest_load(self.routing, Problem(rows.tokens, rows.experts, rows.topk, rows.ep), machine.tiles.m)
        if profile.slots == "all":
            load = AllSlotsLoad(load, rows.topk, rows.tokens if profile.token_rows == "all" else None)
        launches = machine.launches + (2 if (rows.shared_inter > 0).any() else 0)
        return Layer(rows, load, machine, self.launch.time(launches), self.fabric), imbalance


def resolve(
    gpu: str | Path | GpuSpec,
    format: str,
    kernel: str = "auto",
    *,
    routing: str | Routing = "uniform",
    launch: str = "graph",
    comm: str = "exclude",
    clock: str = "burst",
    caches: str = "cold",
    changes: Sequence[str] = (),
) -> Scenario:
    """Check the user's words and load what they name. Raises PerfModelError with the field, the value and the mend."""
    for name, word in (("format", format), ("kernel", kernel), ("launch", launch), ("comm", comm), ("clock", clock), ("caches", caches)):
        if not isinstance(word, str):
            raise PerfModelError("must be a word", field=name, value=word, mend="Give it as text, or leave it out.")
    if not isinstance(routing, str | Routing):
        raise PerfModelError("must be a word", field="routing", value=routing, mend="Give it as text, such as uniform.")
    spec = as_gpu(gpu, changes)
    form = get_format(format)
    form.math_type(spec.math_types)
    _one_of("comm", comm, get_args(Comm))
    _one_of("clock", clock, get_args(Clock))
    _one_of("caches", caches, get_args(Caches))
    if clock == "sustained" and spec.sustained_clock is None:
        raise PerfModelError(
            f"the clock that {spec.id} holds under long tensor work is not known",
            field="clock.sustained_MHz",
            mend="Add it with --set clock.sustained_MHz=1500, say, or ask for --clock burst.",
        )
    return Scenario(
        gpu=spec,
        format=form,
        profiles=choose_profiles(kernel, spec, form),
        routing=routing if isinstance(routing, Routing) else parse_routing(routing),
        launch=launch_mode(launch, spec),
        launch_name=launch,
        fabric=fabric(spec) if comm == "include" else None,
        clock="sustained" if clock == "sustained" else "burst",
        caches="warm" if caches == "warm" else "cold",
    )


def as_gpu(gpu: str | Path | GpuSpec, changes: Sequence[str] = ()) -> GpuSpec:
    """The GPU that an id, a path or a loaded GpuSpec names, with `changes` (or a single one).

    Raises PerfModelError for changes to a loaded one.
    """
    changes = (changes,) if isinstance(changes, str) else changes
    if not isinstance(gpu, GpuSpec):
        return load_gpu(gpu, changes)
    if changes:
        raise PerfModelError("a loaded GPU cannot be changed", field="changes", mend="Give the changes to load_gpu(id, changes).")
    return gpu


def _one_of(field: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise PerfModelError("no such choice", field=field, value=value, mend=did_you_mean(value, choices))


def choose_profiles(kernel: str, gpu: GpuSpec, form: Format) -> tuple[Profile, ...]:
    """The profile of this id, or for `auto` all that were measured on this architecture in this format, else generic-fused.

    Raises PerfModelError where the kernel has nothing for this GPU and format.
    """
    if kernel != "auto":
        profile = load_profile(kernel)
        profile.fit(gpu.architecture, form.id)
        return (profile,)
    able = [p for p in profiles() if p.kind == "measured" and not p.ungated_only and p.supports(gpu.architecture, form.id)]
    measured = [p for p in able if p.fit(gpu.architecture, form.id).provenance.status == "measured"]
    return tuple(measured) or (load_profile("generic-fused"),)


FAMILIES = (
    ("bf16", "fp16"),
    ("fp16", "bf16"),
    ("nvfp4", "nvfp4-w4a16"),
    ("mxfp4", "mxfp4-w4a8", "mxfp4-w4a16"),
    ("mxfp8", "bf16", "fp16"),
    ("fp8-block", "bf16", "fp16"),
    ("fp8", "bf16", "fp16"),
    ("int8", "bf16", "fp16"),
    ("w4afp8-int4", "int4-w4a16"),
    ("nf4-w4a16",),
)
"""Formats that one and the same set of weights allows, the fastest first; the first family that holds the stored one counts."""


def default_format(stored: str | None, gpu: GpuSpec) -> str:
    """The fastest format that the GPU runs natively and the model's weights (`stored`, bf16 where unknown) allow.

    Where it would have to dequantise whatever the choice: the stored format, or else the one with the widest activations.
    Raises PerfModelError where none runs.
    """
    stored = stored if stored in format_ids() else "bf16"
    family = next((f for f in FAMILIES if stored in f), (stored,))
    able = [name for name in family if get_format(name).runs_on(gpu.math_types)]
    if not able:
        get_format(stored).math_type(gpu.math_types)  # raises, naming what runs
    native = [name for name in able if get_format(name).execution(gpu.architecture) != "dequantised"]
    return native[0] if native else stored if stored in able else able[-1]


def layer_rows(shape: dict[str, Array], *, gated: bool = True) -> LayerRows:
    """LayerRows from broadcast columns hidden, inter, experts, topk, tokens, ep, tp (and width, shared_inter). Raises PerfModelError.

    All must be whole and positive, top-k at most the experts, EP a divisor of the experts, TP one of the intermediate sizes.
    """
    columns = {name: np.asarray(values, dtype=float) for name, values in shape.items()}
    for name, values in columns.items():
        least = 0 if name == "shared_inter" else 1
        bad = ~(np.isfinite(values) & (values >= least) & (values == np.floor(values)) & (values < 2**40))
        if bad.any():
            value = float(values[bad].flat[0])
            raise PerfModelError("must be whole and positive", field=name, value=value, mend="Give whole numbers from 1.")
    columns.setdefault("width", columns["hidden"])
    columns.setdefault("shared_inter", np.zeros_like(columns["hidden"]))
    rows = LayerRows(**columns, gated=gated)
    _reject(rows.experts > MOST_EXPERTS, "experts", rows.experts, f"is over {MOST_EXPERTS:,}", "Check the number of experts.")
    _reject(rows.topk > rows.experts, "topk", rows.topk, "is over the number of experts", "Give a top-k of at most the experts.")
    _reject(rows.experts % rows.ep != 0, "ep", rows.ep, "does not divide the experts", "Choose a divisor of the number of experts.")
    for inter in (rows.inter, rows.shared_inter):
        _reject(inter % rows.tp != 0, "tp", rows.tp, "does not divide the intermediate size", "Choose a divisor of the intermediate size.")
    return rows


def _reject(bad: np.ndarray, field: str, values: Array, problem: str, mend: str) -> None:
    if bad.any():
        raise PerfModelError(problem, field=field, value=int(np.broadcast_to(values, bad.shape)[bad].flat[0]), mend=mend)


def row_slice(rows: LayerRows, index: np.ndarray) -> LayerRows:
    """The rows at `index`."""
    arrays = {name: value[index] for name, value in vars(rows).items() if isinstance(value, np.ndarray)}
    return replace(rows, **arrays)
