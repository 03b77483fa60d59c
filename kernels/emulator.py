"""Runs the PTX of a kernel on a machine without a GPU, so that its index arithmetic, layouts and waits can be tested anywhere.

It executes what NVVM emitted, CTA after CTA, all threads of a warp (or of the CTA) at a time in NumPy: registers hold bits. It is strict:
addresses must be aligned and lie inside a buffer; a `cp.async` lands as late as the kernel allows; shared memory starts as NaN; barriers
and warp-wide instructions must be met by all threads. It knows the instructions of kernels built on `mma.sync`; there is no timing.

    memory = Memory()
    arguments = [memory.place(x), memory.room(y.nbytes), ..., 64]
    Machine(ptx, memory).launch(grid, threads, shared_bytes, arguments)
    y = memory.read(arguments[1], y.shape, y.dtype)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels.emulator_operations import compute, repack, warp_wide
from perfmodel.kernels.emulator_program import POISON, EmulationError, Memory, Statement, parse

Bits = NDArray[Any]
SHARED_START = 1040
"""Shared address at which dynamic shared memory begins: aligned to 16 bytes and no more."""


@dataclass
class Group:
    """Threads that go together: a warp, or all of a CTA."""

    threads: NDArray[np.int64]
    registers: dict[str, Bits] = field(default_factory=dict)
    counter: NDArray[np.int64] = field(init=False)
    waiting: NDArray[np.bool_] = field(init=False)
    committed: NDArray[np.int64] = field(init=False)
    copies: list[tuple[Bits, Bits, Bits, Bits]] = field(default_factory=list)
    """(threads, shared address, bytes given, group) of cp.async that have not landed."""

    def __post_init__(self) -> None:
        self.counter = np.zeros(len(self.threads), np.int64)
        self.waiting = np.zeros(len(self.threads), bool)
        self.committed = np.zeros(len(self.threads), np.int64)


DONE = np.iinfo(np.int64).max
"""Program counter of a thread that has returned."""


def _whole_warps(act: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which warps take part in an instruction of whole warps. Raises EmulationError where some lanes do and some do not."""
    lanes = act.reshape(-1, 32)
    warps: NDArray[np.bool_] = np.asarray(lanes.any(axis=1))
    if np.any(warps != lanes.all(axis=1)):
        raise EmulationError("a lane of the warp is missing")
    return warps


class Machine:
    """Executes one kernel."""

    def __init__(self, ptx: str, memory: Memory) -> None:
        self.statements, self.labels, self.parameters = parse(ptx)
        self.memory = memory
        self.conflicts: dict[str, int] = {}
        """Opcode -> most lanes, or 16-byte rows, that met in one bank of shared memory."""

    def launch(self, grid: int, threads: int, shared_bytes: int, arguments: Sequence[int], *, lockstep: bool = True) -> None:
        """Run all CTAs. lockstep: all threads of a CTA together; else each warp as far as it comes, the last first (finds races).

        Raises EmulationError.
        """
        if len(arguments) != len(self.parameters):
            raise EmulationError(f"{len(self.parameters)} arguments, not {len(arguments)}")
        self.arguments = dict(zip(self.parameters, arguments, strict=True))
        self.sizes = {"%ntid.x": threads, "%nctaid.x": grid, "%dynamic_smem_size": shared_bytes}
        for cta in range(grid):
            self.sizes["%ctaid.x"] = cta
            self.shared = np.full(SHARED_START + shared_bytes, POISON, np.uint8)
            every = np.arange(threads)
            self._run([Group(part) for part in ([every] if lockstep else np.split(every, threads // 32)[::-1])])

    def _run(self, groups: list[Group]) -> None:
        while True:
            for group in groups:
                self._advance(group)
            alive = [group for group in groups if (group.counter != DONE).any()]
            if not alive:
                self._end(groups)
                return
            places = {int(place) for group in alive for place in group.counter[group.counter != DONE]}
            if len(places) > 1:
                raise EmulationError(f"threads wait at different barriers: {[self.statements[place].text for place in places]}")
            for group in alive:
                group.counter[group.waiting] += 1
                group.waiting[:] = False

    def _end(self, groups: list[Group]) -> None:
        """The CTA has ended: no copy may be under way, for nobody knows what memory it meets."""
        if any(copy[0].any() for group in groups for copy in group.copies):
            raise EmulationError("a cp.async is still under way where the CTA ends")

    def _advance(self, group: Group) -> None:
        """Run the threads of a group until all wait or have returned; of those that go different ways, the ones behind first."""
        while True:
            ready = np.where(group.waiting, DONE, group.counter)
            place = int(ready.min())
            if place == DONE:
                return
            here = ready == place
            statement = self.statements[place]
            try:
                self._execute(group, statement, here)
            except (EmulationError, KeyError, IndexError, ValueError) as error:
                raise EmulationError(f"{statement.text}: {type(error).__name__} {error}") from error

    def _execute(self, group: Group, statement: Statement, here: NDArray[np.bool_]) -> None:
        act = here
        if statement.guard is not None:
            flag = group.registers[statement.guard.lstrip("!")]
            act = here & (~flag if statement.guard.startswith("!") else flag)
        kind = statement.opcode.split(".")[0]
        if kind == "bra":
            group.counter[here] += 1
            group.counter[act] = self.labels[statement.operands[0]]
            return
        if kind == "ret":
            group.counter[act] = DONE
            return
        if kind in ("bar", "barrier"):
            group.waiting |= here
            return
        if act.any():
            self._perform(kind, group, statement, act)
        group.counter[here] += 1

    def _perform(self, kind: str, group: Group, statement: Statement, act: NDArray[np.bool_]) -> None:
        opcode, operands = statement.opcode, statement.operands
        if kind in ("ld", "st"):
            self._access(group, opcode, operands, act)
        elif kind == "cp":
            self._copy(group, opcode, operands, act)
        elif kind == "ldmatrix":
            self._load_matrix(group, operands, act)
        elif kind in ("mma", "movmatrix", "shfl", "vote"):
            _whole_warps(act)
            self._assign(group, operands[0], warp_wide(opcode, [self._values(group, part) for part in operands[1:]]), act)
        elif kind == "mov" and "{" in "".join(operands):
            self._assign(
                group, operands[0], repack(self._values(group, operands[1]), len(operands[0].split(",")), opcode.split(".")[-1]), act
            )
        else:
            self._assign(group, operands[0], [compute(opcode, [self._value(group, part) for part in operands[1:]])], act)

    def _value(self, group: Group, operand: str) -> Any:
        """Of a register: its bits, an array; of a number, a Python integer or the bits of a float; of a name, its address."""
        if operand in group.registers:
            return group.registers[operand]
        if operand == "%tid.x":
            return group.threads.astype(np.uint32)
        if operand in self.sizes:
            return self.sizes[operand]
        if match := re.fullmatch(r"0f([0-9A-Fa-f]{8})", operand):
            return int(match.group(1), 16)
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", operand):
            return int(operand.rstrip("U"), 0)
        if operand.startswith("_cudapy_smem"):
            return SHARED_START
        raise EmulationError(f"{operand} has no value")

    def _values(self, group: Group, operand: str) -> list[Any]:
        if operand.startswith("{"):
            return [self._value(group, part.strip()) for part in operand[1:-1].split(",")]
        return [self._value(group, operand)]

    def _assign(self, group: Group, target: str, values: list[Any], act: NDArray[np.bool_]) -> None:
        names = [part.strip() for part in target.strip("{}").split("|")[0].split(",")]
        for name, value in zip(names, values, strict=True):
            value = np.broadcast_to(np.asarray(value), act.shape)
            old = group.registers.get(name)
            if old is None or act.all():
                group.registers[name] = value.copy()
            else:
                group.registers[name] = np.where(act, value, old).astype(value.dtype)

    def _address(self, group: Group, operand: str) -> Bits:
        """Of `[register]` or `[register + offset]`, int64."""
        base, _, offset = operand.strip("[] ").replace(" ", "").partition("+")
        return np.asarray(self._value(group, base)).astype(np.int64) + int(offset or "0", 0)

    def _access(self, group: Group, opcode: str, operands: tuple[str, ...], act: NDArray[np.bool_]) -> None:
        parts = opcode.split(".")
        if parts[1] == "param":
            value = self.arguments[operands[1].strip("[]")]
            self._assign(group, operands[0], [np.uint64(value) if parts[-1] == "u64" else np.uint32(value)], act)
            return
        count = {"v2": 2, "v4": 4}.get(parts[-2], 1)
        width = int(parts[-1][1:]) // 8
        dtype = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[width]
        is_load = parts[0] == "ld"
        address = np.broadcast_to(self._address(group, operands[1 if is_load else 0]), act.shape)
        memory = self._checked(parts[1], address[act], count * width)
        if parts[1] == "shared" and count == 1 and width == 4:
            self._note_conflicts(opcode, address, act)
        words = address[act][:, None] + np.arange(count * width)
        if is_load:
            loaded = np.zeros((len(act), count), dtype)
            loaded[act] = memory[words].view(dtype)
            self._assign(group, operands[0], list(loaded.T), act)
        else:
            values = [np.broadcast_to(np.asarray(v), act.shape)[act].astype(dtype) for v in self._values(group, operands[1])]
            memory[words] = np.stack(values, axis=1).view(np.uint8)

    def _checked(self, space: str, address: Bits, size: int) -> NDArray[np.uint8]:
        """The memory of a state space, once all addresses are known to be aligned and inside."""
        memory = self.shared if space == "shared" else self.memory.bytes
        if (address % size).any():
            raise EmulationError(f"address {address[address % size != 0][0]} is no multiple of {size}")
        if space == "shared":
            inside = (address >= SHARED_START) & (address + size <= len(memory))
        else:
            inside = (address >= 0) & (address + size <= len(memory))
            inside[inside] = self.memory.owned[address[inside]] & self.memory.owned[address[inside] + size - 1]
        if not inside.all():
            raise EmulationError(f"{space} address {address[~inside][0]} is outside every buffer")
        return memory

    def _copy(self, group: Group, opcode: str, operands: tuple[str, ...], act: NDArray[np.bool_]) -> None:
        if "commit_group" in opcode:
            group.committed[act] += 1
        elif "wait_group" in opcode:
            self._land(group, act, group.committed - int(operands[0]))
        else:
            target, source = (np.broadcast_to(self._address(group, part), act.shape) for part in operands[:2])
            size = int(operands[2])
            given = np.broadcast_to(np.asarray(self._value(group, operands[3]) if len(operands) > 3 else size), act.shape)
            self._checked("shared", target[act], size)
            reads = act & (given > 0)
            self._checked("global", source[reads], size)
            data = np.zeros((len(act), size), np.uint8)
            data[reads] = self.memory.bytes[source[reads][:, None] + np.arange(size)]
            data[np.arange(size) >= given[:, None]] = 0
            group.copies.append((act.copy(), target, data, group.committed.copy()))

    def _land(self, group: Group, act: NDArray[np.bool_], before: Bits) -> None:
        for mask, target, data, number in group.copies:
            now = mask & act & (number < before)
            self.shared[target[now][:, None] + np.arange(data.shape[1])] = data[now]
            mask[now] = False
        group.copies = [copy for copy in group.copies if copy[0].any()]

    def _load_matrix(self, group: Group, operands: tuple[str, ...], act: NDArray[np.bool_]) -> None:
        """Four 8 x 8 matrices: lane i gets words i % 4 of row i // 4, whose addresses lanes 8 m .. 8 m + 7 give for matrix m."""
        warps = _whole_warps(act)
        rows = np.broadcast_to(self._address(group, operands[1]), act.shape)[act]
        memory = self._checked("shared", rows, 16)
        rows = rows.reshape(-1, 4, 8)
        met = max(int(np.bincount(eight).max()) for eight in (rows // 16 % 8).reshape(-1, 8))
        self.conflicts["ldmatrix"] = max(self.conflicts.get("ldmatrix", 0), met)
        lane = np.arange(32)
        words = rows[:, :, lane // 4] + 4 * (lane % 4)
        loaded = np.zeros((len(warps), 4, 32), np.uint32)
        loaded[warps] = memory[words[..., None] + np.arange(4)].view(np.uint32)[..., 0]
        self._assign(group, operands[0], list(np.moveaxis(loaded, 1, 0).reshape(4, -1)), act)

    def _note_conflicts(self, opcode: str, address: Bits, act: NDArray[np.bool_]) -> None:
        for warp, mine in zip(address.reshape(-1, 32), act.reshape(-1, 32), strict=True):
            words = np.unique(warp[mine] // 4)
            met = int(np.bincount(words % 32).max()) if words.size else 0
            self.conflicts[opcode] = max(self.conflicts.get(opcode, 0), met)
