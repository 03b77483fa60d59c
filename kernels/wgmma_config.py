"""What the kernels on Hopper's wgmma have in common: their choices, the memory of a CTA, their menu of tiles."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.kernels.variants import Epilogue

ROW_TILE = 128
"""Weight rows of a packed tile."""
X_ROW_BYTES = 128
"""Bytes of a token in a stage: one row of a 128-byte swizzle, 64 bf16 or 128 E4M3."""
SHARED_BYTES = 226 * 1024
"""Dynamic shared memory that the ring may fill; the rest of 227 KiB is left to alignment."""
ALIGNMENT = 1024
"""Bytes to which a swizzled tile in shared memory is aligned."""
BARRIER_BYTES = 16
"""Of a stage: the barrier "full" and, 8 bytes on, the barrier "empty"."""
WARP_BUFFER = 512
"""Bytes in which a warp transposes results."""
MAX_STAGES = 10
TILE_BYTES = {"mxfp4-w4a16": 4096 + 256, "nvfp4-w4a16": 4096 + 512, "mxfp4-w4a8": 8192 + 512}
"""Bytes of a packed tile of 128 rows: codes and scales."""
TILE_K = {"mxfp4-w4a16": 64, "nvfp4-w4a16": 64, "mxfp4-w4a8": 128}
"""K of a packed tile, and of a stage."""


@dataclass(frozen=True)
class Config:
    """Choices of one variant."""

    format: str
    columns: int
    """Tokens of a tile (N of wgmma)."""
    blocks: int = 1
    """Blocks of 64 rows that one warpgroup multiplies."""
    warpgroups: int = 2
    """Warpgroups that multiply; the producer's comes on top."""
    epilogue: Epilogue = "plain"
    ahead: bool = True
    """Whether a warpgroup converts the next stage while the last one multiplies; if not, the other warpgroups multiply meanwhile."""

    @property
    def rows(self) -> int:
        """Weight rows of a CTA's tile."""
        return 64 * self.blocks * self.warpgroups

    @property
    def tile_k(self) -> int:
        """K of a stage."""
        return TILE_K[self.format]

    @property
    def x_bytes(self) -> int:
        """Bytes of activations in a stage."""
        return self.columns * X_ROW_BYTES

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights in a stage."""
        return self.rows // ROW_TILE * TILE_BYTES[self.format]

    @property
    def stage_bytes(self) -> int:
        """Bytes of activations and weights in a stage."""
        return self.x_bytes + self.weight_bytes

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 128 * (self.warpgroups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of a producer's and of a consumer's thread after they were redistributed."""
        return (40, 232) if self.warpgroups == 2 else (24, 112)

    @property
    def name(self) -> str:
        """Such as numba-wgmma-mxfp4-w4a16-n256."""
        tail = "" if self.epilogue == "plain" else f"-{self.epilogue}"
        return f"numba-wgmma-{self.format}-n{self.columns}{tail}"


@dataclass(frozen=True)
class Plan:
    """Where things lie in a CTA's shared memory, from an address aligned to ALIGNMENT: stages' activations first."""

    config: Config

    @property
    def apart(self) -> int:
        """Bytes of all that is no stage."""
        from perfmodel.kernels.schedule import TABLE_BYTES

        return ALIGNMENT + TABLE_BYTES + WARP_BUFFER * self.warps + BARRIER_BYTES * MAX_STAGES

    @property
    def warps(self) -> int:
        """Warps that consume."""
        return 4 * self.config.warpgroups

    @property
    def stages(self) -> int:
        """As many as there is room for."""
        return min(MAX_STAGES, (SHARED_BYTES - self.apart) // self.config.stage_bytes)

    @property
    def weights(self) -> int:
        """Packed weights of the stages."""
        return self.stages * self.config.x_bytes

    @property
    def buffers(self) -> int:
        """A buffer for each consumer warp."""
        return self.weights + self.stages * self.config.weight_bytes

    @property
    def barriers(self) -> int:
        """Two for each stage."""
        return self.buffers + WARP_BUFFER * self.warps

    @property
    def table(self) -> int:
        """Of `schedule`."""
        return self.barriers + BARRIER_BYTES * self.stages

    @property
    def shared_bytes(self) -> int:
        """Of the launch."""
        return self.apart + self.stages * self.config.stage_bytes
