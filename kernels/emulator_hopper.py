"""The emulator for kernels of Hopper: warpgroups that wait on mbarriers, bulk copies and tensor maps, wgmma, stmatrix.

Strict as `emulator` is: a copy must not be started into memory that a running wgmma reads, and lands only when nothing else can go on; what
a wgmma reads must lie where a 128-byte swizzle puts it. A multiplication is done when it is issued. All CTAs run one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from perfmodel.kernels.emulator import DONE, Bits, Group, Machine
from perfmodel.kernels.emulator_program import EmulationError, Memory, Statement

WARPGROUP = 128
SWIZZLED_ROW = 128
NOTHING = ("fence", "setmaxnreg")
"""Instructions that order or allot, and have nothing to do here."""
ELEMENTS = {"bf16": (ml_dtypes.bfloat16, 2), "e4m3": (ml_dtypes.float8_e4m3fn, 1)}
"""Type in the name of a wgmma -> dtype and bytes."""


class BlockedError(Exception):
    """The thread waits for a phase that has not ended."""


@dataclass
class Barrier:
    """An mbarrier."""

    arrivals: int
    missing: int
    bytes: int = 0
    parity: int = 0

    def settle(self) -> None:
        """End the phase where all have arrived and all bytes have come."""
        if self.missing < 0:
            raise EmulationError("more arrivals than the barrier has")
        if self.missing == 0 and self.bytes == 0:
            self.missing, self.parity = self.arrivals, self.parity ^ 1


@dataclass
class Arrival:
    """Copies of threads that have not landed, and the barriers at which each of the threads arrives when they have."""

    copies: list[tuple[Bits, Bits, Bits, Bits]]
    barriers: list[int]


def tensor_map(memory: Memory, matrix: NDArray[Any], box_rows: int) -> int:
    """Address of what stands in for `launch.tensor_map`: boxes of `box_rows` x 128 bytes of a copy of `matrix`, swizzled."""
    fields = [memory.place(matrix), *matrix.shape, matrix.dtype.itemsize, box_rows]
    return memory.place(np.array(fields, np.uint64))


class HopperMachine(Machine):
    """Executes one kernel; its CTAs consist of warpgroups."""

    def _run(self, groups: list[Group]) -> None:
        threads = np.concatenate([group.threads for group in groups])
        groups = [Group(part) for part in np.split(threads, max(1, len(threads) // WARPGROUP))]
        self.barriers: dict[int, Barrier] = {}
        self.flying: list[tuple[int, NDArray[np.uint8], int] | Arrival] = []
        self.running: dict[int, list[set[int]]] = {id(group): [set()] for group in groups}
        self.steps = 0
        while any((group.counter != DONE).any() for group in groups):
            before = self.steps
            for group in groups:
                try:
                    self._advance(group)
                except BlockedError:
                    continue
            if self.steps == before and not self._release(groups):
                if not self.flying:
                    raise EmulationError("all threads wait, and nothing is under way")
                self._land_one()

    def _release(self, groups: list[Group]) -> bool:
        """Let the threads go on that wait at a barrier of the CTA where as many have come as it waits for: all, if it does not say."""
        come: dict[int, list[tuple[Group, NDArray[np.bool_]]]] = {}
        wanted: dict[int, int] = {}
        for group in groups:
            for place in np.unique(group.counter[group.waiting]):
                here = group.waiting & (group.counter == place)
                numbers = [self._acting(group, operand, here)[0] for operand in self.statements[place].operands]
                come.setdefault(numbers[0], []).append((group, here))
                wanted[numbers[0]] = numbers[1] if len(numbers) > 1 else sum(int((each.counter != DONE).sum()) for each in groups)
        released = False
        for barrier, waiting in come.items():
            if sum(int(here.sum()) for _, here in waiting) == wanted[barrier]:
                released = True
                for group, here in waiting:
                    group.counter[here] += 1
                    group.waiting[here] = False
        return released

    def _execute(self, group: Group, statement: Statement, here: NDArray[np.bool_]) -> None:
        if statement.opcode.startswith("bar.warp"):  # the lanes of a warp go together as it is
            group.counter[here] += 1
        else:
            super()._execute(group, statement, here)
        self.steps += 1

    def _perform(self, kind: str, group: Group, statement: Statement, act: NDArray[np.bool_]) -> None:
        opcode, operands = statement.opcode, statement.operands
        if kind in NOTHING:
            return
        if kind == "mbarrier":
            self._barrier(group, opcode, operands, act)
        elif opcode.startswith("cp.async.bulk"):
            self._bulk(group, opcode, operands, act)
        elif opcode.startswith("cp.async.mbarrier.arrive"):
            copies, group.copies = group.copies, []
            self.flying.append(Arrival(copies, self._acting(group, operands[0], act)))
        elif kind == "wgmma":
            self._wgmma(group, opcode, operands, act)
        elif kind == "stmatrix":
            self._store_matrix(group, operands, act)
        elif (result := self._computed(group, opcode, operands)) is not None:
            self._assign(group, operands[0], [result], act)
        else:
            super()._perform(kind, group, statement, act)

    def _computed(self, group: Group, opcode: str, operands: tuple[str, ...]) -> Bits | None:
        """The result of an instruction that the plain emulator does not know, or None."""

        def words(operand: str) -> Any:
            return np.broadcast_to(np.asarray(self._value(group, operand)).astype(np.uint32), group.threads.shape)

        if opcode.startswith("redux.sync.max"):
            return np.asarray(np.repeat(words(operands[1]).reshape(-1, 32).max(axis=1), 32))
        if "e4m3x2" in opcode:
            halves = [np.clip(words(operand).view(np.float32), -448, 448).astype(ml_dtypes.float8_e4m3fn) for operand in operands[:0:-1]]
            return np.asarray(np.stack(halves, axis=1).view(np.uint16)[:, 0])
        if opcode == "div.rn.f32":
            with np.errstate(all="ignore"):
                return np.asarray((words(operands[1]).view(np.float32) / words(operands[2]).view(np.float32)).view(np.uint32))
        if opcode == "mov.pred":
            return np.broadcast_to(np.asarray(self._value(group, operands[1])) != 0, group.threads.shape)
        return None

    def _acting(self, group: Group, operand: str, act: NDArray[np.bool_]) -> list[int]:
        """The value of an operand in each acting thread; of an address what is in its brackets."""
        value = self._address(group, operand) if operand.startswith("[") else np.asarray(self._value(group, operand))
        return [int(one) for one in np.broadcast_to(value, act.shape)[act]]

    def _barrier(self, group: Group, opcode: str, operands: tuple[str, ...], act: NDArray[np.bool_]) -> None:
        if "init" in opcode:
            for address, count in zip(*(self._acting(group, operand, act) for operand in operands), strict=True):
                self.barriers[address] = Barrier(count, count)
        elif "try_wait" in opcode:
            pairs = zip(*(self._acting(group, operand, act) for operand in operands[1:]), strict=True)
            if any(self.barriers[address].parity == parity for address, parity in pairs):
                raise BlockedError
            self._assign(group, operands[0], [np.ones(act.shape, bool)], act)
        else:
            added = self._acting(group, operands[2], act) if "expect_tx" in opcode else [0] * int(act.sum())
            for address, count in zip(self._acting(group, operands[1], act), added, strict=True):
                barrier = self.barriers[address]
                barrier.bytes, barrier.missing = barrier.bytes + count, barrier.missing - 1
                barrier.settle()

    def _bulk(self, group: Group, opcode: str, operands: tuple[str, ...], act: NDArray[np.bool_]) -> None:
        if act.sum() != 1:
            raise EmulationError("one thread starts a bulk copy")
        target = self._acting(group, operands[0], act)[0]
        if "tensor" in opcode:
            names = re.findall(r"[%\w]+", operands[1])
            source, column, row = (self._acting(group, name, act)[0] for name in names)
            data, barrier = self._box(source, np.int32(np.uint32(column & 0xFFFFFFFF)), np.int32(np.uint32(row & 0xFFFFFFFF))), operands[2]
            if target % 1024:
                raise EmulationError(f"a swizzled tile begins at {target}")
        else:
            source, size = self._acting(group, operands[1], act)[0], self._acting(group, operands[2], act)[0]
            owned = self.memory.owned[source : source + size]
            if source % 16 or target % 16 or size % 16 or not owned.all():
                raise EmulationError(f"bulk copy of {size} bytes from {source} to {target}")
            data, barrier = self.memory.bytes[source : source + size].copy(), operands[3]
        lines = range(target // SWIZZLED_ROW, (target + data.size - 1) // SWIZZLED_ROW + 1)
        if any(not reads.isdisjoint(lines) for held in self.running.values() for reads in held):
            raise EmulationError("a copy is started into what a running wgmma reads")
        if target + data.size > len(self.shared):
            raise EmulationError("a copy goes beyond shared memory")
        self.flying.append((target, data, self._acting(group, barrier, act)[0]))

    def _box(self, address: int, column: Any, row: Any) -> NDArray[np.uint8]:
        """A box of the matrix that the map at `address` describes, as it lies in shared memory; zeros outside of the matrix."""
        pointer, rows, columns, size, box_rows = (int(word) for word in self.memory.read(address, (5,), np.uint64))
        matrix = self.memory.read(pointer, (rows, columns * size), np.uint8)
        box = np.zeros((box_rows, SWIZZLED_ROW), np.uint8)
        inside = matrix[row : row + box_rows, column * size : column * size + SWIZZLED_ROW]
        box[: inside.shape[0], : inside.shape[1]] = inside
        pieces = box.reshape(box_rows, 8, 16)
        order = np.arange(8) ^ (np.arange(box_rows) % 8)[:, None]
        return np.take_along_axis(pieces, order[:, :, None], axis=1).reshape(-1)

    def _land_one(self) -> None:
        landing = self.flying.pop(0)
        if isinstance(landing, Arrival):
            for mask, targets, pieces, _ in landing.copies:
                self.shared[targets[mask][:, None] + np.arange(pieces.shape[1])] = pieces[mask]
            for address in landing.barriers:
                self.barriers[address].missing -= 1
                self.barriers[address].settle()
            return
        target, data, barrier = landing
        self.shared[target : target + data.size] = data
        self.barriers[barrier].bytes -= data.size
        self.barriers[barrier].settle()

    def _wgmma(self, group: Group, opcode: str, operands: tuple[str, ...], act: NDArray[np.bool_]) -> None:
        if not act.all() or len(act) != WARPGROUP:
            raise EmulationError("a thread of the warpgroup is missing")
        held = self.running[id(group)]
        if "commit_group" in opcode:
            held.append(set())
        elif "wait_group" in opcode:
            keep = int(operands[0]) + 1  # the last one is open
            del held[: max(0, len(held) - keep)]
        elif "mma_async" in opcode:
            self._multiply(group, opcode, operands, held[-1])

    def _multiply(self, group: Group, opcode: str, operands: tuple[str, ...], reads: set[int]) -> None:
        columns, k = (int(number) for number in re.findall(r"m64n(\d+)k(\d+)", opcode)[0])
        dtype, size = ELEMENTS[opcode.split(".")[-1]]
        descriptor = int(np.asarray(self._value(group, operands[2])).reshape(-1)[0])
        at = ((descriptor & 0x3FFF) << 4) + np.arange(columns)[:, None] * SWIZZLED_ROW + np.arange(k * size)
        at ^= (at >> 7 & 7) << 4
        reads.update(np.unique(at // SWIZZLED_ROW).tolist())
        b = self.shared[at].view(dtype).astype(np.float64)
        a = fragments(self._values(group, operands[1]), dtype, k)
        with np.errstate(invalid="ignore"):  # rows that no tile was loaded for are NaN
            product = a @ b.T
        names = [name.strip() for name in operands[0].strip("{}").split(",")]
        r, q = np.arange(WARPGROUP) % 32 // 4 + np.arange(WARPGROUP) // 32 * 16, np.arange(WARPGROUP) % 4
        for i, name in enumerate(names):
            old = np.broadcast_to(np.asarray(self._value(group, name), np.uint32), (WARPGROUP,)).view(np.float32)
            new = old + product[r + i // 2 % 2 * 8, i // 4 * 8 + 2 * q + i % 2]
            group.registers[name] = new.astype(np.float32).view(np.uint32)

    def _store_matrix(self, group: Group, operands: tuple[str, ...], act: NDArray[np.bool_]) -> None:
        """stmatrix.x4.trans: lane i holds rows 2 (i % 4) and 2 (i % 4) + 1 of column i // 4, lanes 8 m .. give the rows of matrix m."""
        if not act.all():
            raise EmulationError("a lane of the warp is missing")
        rows = np.broadcast_to(self._address(group, operands[0]), act.shape)
        memory = self._checked("shared", rows, 16)
        rows = rows.reshape(-1, 4, 8)
        lane = np.arange(32)
        for matrix, word in enumerate(self._values(group, operands[1])):
            halves = np.asarray(word, np.uint32).reshape(-1, 32)
            for p in (0, 1):
                at = rows[:, matrix, 2 * (lane % 4) + p] + 2 * (lane // 4)
                memory[at[..., None] + np.arange(2)] = (halves >> np.uint32(16 * p)).astype(np.uint16)[..., None].view(np.uint8)


def fragments(registers: Sequence[Any], dtype: Any, k: int) -> NDArray[np.float64]:
    """A, [64, k], from the four registers of 128 threads."""
    words = np.stack([np.broadcast_to(np.asarray(word, np.uint32), (WARPGROUP,)) for word in registers], axis=1)
    values = np.ascontiguousarray(words).view(dtype).astype(np.float64)  # warp, r, q; half of k, h, element of a word
    axes = values.reshape(4, 8, 4, 2, 2, k // 8)
    return axes.transpose(0, 4, 1, 3, 2, 5).reshape(64, k)
