"""The host's side of grouped GEMMs without a GPU: which kernel, which arguments, what is refused and how."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from perfmodel.errors import PerfModelError
from perfmodel.kernels import cubins, grouped, launch, layouts, operands, tiles, wgmma_w4a8
from perfmodel.kernels.grouped import Call, GroupedGemm
from perfmodel.kernels.layer import check_layer
from perfmodel.kernels.levels import Rest
from perfmodel.kernels.mma_w4a16 import PARAMETERS
from perfmodel.kernels.tiles import Tile
from perfmodel.kernels.weights import Weights

EXPERTS, N, K, TOKENS = 3, 256, 128, 10


@dataclass
class Tensor:
    """What the host's side looks at in a torch tensor."""

    shape: tuple[int, ...]
    dtype: str = "torch.bfloat16"
    device: object = "cuda:0"
    pointer: int = 1 << 20
    contiguous: bool = True

    def __len__(self):
        return self.shape[0]

    def data_ptr(self):
        return self.pointer

    def is_contiguous(self):
        return self.contiguous

    def stride(self):
        return (1,)

    def element_size(self):
        return 1 if "float8" in self.dtype else 2


CUDA = SimpleNamespace(type="cuda", index=0)


def w4a16(form="mxfp4-w4a16", n=N, k=K, **changes):
    tile = Tensor((EXPERTS, -(-n // 128), -(-k // 64), 4352), "torch.uint8", CUDA, 100)
    packed = layouts.W4A16(form, n, k, 128, tile, Tensor((EXPERTS,), "torch.float32", CUDA, 200))
    return replace(packed, **changes)


def w4a8():
    tile = Tensor((EXPERTS, 2, 1, 8704), "torch.uint8", CUDA, 100)
    return wgmma_w4a8.W4A8("mxfp4-w4a8", N, K, 128, tile, Tensor((EXPERTS, N), "torch.float32", CUDA, 200), binades=12)


def rest():
    return Rest(*(Tensor((1,), "torch.int32", CUDA, 1000 + i) for i in range(4)), binades=134)


def call(**changes):
    made = {
        "x": Tensor((TOKENS, K), device=CUDA, pointer=3200), "offsets": Tensor((EXPERTS + 1,), "torch.int32", CUDA, 400),
        "out": Tensor((TOKENS, N), device=CUDA, pointer=4800),
    }  # fmt: skip
    return Call(**(made | changes))


def int_list(pointer=600):
    return Tensor((TOKENS,), "torch.int32", CUDA, pointer)


def float_list(pointer=700):
    return Tensor((TOKENS,), "torch.float32", CUDA, pointer)


@pytest.fixture
def hopper(monkeypatch):
    """Kernels are not loaded, launches only remember."""
    monkeypatch.setattr(grouped, "arch_of", lambda device: "sm_90a")
    monkeypatch.setattr(cubins, "load_variant", lambda variant, device: variant)
    monkeypatch.setattr(cubins, "resident_ctas", lambda kernel, device: 132)
    monkeypatch.setattr(launch, "tensor_map", lambda *arguments, **keywords: (arguments, keywords))
    monkeypatch.setattr(operands, "bytes_on", lambda data, device: SimpleNamespace(data_ptr=lambda: 9, data=data))
    monkeypatch.setattr(operands, "counting", lambda count, like: int_list(800))
    monkeypatch.setattr(launch, "Launch", lambda *arguments, keep: SimpleNamespace(arguments=arguments, keep=keep))


class TestTiles:
    @pytest.mark.parametrize(
        ("tokens", "arch", "tile"),
        [
            (0.5, "sm_90a", Tile("decode", 8)), (8, "sm_90a", Tile("decode", 8)), (9, "sm_90a", Tile("decode", 16)),
            (17, "sm_90a", Tile("wgmma", 32)),
            (64, "sm_90a", Tile("wgmma", 64)), (65, "sm_90a", Tile("wgmma", 128)), (1e9, "sm_90a", Tile("wgmma", 256)),
            (1e9, "sm_80", Tile("mma", 128)), (20, "sm_120a", Tile("mma", 32)),
        ],
    )  # fmt: skip
    def test_table(self, tokens, arch, tile):
        assert tiles.tile_for(tokens, arch) == tile

    def test_every_tile_of_the_table_is_there(self):
        for arch, table in (("sm_90a", tiles.WGMMA_TABLE), ("sm_80", tiles.MMA_TABLE)):
            for epilogue in ("plain", "swiglu", "scatter"):
                assert {tile for _, tile in table} <= {choice.tile for choice in tiles.menu("mxfp4-w4a16", epilogue, arch)}

    def test_menu_holds_what_it_says(self):
        found = tiles.menu("nvfp4-w4a16", "swiglu", "sm_90a")
        assert {choice.kind for choice in found} == {"mma", "decode", "wgmma"}
        assert all("nvfp4" in choice.variant.name and "swiglu" in choice.variant.name for choice in found)
        assert {choice.kind for choice in tiles.menu("nvfp4-w4a16", "swiglu", "sm_89")} == {"mma"}

    @pytest.mark.parametrize(
        ("weights", "tile", "name"),
        [
            (w4a16(), Tile("wgmma", 64), "numba-wgmma-mxfp4-w4a16-n64"),
            (w4a16(), Tile("wgmma", 8), "numba-wgmma-mxfp4-w4a16-n16"),
            (w4a16("nf4-w4a16", group=64), Tile("wgmma", 64), "numba-mma-nf4-w4a16-n64"),
            (w4a16("int4-w4a16", group=32), Tile("wgmma", 8), "numba-mma-int4-w4a16-n16-g32"),
            (w4a16(rest=rest()), Tile("wgmma", 256), "numba-mma-mxfp4-w4a16-n16-rest"),
            (w4a8(), Tile("mma", 8), "numba-wgmma-mxfp4-w4a8-n16"),
        ],
    )
    def test_the_kernel_that_can(self, weights, tile, name):
        assert tiles.choose(weights, "plain", tile, "sm_90a").variant.name == name

    def test_what_no_kernel_takes(self):
        with pytest.raises(PerfModelError, match="epilogue swiglu, in groups of 32"):
            tiles.choose(w4a16("nf4-w4a16", group=32), "swiglu", Tile("mma", 8), "sm_90a")
        with pytest.raises(PerfModelError, match="epilogue plain, with scales over more than 134 binades"):
            tiles.choose(w4a16("nf4-w4a16", rest=rest()), "plain", Tile("mma", 8), "sm_90a")
        with pytest.raises(PerfModelError, match=r"no kernel for sm_80.*mxfp4-w4a8"):
            tiles.choose(w4a8(), "plain", Tile("mma", 8), "sm_80")


@pytest.mark.usefixtures("hopper")
class TestArguments:
    """Against what `build` of each kernel documents."""

    def test_mma(self):
        weights = w4a16(rest=None)
        found = GroupedGemm(weights, tile=Tile("mma", 8)).prepare(*(getattr(call(), name) for name in ("x", "offsets", "out")))
        kernel, grid, arguments = found.arguments
        assert kernel.name == "numba-mma-mxfp4-w4a16-n8"
        assert grid == (8, 1)  # 2 row tiles x at most 10 // 8 + 3 tiles of tokens, fewer than 132
        values = dict(zip(PARAMETERS, arguments, strict=True))
        assert {name: value for name, (_, value) in values.items() if value} == {
            "x": 3200, "weights": 100, "alphas": 200, "offsets": 400, "out": 4800, "experts": 3, "n": N, "k": K, "row_tiles": 2,
        }  # fmt: skip
        assert [kind for kind, _ in arguments] == ["u64"] * 12 + ["u32"] * 5

    def test_mma_that_gathers_gets_a_list(self):
        gemm = GroupedGemm(w4a16(), epilogue="swiglu", tile=Tile("mma", 8))
        assert gemm.gathers
        out = Tensor((TOKENS, N // 2), device=CUDA)
        for given, rows in ((None, 800), (int_list(), 600)):
            found = gemm.prepare(call().x, call().offsets, out, x_rows=given)
            assert dict(zip(PARAMETERS, found.arguments[2], strict=True))["x_rows"] == ("u64", rows)

    def test_wgmma(self):
        gemm = GroupedGemm(w4a16(), epilogue="scatter", tile=Tile("wgmma", 64))
        one = call()
        found = gemm.prepare(one.x, one.offsets, one.out, out_rows=int_list(), factors=float_list())
        values = [9, 100, 200, 400, 4800, 600, 700, EXPERTS, N, 2, 2]
        assert found.arguments[2] == [("u64", value) for value in values[:7]] + [("u32", value) for value in values[7:]]
        assert found.keep[2].data == ((3200, TOKENS, K), {"box": (64, 64), "element_bytes": 2})

    def test_w4a8(self):
        gemm = GroupedGemm(w4a8(), tile=Tile("wgmma", 256))
        x = Tensor((TOKENS, K), "torch.float8_e4m3fn", CUDA, 3200)
        found = gemm.prepare(x, call().offsets, call().out, token_scale=float_list())
        values = [9, 100, 200, 700, 400, 4800, 0, 0, EXPERTS, N, 1, 2]
        assert [value for _, value in found.arguments[2]] == values
        assert found.keep[2].data[1] == {"box": (256, 128), "element_bytes": 1}

    @pytest.mark.parametrize(
        ("weights", "keywords"),
        [(w4a16(), {}), (w4a8(), {"token_scale": float_list()}), (w4a16("nf4-w4a16", group=64), {})],
        ids=["w4a16", "w4a8", "nf4"],
    )
    @pytest.mark.parametrize("kind", ["mma", "wgmma"])
    def test_as_many_as_the_kernel_takes(self, weights, keywords, kind):
        pytest.importorskip("numba_cuda", reason="needs the extra `kernels`")
        gemm = GroupedGemm(weights, tile=Tile(kind, 64))
        x = Tensor((TOKENS, K), "torch.float8_e4m3fn" if keywords else "torch.bfloat16", CUDA)
        kernel, _, arguments = gemm.prepare(x, call().offsets, call().out, **keywords).arguments
        signature = kernel.build().signature
        assert [{"u64": "uint64", "u32": "uint32"}[kind] for kind, _ in arguments] == [str(one) for one in signature]


@pytest.mark.usefixtures("hopper")
class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"x": Tensor((TOKENS, K), "torch.float16", CUDA)}, r"x: must be bfloat16 \(got 'float16'\)"),
            ({"x": Tensor((TOKENS, K + 8), device=CUDA)}, r"x: must have the shape \[any, 128\]"),
            ({"x": Tensor((TOKENS, K), device="cpu")}, "x: must be on .*cuda.*'cpu'"),
            ({"x": Tensor((TOKENS, K), device=CUDA, contiguous=False)}, r"x: must be contiguous.*x\.contiguous\(\)"),
            ({"x": Tensor((TOKENS, K), device=CUDA, pointer=8)}, "x: must begin at a multiple of 16 bytes"),
            ({"x": np.zeros((TOKENS, K))}, "x: must be a torch tensor"),
            ({"x": Tensor((0, K), device=CUDA), "out": Tensor((0, N), device=CUDA)}, "at least one token"),
            ({"offsets": Tensor((EXPERTS,), "torch.int32", CUDA)}, r"offsets: must have the shape \[4\]"),
            ({"offsets": Tensor((EXPERTS + 1,), "torch.int64", CUDA)}, r"offsets: must be int32.*to\(torch.int32\)"),
            ({"out": Tensor((TOKENS, N // 2), device=CUDA)}, r"out: must have the shape \[10, 256\]"),
            ({"out_rows": int_list()}, "out_rows: belongs to the epilogue scatter"),
            ({"x_rows": int_list()}, "x_rows: numba-wgmma.* takes tokens in the order of experts"),
            ({"token_scale": float_list()}, "token_scale: belongs to W4A8"),
        ],
    )
    def test_calls(self, changes, message):
        gemm = GroupedGemm(w4a16(), tile=Tile("wgmma", 64))
        with pytest.raises(PerfModelError, match=message):
            grouped.check_call(gemm, call(**changes))

    def test_scatter_without_its_lists(self):
        gemm = GroupedGemm(w4a16(), epilogue="scatter", tile=Tile("wgmma", 64))
        with pytest.raises(PerfModelError, match="factors: belongs to the epilogue scatter, which needs it"):
            grouped.check_call(gemm, call(out_rows=int_list()))

    @pytest.mark.parametrize(
        ("weights", "epilogue", "message"),
        [
            (w4a16(n=252), "plain", "N: must be a multiple of 8"),
            (w4a16(n=248), "swiglu", "N: must be a multiple of 16"),
            (w4a16(k=100), "plain", "K: must be a multiple of 8"),
            (replace(w4a8(), k=136), "plain", "K: must be a multiple of 16"),
            (w4a16(rows=64), "plain", "rows: kernels take tiles of 128"),
            (w4a16(tiles=Tensor((513, 2, 2, 4352), device=CUDA)), "plain", "experts: kernels take at most 512"),
            (w4a16(), "swigloo", "epilogue: is no epilogue"),
            (replace(w4a8(), rest=rest()), "plain", "Use the W4A16 kernel"),
        ],
    )
    def test_weights(self, weights, epilogue, message):
        with pytest.raises(PerfModelError, match=message):
            GroupedGemm(weights, epilogue=epilogue, tile=Tile("wgmma", 64))


def test_weights_must_be_on_a_gpu():
    with pytest.raises(PerfModelError, match=r'must be on a GPU \(got .*weights.to_torch\("cuda"\)'):
        grouped.arch_of(SimpleNamespace(type="cpu"))


class TestLayerChecks:
    def weights(self, shape, form="mxfp4-w4a16"):
        return Weights(form, np.zeros(shape, np.uint8), np.zeros(1))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"gate_up": (4, 128, 64)}, r"gate_up: must be \[4, 64, 64\]"),
            ({"topk": 5}, r"topk: must lie in 1 \.\. 4"),
            ({"topk": 0}, "topk"),
            ({"max_tokens": 0}, "max_tokens: must be at least 1"),
            ({"gate_up": (513, 64, 64), "down": (513, 64, 32)}, "experts: at most 512"),
            ({"gate_up": (4, 40, 64), "down": (4, 64, 20)}, "multiples of 8"),
            ({"router": Tensor((4, 64), "torch.float32", "cpu")}, "router"),
        ],
    )
    def test_refused(self, changes, message):
        given = {"gate_up": (4, 64, 64), "down": (4, 64, 32), "topk": 2, "max_tokens": 8, "router": None} | changes
        parts = {name: self.weights(given[name]) for name in ("gate_up", "down")}
        with pytest.raises(PerfModelError, match=message):
            check_layer(**(given | parts))

    def test_mixed_activations(self):
        with pytest.raises(PerfModelError, match="takes other activations than down's mxfp4-w4a16"):
            check_layer(self.weights((4, 64, 64), "mxfp4-w4a8"), self.weights((4, 64, 32)), 2, 8, None)
