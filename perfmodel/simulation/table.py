"""The times of steps on a grid, from `step_time`, and their interpolation in compiled code.

A step's time depends on four figures: sequences, their mean context, prompt tokens, and how many tokens these look back on. In context and
look-back it is linear but for windows, in the others smooth: points on a log scale keep the interpolation within 2 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.serving.engine import Engine
from perfmodel.serving.step import Batch, Rates, decode, step_ops, step_time
from perfmodel.serving.work import Work
from perfmodel.simulation.compiled import njit
from perfmodel.units import MICROSECOND
from perfmodel.workload.expectation import Array

SEQUENCES, CONTEXTS, PROMPTS, LOOK_BACKS = 40, 12, 48, 8
"""Points of the grid."""


@dataclass(frozen=True)
class Speculation:
    """`drafted` tokens are proposed for each sequence and step; each is right with probability `acceptance` if those before it are."""

    drafted: int = 0
    acceptance: float = 0.0

    @property
    def each(self) -> float:
        """Tokens that a sequence gains in a step: (1 - a^(k + 1)) / (1 - a)."""
        return sum(self.acceptance**i for i in range(self.drafted + 1))


@dataclass(frozen=True)
class Grid:
    """The points of the four axes."""

    sequences: Array
    context: Array
    prompt: Array
    seen: Array


def grid(most_sequences: float, least_context: float, most_context: float, most_tokens: float) -> Grid:
    """Points up to `most_sequences` of a rank, over these contexts, and up to `most_tokens` of prompts in a rank's step."""
    return Grid(
        sequences=np.concatenate([[0.0], _log(1.0, most_sequences, SEQUENCES)]),
        context=_log(least_context, most_context, CONTEXTS),
        prompt=_log(1.0, most_tokens, PROMPTS),
        seen=np.concatenate([[0.0], _log(16.0, max(most_context, 17.0), LOOK_BACKS - 1)]),
    )


def _log(low: float, high: float, points: int) -> Array:
    """Distinct points from `low` to `high`, evenly on a log scale; one where both are the same."""
    result: Array = np.unique(np.geomspace(low, max(high, low), points))
    return result


@dataclass(frozen=True)
class Deployment:
    """One instance's model on its GPUs, with vectors of one element."""

    work: Work
    rates: Rates
    engine: Engine
    speculation: Speculation = Speculation()
    factor: float = 1.0
    """What measured services like this one take, over what the equations give."""
    prompt_factor: float | None = None
    """The same of what prompts add to a step, where that differs."""

    def seconds(self, batch: Batch) -> Array:
        """Seconds of steps; of speculation, the drafts and their verification included."""
        plain = self.factor * step_time(self.work, self.rates, self.engine, batch)
        if self.speculation.drafted == 0 and self.prompt_factor is None:
            return plain
        alone = decode(batch.sequences, batch.context)
        without = self.factor * step_time(self.work, self.rates, self.engine, alone)
        if self.prompt_factor is not None:
            plain = without + (plain - without) * (self.prompt_factor / self.factor)
        if self.speculation.drafted == 0:
            return plain
        result: Array = plain - without + np.sum(list(self.ops(alone).values()), axis=0)
        return result

    def ops(self, batch: Batch) -> dict[str, Array]:
        """Seconds by op of steps without prompts."""
        ops = step_ops(self.work, self.rates, self.engine, batch)
        if self.speculation.drafted:
            ops = self._verified(batch, ops)
        return {name: self.factor * seconds for name, seconds in ops.items()}

    def _verified(self, batch: Batch, plain: dict[str, Array]) -> dict[str, Array]:
        """Tokens to verify pass the layers as those of a prompt do; a draft costs one layer of the model, and the head, a token."""
        drafted = self.speculation.drafted
        verified = batch.sequences * drafted
        whole = Batch(batch.sequences, batch.context, verified, batch.context - verified / 2)
        ops = step_ops(self.work, self.rates, self.engine, whole)
        layers = np.sum([seconds for name, seconds in plain.items() if name not in ("head", "overhead")], axis=0)
        layers = layers + np.maximum(plain["overhead"] - self.engine.step_us * MICROSECOND, 0.0)
        drafts = drafted * (layers / self.work.layers + plain["head"])
        return {**ops, "drafts": np.where(batch.sequences > 0, drafts, 0.0)}


def decode_table(deployment: Deployment, points: Grid) -> Array:
    """Seconds of steps without prompts [ns, nc]."""
    n, context = np.meshgrid(points.sequences, points.context, indexing="ij")
    return deployment.seconds(decode(n.ravel(), context.ravel())).reshape(n.shape)


def mixed_table(deployment: Deployment, points: Grid) -> Array:
    """Seconds of steps with prompts [ns, nc, np, nq]."""
    n, context, prompt, seen = np.meshgrid(points.sequences, points.context, points.prompt, points.seen, indexing="ij")
    flat = Batch(n.ravel(), context.ravel(), prompt.ravel(), (seen - prompt / 2).ravel())
    return deployment.seconds(flat).reshape(n.shape)


@njit
def locate(points: Array, value: float) -> tuple[int, float]:
    """The point below `value` and the share of the way to the next; ends of the grid hold beyond it."""
    last = points.size - 1
    if last == 0 or value <= points[0]:
        return 0, 0.0
    if value >= points[last]:
        return last - 1, 1.0
    low = int(np.searchsorted(points, value, side="right")) - 1
    return low, float((value - points[low]) / (points[low + 1] - points[low]))


@njit
def plane(values: Array, i: int, u: float, j: int, v: float) -> float:
    """Between four neighbours of a table [a, b]; an axis of one point has no second neighbour."""
    i1, j1 = min(i + 1, values.shape[0] - 1), min(j + 1, values.shape[1] - 1)
    low = values[i, j] * (1 - v) + values[i, j1] * v
    high = values[i1, j] * (1 - v) + values[i1, j1] * v
    return float(low * (1 - u) + high * u)


@njit
def a_rank(sequences: float, ranks: float) -> float:
    """Sequences of the fullest attention rank."""
    return max(sequences / ranks, min(sequences, 1.0))


@njit
def interpolate_decode(sequences: Array, contexts: Array, table: Array, n: float, context: float) -> float:
    """Seconds of a step without a prompt."""
    i, u = locate(sequences, n)
    j, v = locate(contexts, context)
    return plane(table, i, u, j, v)


@njit
def interpolate_mixed(axes: tuple[Array, Array, Array, Array], table: Array, at: tuple[float, float, float, float]) -> float:
    """Seconds of a step with a prompt."""
    i, u = locate(axes[0], at[0])
    j, v = locate(axes[1], at[1])
    k, w = locate(axes[2], at[2])
    m, x = locate(axes[3], at[3])
    i1, j1 = min(i + 1, table.shape[0] - 1), min(j + 1, table.shape[1] - 1)
    low = plane(table[i, j], k, w, m, x) * (1 - v) + plane(table[i, j1], k, w, m, x) * v
    high = plane(table[i1, j], k, w, m, x) * (1 - v) + plane(table[i1, j1], k, w, m, x) * v
    return low * (1 - u) + high * u
