"""A whole layer of experts on the GPU: router, sort, gather, gate and up, SwiGLU, down, combine; nothing of it waits for the host.

    layer = MoELayer(gate_up, down, topk=4, max_tokens=512)
    y = layer(x, logits)     # x bf16 [T, H], logits f32 [T, E], T <= max_tokens; y bf16 [T, H]

Six or seven launches, on torch's current stream:

    logits --route--> experts, weights --sort--> offsets, lists of pairs, tokens, weights in the order of experts
    x --gather--> rows --grouped GEMM, SwiGLU--> hidden --grouped GEMM, weighted, scattered to pairs--> y of each pair --sum--> y

The first call with some number of tokens prepares its launches; capture that number in a CUDA graph after one plain call. Between the
steps lie buffers of the layer: two calls must not run at once on different streams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perfmodel.errors import PerfModelError
from perfmodel.kernels import cubins, operands, routing, tiles
from perfmodel.kernels.grouped import GroupedGemm, pack
from perfmodel.kernels.launch import CType, Launch
from perfmodel.kernels.tiles import Tile
from perfmodel.kernels.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

ROUTE_LOGITS, GATHER_X, GEMM_X, COMBINE_OUT = 0, 0, 0, 3
"""Arguments that change from call to call, by their index."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The prepared launches for one number of tokens, in their order."""

    route: Launch
    sort: Launch
    gather: Launch | None
    gate_up: Launch
    down: Launch
    combine: Launch


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
        tile: Callable[[float], Tile] | None = None,
    ) -> None:
        """gate_up: [E, 2 I, H], rows alternating as checkpoints have them; down: [E, H, I]; torch tensors on a GPU, packed here.

        renormalise: whether a token's weights sum to 1. router: bf16 [E, H], for calls without logits. tile: from the mean tokens of an
        expert to a `Tile`; by default `tiles.tile_for`. Raises PerfModelError for what does not fit.
        """
        check_layer(gate_up, down, topk, max_tokens, router)
        self.experts, self.hidden, self.inter = down.codes.shape
        self.topk, self.max_tokens, self.router = topk, max_tokens, router
        self._packed = pack(gate_up.fused()), pack(down)
        self._route = routing.ROUTE_RENORMALISED if renormalise else routing.ROUTE
        self._tile = tile
        self._device = down.codes.device
        self._gemms: dict[Tile, tuple[GroupedGemm, GroupedGemm]] = {}
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
            logits = torch.matmul(x, self.router.T).float()
        self._check(x, logits)
        plan = self._plans.get(len(x)) or self.prepare(len(x))
        out = torch.empty_like(x)
        plan.route.set(ROUTE_LOGITS, logits.data_ptr())
        if plan.gather:
            plan.gather.set(GATHER_X, x.data_ptr())
        else:
            plan.gate_up.set(GEMM_X, x.data_ptr())
        plan.combine.set(COMBINE_OUT, out.data_ptr())
        stream = torch.cuda.current_stream(self._device).cuda_stream
        for launch in (plan.route, plan.sort, plan.gather, plan.gate_up, plan.down, plan.combine):
            if launch:
                launch(stream)
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
        mean = tokens * self.topk / min(self.experts, tokens * self.topk)
        tile = self._tile(mean) if self._tile else tiles.tile_for(mean, cubins.architecture_of(_capability(self._device)))
        if tile not in self._gemms:
            gate_up, down = self._packed
            self._gemms[tile] = GroupedGemm(gate_up, epilogue="swiglu", tile=tile), GroupedGemm(down, epilogue="scatter", tile=tile)
        return self._gemms[tile]

    def _allocate(self) -> dict[str, Tensor]:
        import torch

        pairs, device = self.max_tokens * self.topk, self._device
        lists = dict.fromkeys(("experts", "pairs", "rows", "places"), torch.int32) | dict.fromkeys(("weights", "factors"), torch.float32)
        made = {name: torch.zeros(pairs, dtype=dtype, device=device) for name, dtype in lists.items()}
        made["offsets"] = torch.zeros(self.experts + 1, dtype=torch.int32, device=device)
        for name, width in (("gathered", self.hidden), ("inner", self.inter), ("results", self.hidden)):
            made[name] = torch.zeros(pairs, width, dtype=torch.bfloat16, device=device)
        return made

    def _plan(self, tokens: int) -> Plan:
        count = tokens * self.topk
        held = {name: buffer if name == "offsets" else buffer[:count] for name, buffer in self._buffers.items()}
        gate_up, down = self._grouped(tokens)
        if gate_up.gathers:  # x is set for each call; what stands here only has its shape
            source, rows = held["gathered"][:tokens], held["rows"]
        else:
            source, rows = held["gathered"], None
        return Plan(
            route=self._launch(self._route, (-(-tokens // 4), 1), (0, held["experts"], held["weights"]), (tokens, self.experts, self.topk)),
            sort=self._sort(held, count),
            gather=None if gate_up.gathers else self._launch(routing.GATHER, (count, 1), (0, held["rows"], source), (self.hidden,)),
            gate_up=gate_up.prepare(source, held["offsets"], held["inner"], x_rows=rows),
            down=down.prepare(held["inner"], held["offsets"], held["results"], out_rows=held["pairs"], factors=held["factors"]),
            combine=self._launch(
                routing.COMBINE,
                (tokens, -(-self.hidden // (routing.VECTOR * routing.COMBINE_THREADS))),
                (held["results"], 0, 0, 0),
                (self.hidden, self.topk),
            ),
        )

    def _sort(self, held: dict[str, Any], count: int) -> Launch:
        names = ("experts", "weights", "offsets", "pairs", "rows", "factors", "places")
        return self._launch(routing.SORT, (1, 1), [held[name] for name in names], (count, self.experts, self.topk))

    def _launch(self, variant: Any, grid: tuple[int, int], pointers: Any, numbers: tuple[int, ...]) -> Launch:
        """A launch of a kernel of `routing`; pointers: tensors, or 0 where an address is set later or not read."""
        kernel = cubins.load_variant(variant, self._device.index)
        arguments: list[tuple[CType, int]] = [("u64", one if isinstance(one, int) else one.data_ptr()) for one in pointers]
        arguments += [("u32", number) for number in numbers]
        return Launch(kernel, grid, arguments, keep=tuple(pointers))

    def _check(self, x: Tensor, logits: Tensor) -> None:
        operands.check("x", x, "bfloat16", (None, self.hidden), self._device, alignment=16)
        operands.check("logits", logits, "float32", (len(x), self.experts), self._device)
        if not 1 <= len(x) <= self.max_tokens:
            raise PerfModelError(f"must hold 1 to {self.max_tokens} tokens", field="x", value=len(x), mend="Build it with more max_tokens.")


def check_layer(gate_up: Weights, down: Weights, topk: int, max_tokens: int, router: Tensor | None) -> None:
    """Raise PerfModelError, one for each kind of mistake, where the parts of a layer do not fit each other or the kernels."""
    experts, hidden, inter = down.codes.shape
    for name, weights in (("gate_up", gate_up), ("down", down)):
        if not weights.format.endswith("w4a16"):
            raise PerfModelError("the layer takes bf16 activations", field=name, value=weights.format, mend="Use a W4A16 format.")
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


def _capability(device: Any) -> tuple[int, int]:
    import torch

    return torch.cuda.get_device_capability(device)  # type: ignore[no-any-return]
