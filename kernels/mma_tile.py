"""What one warp does with `mma.sync` on a tile: multiply 64 of K, add what another warp has summed, hand the result over transposed.

A warp has `blocks` blocks of 16 weight rows (M) and `columns` tokens (N). Its accumulators are floats: d[(block * columns / 8 + j) * 4 +
2 h + p] is weight row 16 block + r + 8 h and token 8 j + 2 q + p (r = lane // 4, q = lane % 4).

Activations lie in shared memory as [token][64 of K], 128 bytes a token, whose 16-byte pieces are swizzled: piece c of token t is at
c ^ (t % 8), so that neither copies nor `ldmatrix` meet bank conflicts. `matrix_lane` gives the address part of a lane for `ldmatrix`.

Each is one piece of PTX: numba then has one value where there are up to 128 registers, and the assembler schedules all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Literal

from numba import types

from perfmodel.kernels.ptx.asm import U32, Instruction, asm, instruction

ROW_BYTES = 128
"""Of a token in shared memory: 64 bf16."""
LOG2_E = "0f3FB8AA3B"
ONE = "0f3F800000"


def matrix_lane(lane: int, columns: int) -> tuple[int, int]:
    """(bytes to the row, swizzled bytes in it) that `lane` adds to reach its row of the first `ldmatrix` of a tile.

    Of fragment j along K the second is taken xor 32 j; with tiles of 8 tokens, where one `ldmatrix` reads two fragments, xor 64 per pair.
    The four matrices are (tokens 0-7, 8-15) x (K 0-7, 8-15), K first; of tiles of 8 tokens, K 0-7, 8-15, 16-23, 24-31.
    """
    row, matrix = lane % 8, lane // 8
    if columns == 8:
        return row * ROW_BYTES, (matrix ^ row) * 16
    return ((matrix // 2) * 8 + row) * ROW_BYTES, ((matrix % 2) ^ row) * 16


@cache
def multiply(columns: int, blocks: int, half: Literal[0, 1]) -> Callable[..., Any]:
    """An intrinsic `multiply(d, a, row, piece) -> d` that adds the products of K 0-31 or 32-63 of a tile.

    d: accumulators. a: 8 words a block, as `dequant_ampere.HALVES` gives them. row, piece: shared addresses of a lane, by `matrix_lane`.
    PTX ISA 9.7.14.5.14, mma; 9.7.14.5.15, ldmatrix.
    """
    return _multiply(f"multiply_{columns}x{blocks}_half_{half}", _straight(columns, blocks, half), columns, blocks, 8, {})


@cache
def multiply_folded(columns: int, blocks: int, fold: Literal[32, 64]) -> Callable[..., Any]:
    """An intrinsic `multiply(d, a, row, piece, scales) -> d` that adds the products of 64 of K.

    Sums of `fold` of K are made apart and multiplied before they are added to d. a: 16 words a block, as `dequant_ampere.FRAGMENTS` gives
    them. scales: four floats a block, of rows r and r + 8 for K 0-31, then for 32-63 (the first two for all, with a fold of 64).
    """
    scales = {"scales": types.UniTuple(types.float32, 4 * blocks)}
    return _multiply(f"multiply_{columns}x{blocks}_fold_{fold}", _folded(columns, blocks, fold), columns, blocks, 16, scales)


def _multiply(name: str, lines: Iterable[str], columns: int, blocks: int, words: int, more: dict[str, Any]) -> Callable[..., Any]:
    d, a = types.UniTuple(types.float32, blocks * columns // 2), types.UniTuple(types.uint32, words * blocks)
    text = "{ .reg .b32 at, b0, b1, b2, b3;\n" + "\n".join(lines) + " }"
    parameters = {"d": d, "a": a, "row": types.uint32, "piece": types.uint32, **more}
    return instruction(Instruction(name, text, parameters, d, "memory", updates="d"), multiply.__doc__ or "", __name__)


def _straight(columns: int, blocks: int, half: int) -> Iterator[str]:
    """Fragment by fragment along K: few fragments of A are alive at a time."""
    for index in (half,) if columns == 8 else (2 * half, 2 * half + 1):
        for tokens, words in _loads(columns, index):
            yield words
            for step, token_tile, b in tokens:
                for block in range(blocks):
                    yield _mma(_accumulators(columns, block, token_tile), _a(8 * block + 4 * (step % 2)), b)


def _folded(columns: int, blocks: int, fold: int) -> Iterator[str]:
    """Token by token, 16 at a time: few partial sums are alive at a time."""
    tiles = min(2, columns // 8)
    names = [f"s{i}" for i in range(4 * tiles * blocks)]
    yield f".reg .f32 {', '.join(names)};"
    for first in range(0, columns // 8, tiles):
        for half in range(64 // fold):
            yield from (f"mov.f32 {name}, 0f00000000;" for name in names)
            steps = range(half * fold // 16, (half + 1) * fold // 16)
            for pair in range(steps.start // 2, steps.stop // 2) if columns == 8 else steps:
                for tokens, words in _loads(columns, pair, first // 2):
                    yield words
                    for step, token_tile, b in tokens:
                        for block in range(blocks):
                            at = 4 * (block * tiles + token_tile - first)
                            yield _mma(", ".join(names[at : at + 4]), _a(16 * block + 4 * step), b)
            for i, name in enumerate(names):
                block, tile, element = i // (4 * tiles), i // 4 % tiles, i % 4
                target = f"$out[{(block * columns // 8 + first + tile) * 4 + element}]"
                yield f"fma.rn.f32 {target}, {name}, $scales[{4 * block + 2 * half + element // 2}], {target};"


def _loads(columns: int, index: int, only: int | None = None) -> Iterator[tuple[list[tuple[int, int, str]], str]]:
    """The `ldmatrix` of fragment `index` of K (of 8 tokens: of pair `index`), after what each loads: (fragment, tile of tokens, words)."""
    if columns == 8:
        address = f"xor.b32 at, $piece, {64 * index}; add.u32 at, at, $row;"
        loaded = [(2 * index, 0, "b0, b1"), (2 * index + 1, 0, "b2, b3")]
        yield loaded, f"{address} ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{b0, b1, b2, b3}}, [at];"
        return
    address = f"xor.b32 at, $piece, {32 * index}; add.u32 at, at, $row;"
    for sixteen in range(columns // 16) if only is None else (only,):
        loaded = [(index, 2 * sixteen, "b0, b1"), (index, 2 * sixteen + 1, "b2, b3")]
        yield loaded, f"{address} ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{b0, b1, b2, b3}}, [at + {sixteen * 16 * ROW_BYTES}];"


def _mma(d: str, a: str, b: str) -> str:
    return f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{d}}}, {{{a}}}, {{{b}}}, {{{d}}};"


def _accumulators(columns: int, block: int, token_tile: int) -> str:
    first = (block * columns // 8 + token_tile) * 4
    return f"$out[{first}:{first + 4}]"


def _a(first: int) -> str:
    return f"$a[{first}:{first + 4}]"


@asm(r".pragma \22nounroll\22; mov.b32 $out, $counter;", effect="ordered")  # \22 is how LLVM writes a quotation mark
def keep_rolled(counter: U32) -> U32:
    """At the start of a loop's body: `counter`, of which NVVM now does not know how it counts. So nobody unrolls the loop.

    Unrolled, a main loop needs more registers than a small tile may have. PTX ISA 11.4, .pragma.
    """


@asm("mov.b32 $out, $value;", effect="ordered")
def opaque(value: U32) -> U32:
    """`value`, of which NVVM knows nothing: what is computed from it stays where it is used, and takes no registers before."""


@cache
def add_partial(count: int) -> Callable[..., Any]:
    """An intrinsic `add(d, address) -> d`: plus `count` floats in shared memory, 128 bytes apart. PTX ISA 9.7.9.8, ld."""
    lines = [f"ld.shared.f32 t, [$address + {128 * i}]; add.rn.f32 $out[{i}], $out[{i}], t;" for i in range(count)]
    kind = types.UniTuple(types.float32, count)
    text = "{ .reg .f32 t; " + "\n".join(lines) + " }"
    made = Instruction(f"add_partial_{count}", text, {"d": kind, "address": types.uint32}, kind, "memory", updates="d")
    return instruction(made, add_partial.__doc__ or "", __name__)


@cache
def store_partial(count: int) -> Callable[..., Any]:
    """An intrinsic `store(d, address)`: `count` floats to shared memory, 128 bytes apart, for `add_partial`. PTX ISA 9.7.9.11, st."""
    text = "\n".join(f"st.shared.f32 [$address + {128 * i}], $d[{i}];" for i in range(count))
    parameters = {"d": types.UniTuple(types.float32, count), "address": types.uint32}
    return instruction(Instruction(f"store_partial_{count}", text, parameters), store_partial.__doc__ or "", __name__)


@cache
def join_sums(count: int) -> Callable[..., Any]:
    """An intrinsic `join(d, rest, alpha, beta) -> alpha d + beta rest` of `count` floats each. PTX ISA 9.7.3.6, fma."""
    kind = types.UniTuple(types.float32, count)
    lines = [f"mul.rn.f32 t, $rest[{i}], $beta; fma.rn.f32 $out[{i}], $out[{i}], $alpha, t;" for i in range(count)]
    text = "{ .reg .f32 t; " + "\n".join(lines) + " }"
    parameters = {"d": kind, "rest": kind, "alpha": types.float32, "beta": types.float32}
    return instruction(Instruction(f"join_sums_{count}", text, parameters, kind, "none", updates="d"), join_sums.__doc__ or "", __name__)


@cache
def hand_over(columns: int, blocks: int, pitch: int, epilogue: Literal["plain", "swiglu", "scatter"]) -> Callable[..., Any]:
    """An intrinsic `store(d, alpha, address, factors)`: alpha x d as bf16 to rows of shared memory, a token a row of `pitch` bytes.

    plain: the 16 x blocks features of the warp. swiglu: 8 x blocks, silu(gate) x up, gates being rows r and ups rows r + 8 of each block.
    scatter: as plain, times a float for each token in shared memory at `factors`. A lane's `address` is that of token lane // 4, feature
    2 (lane % 4) of the warp; its `factors` that of token 2 (lane % 4). PTX ISA 9.7.14.5.17, movmatrix.
    """
    lines = [".reg .f32 y0, y1, y2, y3, f0, f1, e0; .reg .b32 word;"]
    for block in range(blocks):
        for tile in range(columns // 8):
            lines += _finished(4 * (block * columns // 8 + tile), tile, epilogue)
            for half, pair in enumerate(("y1, y0",) if epilogue == "swiglu" else ("y1, y0", "y3, y2")):
                at = tile * 8 * pitch + (block * 16 if epilogue == "swiglu" else block * 32 + half * 16)
                lines.append(f"cvt.rn.bf16x2.f32 word, {pair}; movmatrix.sync.aligned.m8n8.trans.b16 word, word;")
                lines.append(f"st.shared.b32 [$address + {at}], word;")
    parameters = {
        "d": types.UniTuple(types.float32, blocks * columns // 2),
        "alpha": types.float32,
        "address": types.uint32,
        "factors": types.uint32,
    }
    made = Instruction(f"hand_over_{columns}x{blocks}_{epilogue}", "{ " + "\n".join(lines) + " }", parameters)
    return instruction(made, hand_over.__doc__ or "", __name__)


def _finished(first: int, tile: int, epilogue: str) -> list[str]:
    """y0 .. y3 from four accumulators; swiglu leaves its two in y0, y1."""
    lines = [f"mul.rn.f32 y{i}, $d[{first + i}], $alpha;" for i in range(4)]
    if epilogue == "scatter":
        lines.append(f"ld.shared.v2.f32 {{f0, f1}}, [$factors + {tile * 32}];")
        lines += [f"mul.rn.f32 y{i}, y{i}, f{i % 2};" for i in range(4)]
    if epilogue == "swiglu":
        for gate, up in (("y0", "y2"), ("y1", "y3")):
            lines.append(f"mul.rn.f32 e0, {gate}, {LOG2_E}; neg.f32 e0, e0; ex2.approx.f32 e0, e0; add.rn.f32 e0, e0, {ONE};")
            lines.append(f"rcp.approx.f32 e0, e0; mul.rn.f32 {gate}, {gate}, e0; mul.rn.f32 {gate}, {gate}, {up};")
    return lines
