"""What a user's own measurements make of the points of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.planning.types import Flags, Rows
from perfmodel.serving.anchored import Anchored
from perfmodel.serving.anchoring import FIGURES, Anchoring, load_of
from perfmodel.serving.formats import Formats, precision_of
from perfmodel.serving.parallel import Parallel
from perfmodel.workload.expectation import Array


@dataclass(frozen=True)
class Known:
    """The measurements of the GPU and format that some rows of a table have; [rows of the table, m] where nothing else is said."""

    anchored: Anchored
    decode: Flags
    """Whether a row is what decodes, or does all, in a measured service."""
    prefill: Flags
    """Whether it is what runs the prompts of one."""
    decoders: Array
    """[m] Instances of a measured service, 0 of an aggregated one."""
    prefillers: Array


@dataclass(frozen=True)
class Places:
    """Points of a search, vectors over them."""

    decode: Rows
    prefill: Rows
    """-1 where the instances of `decode` run prompts too."""
    decoders: Array
    prefillers: Array
    clients: Array
    """Of an aggregated instance, or of a disaggregated service."""


@dataclass(frozen=True)
class Pulls:
    """Measurements by kind of deployment: (GPU, format)."""

    known: tuple[Known | None, ...]
    kind: Rows
    """[rows of the table]"""

    def at(self, places: Places, context: float, prompt: float) -> tuple[Array, Array, Rows]:
        """(factor [2, n] of TTFT and TPOT, what is left of their spread [2, n], measurements of the configuration [n])."""
        factor, shrink = np.ones((2, len(places.decode))), np.ones((2, len(places.decode)))
        own = np.zeros(len(places.decode), dtype=int)
        for number, known in enumerate(self.known):
            mine = np.flatnonzero(self.kind[places.decode] == number)
            if known is None or not len(mine):
                continue
            same, load = _same(known, places, mine), load_of(places.clients[mine], context, prompt)
            own[mine] = same.sum(axis=1)
            for at, figure in enumerate(FIGURES):
                pull = known.anchored.of[figure].at(same, load)
                factor[at, mine], shrink[at, mine] = pull.factor, pull.shrink
        return factor, shrink, own

    def told(self, row: int, own: int, factor: Array) -> Anchoring | None:
        """How a point of this row of the table was pulled; None where nothing pulls it."""
        known = self.known[int(self.kind[row])]
        return None if known is None else known.anchored.told(own, *(float(value) for value in factor))


def _same(known: Known, places: Places, mine: Rows) -> Flags:
    """[points, m] whether a measurement is of the point's configuration."""
    apart = places.prefill[mine] >= 0
    counts = (places.decoders[mine][:, None] == known.decoders) & (places.prefillers[mine][:, None] == known.prefillers)
    beside = known.prefill[np.maximum(places.prefill[mine], 0)] & counts
    found: Flags = known.decode[places.decode[mine]] & np.where(apart[:, None], beside, known.decoders == 0)
    return found


def pulls_of(anchored: Sequence[Anchored | None], kind: Rows, formats: Sequence[Formats], parallels: Sequence[Parallel]) -> Pulls | None:
    """Of a table. anchored: of each kind; kind, formats, parallels: of each row. None where nothing was measured."""
    known = tuple(None if one is None else _known(one, formats, parallels) for one in anchored)
    return Pulls(known, kind) if any(known) else None


def _known(anchored: Anchored, formats: Sequence[Formats], parallels: Sequence[Parallel]) -> Known:
    measured = anchored.configurations
    precisions = [precision_of(form.experts) for form in formats]
    alike = np.array([[p == c.precision for c in measured] for p in precisions], dtype=bool)
    decode = np.array([[p == c.decode for c in measured] for p in parallels], dtype=bool)
    prefill = np.array([[p == c.prefill for c in measured] for p in parallels], dtype=bool)
    counts = (np.array([float(getattr(c, name)) for c in measured]) for name in ("decoders", "prefillers"))
    return Known(anchored, alike & decode, alike & prefill, *counts)
