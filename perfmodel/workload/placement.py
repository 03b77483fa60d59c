"""Experts on ranks: contiguous, round-robin or balanced by load, with replicas of the hottest experts."""

from __future__ import annotations

import numpy as np

from perfmodel.errors import PerfModelError
from perfmodel.workload.expectation import Array


def place(loads: Array, ep: int, placement: str = "contiguous", redundant: int = 0) -> Array:
    """The loads of the busiest of `ep` ranks: [n, draws, experts] -> [n, draws, (experts + redundant) / ep].

    `balanced` gives the heaviest expert to the emptiest rank with room, in turn; replicas halve, third, ... the hottest.
    Raises PerfModelError where the experts and replicas do not divide over the ranks.
    """
    if redundant:
        loads = add_replicas(loads, redundant)
    slots = loads.shape[-1]
    if slots % ep:
        raise PerfModelError(
            f"{slots} experts (with replicas) do not divide over {ep} ranks",
            field="redundant" if redundant else "ep",
            value=redundant or ep,
            mend="Choose a number that makes experts + replicas a multiple of EP.",
        )
    if ep == 1:
        return loads
    if placement == "round-robin":
        ranks = np.swapaxes(loads.reshape(*loads.shape[:-1], slots // ep, ep), -1, -2)
    elif placement == "balanced":
        ranks = _levelled(loads, ep)
    else:
        ranks = loads.reshape(*loads.shape[:-1], ep, slots // ep)
    busiest = ranks.sum(-1).argmax(-1)
    return np.take_along_axis(ranks, busiest[..., None, None], axis=-2)[..., 0, :]


def add_replicas(loads: Array, redundant: int) -> Array:
    """Append `redundant` replicas, one at a time of the expert with the most load a copy; its copies share its load."""
    experts = loads.shape[-1]
    copies = np.ones_like(loads)
    chosen = []
    for _ in range(redundant):
        hottest = (loads / copies).argmax(-1)[..., None]
        np.put_along_axis(copies, hottest, np.take_along_axis(copies, hottest, -1) + 1, -1)
        chosen.append(hottest)
    owner = np.concatenate([np.broadcast_to(np.arange(experts), loads.shape), *chosen], axis=-1)
    return np.take_along_axis(loads / copies, owner, axis=-1)


def _levelled(loads: Array, ep: int) -> Array:
    """Longest-processing-time-first with equal numbers of experts a rank: [..., experts] -> [..., ep, experts / ep]."""
    ordered = -np.sort(-loads, axis=-1)
    rows = ordered.reshape(-1, ordered.shape[-1])
    room = rows.shape[-1] // ep
    ranks = np.zeros((len(rows), ep, room))
    filled = np.zeros((len(rows), ep), dtype=int)
    total = np.zeros((len(rows), ep))
    at = np.arange(len(rows))
    for column in range(rows.shape[-1]):
        emptiest = np.where(filled < room, total, np.inf).argmin(-1)
        ranks[at, emptiest, filled[at, emptiest]] = rows[:, column]
        total[at, emptiest] += rows[:, column]
        filled[at, emptiest] += 1
    return ranks.reshape(*loads.shape[:-1], ep, room)
