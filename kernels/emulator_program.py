"""Reads PTX into a list of statements, and holds what `emulator` works on: memory, errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

GAP = 256
"""Bytes between buffers, which nothing may touch."""
POISON = 0xFF
"""What fresh memory is filled with: NaN in every floating-point type."""


class EmulationError(Exception):
    """The kernel did what a GPU would punish: an address out of bounds or misaligned, threads missing at a barrier."""


class Memory:
    """Global memory: buffers apart from each other."""

    def __init__(self, size: int = 1 << 24) -> None:
        self.bytes = np.full(size, POISON, np.uint8)
        self.owned = np.zeros(size, bool)
        self.top = GAP

    def room(self, size: int) -> int:
        """Address of a fresh buffer, aligned to 256 bytes. Raises EmulationError where the memory is full."""
        address, self.top = self.top, self.top + -(-size // GAP) * GAP + GAP
        if self.top > len(self.bytes):
            raise EmulationError(f"{self.top} bytes do not fit into {len(self.bytes)}")
        self.owned[address : address + size] = True
        return address

    def place(self, array: NDArray[Any]) -> int:
        """Address of a copy of `array`."""
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        address = self.room(raw.size)
        self.bytes[address : address + raw.size] = raw
        return address

    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """The array at an address."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self.bytes[address : address + size].copy().view(dtype).reshape(shape)


@dataclass(frozen=True)
class Statement:
    """One instruction of PTX: `@guard opcode operands`."""

    opcode: str
    operands: tuple[str, ...]
    guard: str | None
    text: str


def parse(ptx: str) -> tuple[list[Statement], dict[str, int], list[str]]:
    """(statements, label -> index, names of parameters) of the one kernel in some PTX."""
    ptx = re.sub(r"//[^\n]*", "", ptx)
    head = re.search(r"\.entry\s+[\w$]+\s*\(([^)]*)\)[^{]*\{", ptx)
    if head is None:
        raise EmulationError("there is no kernel in this PTX")
    parameters = re.findall(r"\.param\s+\.\w+\s+([\w$]+)", head.group(1))
    statements: list[Statement] = []
    labels: dict[str, int] = {}
    for piece in re.split(r";|(?<=:)\s", ptx[head.end() :]):
        text = " ".join(piece.split()).lstrip("{} ")
        if text.endswith(":") and " " not in text:
            labels[text[:-1]] = len(statements)
        elif text and not text.startswith("."):
            statements.append(_statement(text))
    return statements, labels, parameters


def _statement(text: str) -> Statement:
    guard = None
    body = text
    if body.startswith("@"):
        guard, body = body[1:].split(" ", 1)
    opcode, _, rest = body.partition(" ")
    operands = tuple(part.strip() for part in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest))
    return Statement(opcode, operands, guard, text)
