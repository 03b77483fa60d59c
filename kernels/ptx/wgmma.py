"""Tensor cores of a warpgroup (128 threads, Hopper): `wgmma`, D = A B + D with D in single precision, running beside the threads.

A is 64 x k, B is k x N in shared memory, k is 16 for bfloat16 and 32 for E4M3: 32 bytes either way. Warp `w` of the four holds rows
16 w to 16 w + 15 of A and D, as `mma.py` draws them; D's registers go on, four for each 8 columns.

Registers of a multiplication that still runs must not be touched. The assembler checks this, and where it cannot follow it
serialises all of them (its warning C7512 and the like). So one intrinsic emits fence, multiplications and commit in one piece, with
the accumulators tied from operand to result; wait with `wgmma_wait` before using them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np
from numba import types

from perfmodel.kernels.ptx.asm import Immediate, Instruction, asm, instruction

Element = Literal["bf16", "e4m3"]

SHAPES: dict[Element, tuple[int, str, str]] = {"bf16": (16, "bf16.bf16", ", 0"), "e4m3": (32, "e4m3.e4m3", "")}
"""Element -> k of one wgmma, the types in its name, and the operand that says whether B is transposed (16-bit types only)."""

ROW_BYTES = 128
"""Bytes of K in one row of a shared tile with 128-byte swizzle; one wgmma takes 32 of them."""


def descriptor_base(stride: int = 8 * ROW_BYTES) -> np.uint64:
    """The constant part of the descriptor of a K-major tile with 128-byte swizzle: `base | (shared_address >> 4)` is the whole.

    `stride` is the distance in bytes between groups of eight rows (1,024 if they are dense). The tile must be aligned to 1,024
    bytes; k advances by 32 bytes, 2 in the descriptor. PTX ISA 9.7.15.5.1.2.2, matrix descriptor.
    """
    swizzle_128, leading = 1, 1  # the leading dimension is not used with a swizzle
    return np.uint64((swizzle_128 << 62) | ((stride >> 4) << 32) | (leading << 16))


@cache
def wgmma(
    columns: int, element: Element = "bf16", *, steps: int = 4, blocks: int = 1, a: Literal["registers", "shared"] = "registers"
) -> Callable[..., Any]:
    """An intrinsic `multiply(d, a, b) -> d` that fences, issues `blocks * steps` wgmmas and commits them as one group.

    d: `blocks * columns / 2` floats, block after block of 64 rows.
    a: from registers `blocks * steps * 4` words, steps of a block after each other; from shared memory `blocks` descriptors.
    b: the descriptor of a tile of `columns` rows in shared memory, K-major; step i reads its bytes 32 i to 32 i + 31 of K.

    `columns` (N) is a multiple of 8 up to 256; four steps take a whole 128-byte row. PTX ISA 9.7.15.5.2, wgmma.mma_async.
    """
    if columns % 8 or not 8 <= columns <= 256:
        raise ValueError(f"wgmma has 8 to 256 columns in steps of 8, not {columns}")
    per_block = columns // 2
    accumulators = types.UniTuple(types.float32, blocks * per_block)
    operand = types.UniTuple(types.uint32, blocks * steps * 4) if a == "registers" else types.UniTuple(types.uint64, blocks)
    lines = [*_descriptors("b", "$b", steps)]
    if a == "shared":
        lines += [line for block in range(blocks) for line in _descriptors(f"a{block}_", f"$a[{block}]", steps)]
    lines.append("wgmma.fence.sync.aligned;")
    for block in range(blocks):
        for step in range(steps):
            first = (block * steps + step) * 4
            left = f"{{$a[{first}:{first + 4}]}}" if a == "registers" else f"a{block}_{step}"
            lines.append(_multiply(columns, element, f"$out[{block * per_block}:{(block + 1) * per_block}]", left, f"b{step}", a))
    text = "{\n" + "\n".join([*lines, "wgmma.commit_group.sync.aligned;"]) + "\n}"
    made = Instruction(
        f"wgmma_{element}_n{columns}", text, {"d": accumulators, "a": operand, "b": types.uint64}, accumulators, updates="d", needs="sm_90a"
    )
    return instruction(made, wgmma.__doc__ or "", __name__)


def _descriptors(prefix: str, base: str, steps: int) -> list[str]:
    """Registers `prefix0`, `prefix1`, ... with the descriptors of the steps, 32 bytes of K apart."""
    declared = f".reg .b64 {', '.join(f'{prefix}{step}' for step in range(steps))};"
    return [declared, *(f"add.s64 {prefix}{step}, {base}, {2 * step};" for step in range(steps))]


def _multiply(columns: int, element: Element, accumulators: str, left: str, right: str, a: str) -> str:
    """One wgmma: scale-d 1 (add to D), A and B not negated; where 16-bit operands lie in shared memory, not transposed."""
    k, kinds, transposed = SHAPES[element]
    tail = transposed * (2 if a == "shared" else 1)
    return f"wgmma.mma_async.sync.aligned.m64n{columns}k{k}.f32.{kinds} {{{accumulators}}}, {left}, {right}, 1, 1, 1{tail};"


@asm("wgmma.wait_group.sync.aligned $pending;", needs="sm_90a")
def wgmma_wait(pending: Immediate) -> None:
    """Wait until at most `pending` committed groups of this warpgroup still run. PTX ISA 9.7.15.7.3, wgmma.wait_group."""
