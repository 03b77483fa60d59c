"""A whole layer of experts on the GPU: router, sort, gather, gate and up, SwiGLU, down, combine; nothing of it waits for the host.

    layer = MoELayer(gate_up, down, topk=4, max_tokens=512)
    y = layer(x, logits)     # x bf16 [T, H], logits f32 [T, E], T <= max_tokens; y bf16 [T, H]

Five to seven launches, on torch's current stream:

    logits --route--> experts, weights --sort--> offsets, lists of pairs, tokens, weights in the order of experts
    x --gather--> rows --grouped GEMM, SwiGLU--> hidden --grouped GEMM, weighted, scattered to pairs--> y of each pair --sum--> y

Kernels on mma.sync gather by themselves; with W4A8 weights quantising x gathers, and hidden is quantised too. The first call with some
number of tokens prepares its launches; capture that number in a CUDA graph after one plain call. Between the steps lie buffers of the
layer: two calls must not run at once on different streams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from perfmodel.errors import PerfModelError
from perfmodel.kernels import operands, routing, steps, tiles
from perfmodel.kernels.grouped import GroupedGemm, Packed, arch_of, pack
from perfmodel.kernels.launch import Launch
from perfmodel.kernels.layouts_w4a8 import W4A8
from perfmodel.kernels.tiles import Problem, Tile
from perfmodel.kernels.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

FIRST, OUT_OF_COMBINE = 0, 3
"""Indices of the arguments that change from call to call: logits of route, x of whichever step reads it, and the output."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The prepared launches for one number of tokens, in their order."""

    route: Launch
    sort: Launch
    inputs: Launch
    """The first step that reads x."""
    rest: tuple[Launch, ...]
    combine: Launch

    def run(self, logits: int, x: int, out: int, stream: int) -> None:
        """Enqueue all of it, on these addresses."""
        self.route.set(FIRST, logits)
        self.inputs.set(FIRST, x)
        self.combine.set(OUT_OF_COMBINE, out)
        for launch in (self.route, self.sort, self.inputs, *self.rest, self.combine):
            launch(stream)


class MoELayer:
    """Experts with SwiGLU, the sum over each token's best `topk`, weighted by a softmax of router logits."""

    def __init__(
        self,
        gate_up: Weights,
        down: Weights,
        *,
        topk: int,
        max_tokens: int,
        renormalise: bool = True,
        router: Tensor | None = None,
        tile: Callable[[Problem], Tile] | None = None,
    ) -> None:
        """gate_up: [E, 2 I, H], rows alternating as checkpoints have them; down: [E, H, I]; torch tensors on a GPU, packed here.

        renormalise: whether a token's weights sum to 1. router: bf16 [E, H], for calls without logits. tile: chooses the kernel of each of
        the two grouped GEMMs; by default `tiles.tile_for` does. W4A8 weights whose scales spread too far for E4M3 are taken as W4A16.
        Raises PerfModelError for what does not fit.
        """
        check_layer(gate_up, down, topk, max_tokens, router)
        self.experts, self.hidden, self.inter = down.codes.shape
        self.topk, self.max_tokens, self.renormalise, self.router = topk, max_tokens, renormalise, router
        self._device = down.codes.device
        arch = arch_of(self._device)
        self._tile = tile or (lambda problem: tiles.tile_for(problem.tokens, arch))
        self._packed = pack_both(gate_up.fused(), down)
        self._eight_bits = isinstance(self._packed[1], W4A8)
        self._gemms: dict[tuple[Tile, Tile], tuple[GroupedGemm, GroupedGemm]] = {}
        self._plans: dict[int, Plan] = {}
        self._buffers = self._allocate()

    def __call__(self, x: Tensor, logits: Tensor | None = None) -> Tensor:
        """y bf16 [T, H] of x bf16 [T, H] and router logits f32 [T, E]; logits are x times the router where they are not given."""
        import torch

        if logits is None:
            if self.router is None:
                raise PerfModelError(
                    "are needed, for this layer has no router", field="logits", mend="Pass them, or `router` to the layer."
                )
            self._check_tokens(x)
            logits = torch.matmul(x, self.router.T).float()
        self._check(x, logits)
        with torch.cuda.device(self._device):  # the default stream is that of the current device
            plan = self.prepare(len(x))
            out = torch.empty_like(x)
            plan.run(logits.data_ptr(), x.data_ptr(), out.data_ptr(), torch.cuda.current_stream(self._device).cuda_stream)
        return out

    def prepare(self, tokens: int) -> Plan:
        """Compile, load and pack all launches for this number of tokens; done by the first call, too. Not while a graph is captured."""
        if tokens not in self._plans:
            self._plans[tokens] = self._plan(tokens)
        return self._plans[tokens]

    def kernels(self, tokens: int) -> tuple[str, str]:
        """Names of the two grouped GEMMs for this number of tokens."""
        gate_up, down = self._grouped(tokens)
        return gate_up.name, down.name

    def _grouped(self, tokens: int) -> tuple[GroupedGemm, GroupedGemm]:
        pairs = tokens * self.topk
        active = min(self.experts, pairs)
        gate_up, down = self._packed
        first, second = (self._tile(Problem(packed.format, active, packed.n, packed.k, pairs / active)) for packed in self._packed)
        if (first, second) not in self._gemms:
            gemms = GroupedGemm(gate_up, epilogue="swiglu", tile=first), GroupedGemm(down, epilogue="scatter", tile=second)
            self._gemms[first, second] = gemms
        return self._gemms[first, second]

    def _allocate(self) -> dict[str, Tensor]:
        """What lies between the steps, by name, for `max_tokens`."""
        import torch

        pairs, device = self.max_tokens * self.topk, self._device
        operand = torch.float8_e4m3fn if self._eight_bits else torch.bfloat16
        lists = dict.fromkeys(("experts", "pairs", "rows", "places"), torch.int32)
        lists |= dict.fromkeys(("weights", "factors", "x_scale", "inner_scale"), torch.float32)
        made = {name: torch.zeros(pairs, dtype=dtype, device=device) for name, dtype in lists.items()}
        made["offsets"] = torch.zeros(self.experts + 1, dtype=torch.int32, device=device)
        wide = {"x": (self.hidden, operand), "inner": (self.inter, torch.bfloat16), "results": (self.hidden, torch.bfloat16)}
        if self._eight_bits:
            wide["inner_codes"] = self.inter, operand
        return made | {name: torch.zeros(pairs, width, dtype=dtype, device=device) for name, (width, dtype) in wide.items()}

    def _plan(self, tokens: int) -> Plan:
        count = tokens * self.topk
        held = {name: buffer if name == "offsets" else buffer[:count] for name, buffer in self._buffers.items()}
        lists = [held[name] for name in ("experts", "weights", "offsets", "pairs", "rows", "factors", "places")]
        inputs, *rest = self._expert_steps(tokens, held)
        return Plan(
            route=steps.route(None, *lists[:2], tokens=tokens, count=self.experts, topk=self.topk, renormalise=self.renormalise),
            sort=steps.sort(*lists, topk=self.topk),
            inputs=inputs,
            rest=tuple(rest),
            combine=steps.combine(held["results"], None, topk=self.topk),
        )

    def _expert_steps(self, tokens: int, held: dict[str, Any]) -> list[Launch]:
        """From x, set later, to the weighted result of each pair."""
        gate_up, down = self._grouped(tokens)
        to_pairs = {"out_rows": held["pairs"], "factors": held["factors"]}
        offsets, inner, results = held["offsets"], held["inner"], held["results"]
        if self._eight_bits:
            return [
                steps.quantise(None, held["x"], held["x_scale"], held["rows"]),
                gate_up.prepare(held["x"], offsets, inner, token_scale=held["x_scale"]),
                steps.quantise(inner, held["inner_codes"], held["inner_scale"]),
                down.prepare(held["inner_codes"], offsets, results, token_scale=held["inner_scale"], **to_pairs),
            ]
        last = down.prepare(inner, offsets, results, **to_pairs)
        if gate_up.gathers:  # x has the shape of its buffer's upper part
            return [gate_up.prepare(held["x"][:tokens], offsets, inner, x_rows=held["rows"]), last]
        return [steps.gather(None, held["rows"], held["x"]), gate_up.prepare(held["x"], offsets, inner), last]

    def _check_tokens(self, x: Tensor) -> None:
        operands.check("x", x, "bfloat16", (None, self.hidden), self._device, alignment=16)

    def _check(self, x: Tensor, logits: Tensor) -> None:
        self._check_tokens(x)
        operands.check("logits", logits, "float32", (len(x), self.experts), self._device)
        if not 1 <= len(x) <= self.max_tokens:
            raise PerfModelError(f"must hold 1 to {self.max_tokens} tokens", field="x", value=len(x), mend="Build it with more max_tokens.")


def pack_both(gate_up: Weights, down: Weights) -> tuple[Packed, Packed]:
    """Packed weights of a layer; W4A8 weights whose scales spread too far for E4M3 as W4A16, which multiplies any rightly."""
    try:
        return pack(gate_up), pack(down)
    except PerfModelError as error:
        if not (down.format.endswith("w4a8") and error.field == "scales" and "spread" in error.problem):
            raise
        wide = down.format.replace("w4a8", "w4a16")
        return pack(replace(gate_up, format=wide)), pack(replace(down, format=wide))


def check_layer(gate_up: Weights, down: Weights, topk: int, max_tokens: int, router: Tensor | None) -> None:
    """Raise PerfModelError, one for each kind of mistake, where the parts of a layer do not fit each other or the kernels."""
    experts, hidden, inter = down.codes.shape
    if gate_up.codes.device != down.codes.device:
        raise PerfModelError(f"must be on {down.codes.device}, where down is", field="gate_up", value=str(gate_up.codes.device))
    if gate_up.format.rpartition("-")[2] != down.format.rpartition("-")[2]:
        raise PerfModelError(f"takes other activations than down's {down.format}", field="gate_up", value=gate_up.format)
    if tuple(gate_up.codes.shape) != (experts, 2 * inter, hidden):
        raise PerfModelError(
            f"must be [{experts}, {2 * inter}, {hidden}], by the shape of `down`", field="gate_up", value=tuple(gate_up.codes.shape)
        )
    if experts > routing.MAX_EXPERTS:
        raise PerfModelError(f"at most {routing.MAX_EXPERTS}", field="experts", value=experts)
    if not 1 <= topk <= min(experts, routing.MAX_TOPK):
        raise PerfModelError(f"must lie in 1 .. {min(experts, routing.MAX_TOPK)}", field="topk", value=topk)
    if max_tokens < 1:
        raise PerfModelError("must be at least 1", field="max_tokens", value=max_tokens)
    if hidden % routing.VECTOR or inter % routing.VECTOR:
        raise PerfModelError("hidden and inter must be multiples of 8", field="down", value=(hidden, inter), mend="Pad with zeros.")
    if router is not None:
        operands.check("router", router, "bfloat16", (experts, hidden), down.codes.device)
