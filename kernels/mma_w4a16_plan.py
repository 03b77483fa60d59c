"""Where things lie in the shared memory of `mma_w4a16`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from perfmodel.kernels.mma_tile import ROW_BYTES
from perfmodel.kernels.mma_w4a16 import Config
from perfmodel.kernels.schedule import TABLE_BYTES

ALIGNMENT = 128
"""Of what lies in shared memory."""
PADDING = 16
"""Bytes between the rows of the output in shared memory: eight rows then lie in different banks."""


class Tile(Protocol):
    """What the epilogue's places depend on: the tile of a CTA, and how its warps share it out."""

    @property
    def columns(self) -> int:
        """Tokens."""

    @property
    def features(self) -> int:
        """Columns of the output."""

    @property
    def blocks(self) -> int:
        """Blocks of 16 weight rows of a warp."""

    @property
    def splits(self) -> int:
        """Groups of warps that share out K."""

    @property
    def row_warps(self) -> int:
        """Warps beside each other along M."""


class EpiloguePlan:
    """Places of the epilogue, behind `out_rows`."""

    config: Tile

    @property
    def out_rows(self) -> int:
        """Row of the output of each token."""
        raise NotImplementedError

    @property
    def factors(self) -> int:
        """Routing weight of each token."""
        return self.out_rows + 4 * self.config.columns

    @property
    def work(self) -> int:
        """Partial sums and then the output; before them, the stages where those are not kept apart."""
        return -(-(self.factors + 4 * self.config.columns) // ALIGNMENT) * ALIGNMENT

    @property
    def sums(self) -> int:
        """Of d in one warp, 128 bytes a register."""
        return self.config.blocks * self.config.columns // 2 * 128

    @property
    def output(self) -> int:
        """The finished rows of the output, behind the partial sums."""
        return self.work + (self.config.splits - 1) * self.config.row_warps * self.sums

    @property
    def pitch(self) -> int:
        """From one row of the output to the next."""
        return self.config.features * 2 + PADDING


@dataclass(frozen=True)
class Plan(EpiloguePlan):
    """Where things lie in shared memory, in bytes from its start."""

    config: Config

    @property
    def tile(self) -> int:
        """Of activations: 64 of K of all tokens."""
        return self.config.columns * ROW_BYTES

    @property
    def stage(self) -> int:
        """Bytes of a stage."""
        return self.config.stage_tiles * self.tile

    @property
    def place(self) -> int:
        """The tile of the CTA: expert, strip of weight rows, first token, tokens; its number."""
        return TABLE_BYTES

    @property
    def x_rows(self) -> int:
        """Address of the activations of each token, 64 bits."""
        return self.place + 32

    @property
    def out_rows(self) -> int:
        """Row of the output of each token."""
        return self.x_rows + 8 * self.config.columns

    @property
    def bytes(self) -> int:
        """All of it, and room to align the start."""
        work = max(self.work + self.config.stages * self.stage, self.output + self.config.columns * self.pitch)
        return work + ALIGNMENT
