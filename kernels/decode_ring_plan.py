"""Where things lie in the shared memory of `decode_ring`."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.kernels.decode_ring import Config
from perfmodel.kernels.mma_w4a16_plan import ALIGNMENT, PADDING, EpiloguePlan

BARRIER_BYTES = 16
"""Of a stage: the barrier "full" and, 8 bytes on, the barrier "empty"."""
MAX_STAGES = 16
SHARED_BYTES = 226 * 1024
"""Dynamic shared memory that the ring may fill."""
X_TILE_BYTES = 128
"""Of a token in a stage, for each packed tile along K: 64 bf16."""


@dataclass(frozen=True)
class Plan(EpiloguePlan):
    """Bytes from the start of shared memory, and sizes."""

    config: Config

    @property
    def stages(self) -> int:
        """As many as there is room for."""
        room = SHARED_BYTES - ALIGNMENT - self.x
        return min(MAX_STAGES, room // (self.x_stage + self.weight_stage))

    @property
    def barriers(self) -> int:
        """Two for each stage."""
        return 0

    @property
    def out_rows(self) -> int:
        """Row of the output of each token."""
        return self.barriers + BARRIER_BYTES * MAX_STAGES

    @property
    def x(self) -> int:
        """The stages' activations."""
        return -(-(self.output + self.config.columns * self.pitch) // ALIGNMENT) * ALIGNMENT

    @property
    def x_pitch(self) -> int:
        """From one token in a stage to the next: eight tokens then lie in different banks."""
        return self.config.splits * X_TILE_BYTES + PADDING

    @property
    def x_stage(self) -> int:
        """Bytes of activations in a stage."""
        return self.config.columns * self.x_pitch

    @property
    def strip(self) -> int:
        """Bytes of weights in a stage of one strip."""
        return self.config.splits * self.config.tile_bytes

    @property
    def weights(self) -> int:
        """The stages' weights."""
        return self.x + self.stages * self.x_stage

    @property
    def weight_stage(self) -> int:
        """Bytes of weights in a stage."""
        return self.config.strips * self.strip

    @property
    def bytes(self) -> int:
        """All of it, and room to align the start."""
        return self.weights + self.stages * self.weight_stage + ALIGNMENT
