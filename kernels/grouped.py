"""The host's side of a grouped GEMM on torch tensors: packed weights in, a prepared launch out.

    gemm = GroupedGemm(pack(weights.to_torch("cuda").fused()), epilogue="swiglu", tile=tile_for(64))
    launch = gemm.prepare(x, offsets, out)           # checks everything, packs the arguments
    launch(torch.cuda.current_stream().cuda_stream)  # a few microseconds of the host; capturable in a CUDA graph

Tokens lie sorted by expert: those of expert e are offsets[e] .. offsets[e + 1] - 1, any number of them, none too. The values of offsets
and rows stay on the GPU and are not looked at: that would make the host wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.errors import PerfModelError
from perfmodel.kernels import cubins, decode, launch, operands, tiles, wgmma_w4a8
from perfmodel.kernels import weights as checkpoint
from perfmodel.kernels.layouts import W4A16
from perfmodel.kernels.layouts_w4a8 import W4A8
from perfmodel.kernels.mma_w4a16 import PARAMETERS, POINTERS
from perfmodel.kernels.routing import MAX_EXPERTS
from perfmodel.kernels.tiles import Choice, Tile
from perfmodel.kernels.wgmma_config import TILE_K

if TYPE_CHECKING:
    from torch import Tensor

Epilogue = Literal["plain", "swiglu", "scatter"]
Argument = tuple[launch.CType, int]
Packed = W4A16 | W4A8


@dataclass(frozen=True, eq=False)
class Call:
    """The tensors of one grouped GEMM; see `GroupedGemm.prepare`."""

    x: Tensor
    offsets: Tensor
    out: Tensor
    x_rows: Tensor | None = None
    out_rows: Tensor | None = None
    factors: Tensor | None = None
    token_scale: Tensor | None = None

    @property
    def tokens(self) -> int:
        """Rows that are multiplied: a token counts for each of its experts."""
        return len(self.x if self.x_rows is None else self.x_rows)


class GroupedGemm:
    """y[t] = W[e] x[t] for the tokens t of each expert e, by one of our kernels.

    epilogue: "plain"; "swiglu", silu(gate) x up of rows packed from `Weights.fused`; "scatter", each result times a factor, to a row of
    its own. tile: which kernel is wanted (`tiles.tile_for`); where there is none the nearest one is taken, and `name` says which.
    """

    def __init__(self, weights: Packed, *, epilogue: Epilogue = "plain", tile: Tile) -> None:
        """weights: packed tensors on a GPU. Raises PerfModelError where no kernel takes them."""
        check_weights(weights, epilogue)
        self.weights, self.epilogue = weights, epilogue
        device = weights.tiles.device
        self.arch = arch_of(device)
        self.choice: Choice = tiles.choose(weights, epilogue, tile, self.arch)
        self._kernel = cubins.load_variant(self.choice.variant, device.index)
        self._ctas = cubins.resident_ctas(self._kernel, device.index)

    @property
    def name(self) -> str:
        """The kernel's name in `perfmodel kernels list`."""
        return self.choice.variant.name

    @property
    def gathers(self) -> bool:
        """Whether the kernel fetches the rows of x itself, wherever they lie."""
        return self.choice.gathers

    @property
    def width(self) -> int:
        """Features of the output."""
        return self.weights.n // 2 if self.epilogue == "swiglu" else self.weights.n

    def prepare(
        self,
        x: Tensor,
        offsets: Tensor,
        out: Tensor,
        *,
        x_rows: Tensor | None = None,
        out_rows: Tensor | None = None,
        factors: Tensor | None = None,
        token_scale: Tensor | None = None,
    ) -> launch.Launch:
        """A launch over these tensors, which must live as long as it is used; it holds them.

        x: bf16 [T, K]; offsets: i32 [E + 1], ending in T; out: bf16 [T, width]. With x_rows, i32 [T], token t is row x_rows[t] of x (only
        where `gathers`). Scatter: token t goes to row out_rows[t] of out, i32 [T], times factors[t], f32 [T]. W4A8: x is E4M3 and token t
        stands for token_scale[t] x it, f32 [T]. Not to be called while a graph is captured. Raises PerfModelError for each tensor that
        does not fit.
        """
        call = Call(x, offsets, out, x_rows, out_rows, factors, token_scale)
        check_call(self, call)
        grid = min(self._ctas, self._most_tiles(call.tokens)), 1
        if isinstance(self.weights, W4A16) and self.choice.kind != "wgmma":
            if self.gathers and x_rows is None:
                call = replace(call, x_rows=operands.counting(len(x), like=offsets))
            if isinstance(self.choice.config, decode.Config):  # it has a CTA for each tile
                grid = self._most_tiles(call.tokens), 1
            names = decode.PARAMETERS if self.choice.kind == "decode" else PARAMETERS
            return launch.Launch(self._kernel, grid, mma_arguments(self.weights, call, names), keep=(self.weights, call))
        box = self.choice.columns, TILE_K[self.weights.format]
        described = launch.tensor_map(x.data_ptr(), *x.shape, box=box, element_bytes=x.element_size())
        held = operands.bytes_on(described, x.device)
        return launch.Launch(self._kernel, grid, wgmma_arguments(self.weights, call, held.data_ptr()), keep=(self.weights, call, held))

    def _most_tiles(self, tokens: int) -> int:
        """Tiles that there can be at most, however the tokens fall on experts."""
        experts, row_tiles = self.weights.tiles.shape[:2]
        return min(tokens, tokens // self.choice.columns + experts) * row_tiles


def pack(weights: checkpoint.Weights) -> Packed:
    """Weights in the tiles of the kernels of their format. Raises PerfModelError for weights that no kernel multiplies rightly."""
    return wgmma_w4a8.pack(weights) if weights.format == wgmma_w4a8.FORMAT else checkpoint.pack(weights)


def arch_of(device: Any) -> str:
    """Architecture of a torch device. Raises PerfModelError for a CPU and for GPUs without kernels."""
    if device.type != "cuda":
        raise PerfModelError("must be on a GPU", field="weights", value=str(device), mend='Move them there: weights.to_torch("cuda").')
    import torch

    return cubins.architecture_of(torch.cuda.get_device_capability(device))


def check_weights(weights: Packed, epilogue: str) -> None:
    """Raise PerfModelError where no kernel takes the shape: N, K, experts, rows of a tile."""
    experts = weights.tiles.shape[0]
    if epilogue not in ("plain", "swiglu", "scatter"):
        raise PerfModelError("is no epilogue", field="epilogue", value=epilogue, mend="Choose plain, swiglu or scatter.")
    if weights.rows != 128:
        raise PerfModelError("kernels take tiles of 128 weight rows", field="rows", value=weights.rows, mend="Pack with rows=128.")
    multiple = 16 if epilogue == "swiglu" else 8
    if weights.n % multiple:
        raise PerfModelError(f"must be a multiple of {multiple}", field="N", value=weights.n, mend="Pad the weights with zero rows.")
    multiple = 16 if isinstance(weights, W4A8) else 8
    if weights.k % multiple:
        raise PerfModelError(f"must be a multiple of {multiple}", field="K", value=weights.k, mend="Pad weights and tokens with zeros.")
    if isinstance(weights, W4A8):
        wgmma_w4a8.check_weights(weights)
    if experts > MAX_EXPERTS:
        raise PerfModelError(f"kernels take at most {MAX_EXPERTS}", field="experts", value=experts, mend="Split the experts over calls.")


def check_call(gemm: GroupedGemm, call: Call) -> None:
    """Raise PerfModelError, one for each kind of mistake, where tensors do not fit the weights or each other."""
    weights, tokens = gemm.weights, call.tokens
    device = weights.tiles.device
    if call.x_rows is not None and not gemm.gathers:
        raise PerfModelError(
            f"{gemm.name} takes tokens in the order of experts", field="x_rows", mend="Gather the rows of x first, and leave x_rows away."
        )
    scatters = gemm.epilogue == "scatter"
    for name, tensor in (("out_rows", call.out_rows), ("factors", call.factors)):
        if (tensor is not None) != scatters:
            raise PerfModelError("belongs to the epilogue scatter, which needs it", field=name, value=gemm.epilogue)
    eight_bits = isinstance(weights, W4A8)
    if (call.token_scale is not None) != eight_bits:
        raise PerfModelError("belongs to W4A8, which needs it", field="token_scale", value=weights.format)
    operands.check("x", call.x, "float8_e4m3fn" if eight_bits else "bfloat16", (None, weights.k), device, alignment=16)
    operands.check("offsets", call.offsets, "int32", (weights.tiles.shape[0] + 1,), device)
    operands.check("out", call.out, "bfloat16", (None if scatters else tokens, gemm.width), device, alignment=16)
    for name, tensor, dtype in (
        ("x_rows", call.x_rows, "int32"),
        ("out_rows", call.out_rows, "int32"),
        ("factors", call.factors, "float32"),
        ("token_scale", call.token_scale, "float32"),
    ):
        if tensor is not None:
            operands.check(name, tensor, dtype, (tokens,), device)
    if not tokens:
        raise PerfModelError("there must be at least one token", field="x", value=tuple(call.x.shape), mend="Skip the call.")


def wgmma_arguments(weights: Packed, call: Call, tensor_map: int) -> list[Argument]:
    """Of `wgmma_w4a16.build`, or for W4A8 of `wgmma_w4a8.build`, in their order."""
    scales = (weights.row_scale, call.token_scale) if isinstance(weights, W4A8) else (weights.alpha,)
    pointers = (weights.tiles, *scales, call.offsets, call.out, call.out_rows, call.factors)
    experts, row_tiles, k_tiles, _ = weights.tiles.shape
    made: list[Argument] = [("u64", tensor_map)]
    made += [("u64", operands.address(pointer)) for pointer in pointers]
    made += [("u32", number) for number in (experts, weights.n, k_tiles, row_tiles)]
    return made


def mma_arguments(weights: W4A16, call: Call, names: Sequence[str] = PARAMETERS) -> list[Argument]:
    """Of `mma_w4a16.build` or `decode.build`, by the names of its parameters."""
    rest = weights.rest
    pointers: Mapping[str, Tensor | None] = {
        "x": call.x, "weights": weights.tiles, "group_scales": weights.group_scales, "alphas": weights.alpha, "offsets": call.offsets,
        "out": call.out, "x_rows": call.x_rows, "out_rows": call.out_rows, "factors": call.factors, "rest_tiles": rest and rest.tiles,
        "rest_start": rest and rest.start, "rest_k_tile": rest and rest.k_tile,
    }  # fmt: skip
    experts, row_tiles = weights.tiles.shape[:2]
    numbers = {"experts": experts, "n": weights.n, "k": weights.k, "row_tiles": row_tiles, "group_shift": weights.group_shift}
    return [("u64", operands.address(pointers[name])) if name in POINTERS else ("u32", numbers[name]) for name in names]
