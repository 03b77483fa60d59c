"""The power law of the public measurements: how their collector draws tokens per expert, and mends the sum."""

from __future__ import annotations

import numpy as np

from perfmodel.workload.expectation import Array

DRAWS = 5
"""Samples of the power law that are averaged, as in the public collector of measurements."""
SEED = 20260101


def powerlaw_counts(tokens: Array, experts: int, topk: int, alpha: float, ep: int = 1, *, early: bool = False) -> Array:
    """Tokens per expert [n, DRAWS, experts] under the power law of the public measurements.

    Inverse CDF of x^-alpha on [1, 0.8 n] ([0.01, 2] where n k <= E), scaled to n k, rounded, no expert over n; then the sum is mended, one
    pair at a time, the `ep` ranks in turn: to the least loaded expert of the rank, or from the most loaded.
    As _generate_power_law_distribution does in the collector of AIConfigurator (collector/helper.py, Apache-2.0). `early`: as an
    earlier version did, which mends over all experts at once, and so puts the few pairs of few tokens on one rank.
    """
    uniform = np.random.default_rng(SEED).random((DRAWS, experts))
    few = tokens * topk <= experts
    low, high = np.where(few, 0.01, 1.0), np.where(few, 2.0, np.maximum(0.8 * tokens, 1.0 + 1e-9))
    low, high = low[:, None, None], high[:, None, None]
    if abs(alpha - 1.0) < 1e-9:
        drawn = low * (high / low) ** uniform
    else:
        power = 1.0 - alpha
        drawn = (low**power + uniform * (high**power - low**power)) ** (1.0 / power)
    total = tokens * topk
    counts = np.rint(drawn / drawn.sum(-1, keepdims=True) * total[:, None, None])
    cap = tokens[:, None, None]
    if early:
        return _mend_sum(np.minimum(_mended_early(counts, total, cap), cap), tokens, topk)
    clamped = np.minimum(counts, cap)
    ranks = clamped.reshape(*counts.shape[:2], ep, -1)
    ranks = _raised(ranks, (counts - clamped).sum(-1), cap[..., None])
    missing = total[:, None] - ranks.sum((-1, -2))
    ranks = _raised(ranks, np.maximum(missing, 0.0), cap[..., None])
    ranks = -_raised(-ranks, np.maximum(-missing, 0.0), np.zeros_like(cap)[..., None])
    return _mend_sum(ranks.reshape(counts.shape), tokens, topk)


def _mended_early(counts: Array, total: Array, cap: Array) -> Array:
    """`counts` [n, draws, experts] cut to `cap` [n, 1, 1], what is cut filling one least loaded expert after the other; then their sum is
    brought to `total` [n]: up by one for the least loaded experts, the last of equals first, again and again; down by one likewise, but
    where an expert holds nothing for the most loaded of all.
    """
    size = counts.shape[-1]
    kept = np.minimum(counts, cap)
    order = np.argsort(-kept, axis=-1, kind="stable")[..., ::-1]
    room = cap - np.take_along_axis(kept, order, axis=-1)
    before = np.cumsum(room, axis=-1) - room
    filled = np.clip((counts - kept).sum(-1, keepdims=True) - before, 0.0, room)
    np.put_along_axis(kept, order, np.take_along_axis(kept, order, axis=-1) + filled, axis=-1)
    missing = total[:, None, None] - kept.sum(-1, keepdims=True)
    order = np.argsort(-kept, axis=-1, kind="stable")[..., ::-1]
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(size), kept.shape), axis=-1)
    more, less = np.maximum(missing, 0.0), np.maximum(-missing, 0.0)
    raised = kept + np.floor(more / size) + (place < more % size)
    empty = np.minimum((kept == 0).sum(-1, keepdims=True), less)
    lowered = -_raised(-raised[..., None, :], empty[..., 0], np.zeros((1, 1, 1, 1)))[..., 0, :]
    result: Array = lowered - ((place >= empty) & (place < less) & (lowered > 0))
    return result


def _raised(counts: Array, more: Array, cap: Array) -> Array:
    """`counts` [n, draws, ranks, experts] with `more` [n, draws] added one at a time, the ranks in turn, each to its least loaded expert.

    The least loaded experts of a rank rise to a common level, or to `cap`; what then finds no room is left out.
    """
    size = counts.shape[-1]
    turn = np.arange(counts.shape[-2])
    each = np.floor((more[..., None] - turn + counts.shape[-2] - 1) / counts.shape[-2])  # [n, draws, ranks]
    order = np.argsort(counts, axis=-1, kind="stable")
    rising = np.take_along_axis(counts, order, axis=-1)
    places = np.arange(1, size + 1)
    cost = places * rising - np.cumsum(rising, axis=-1)  # to raise the lowest j experts to the level of the j-th
    held = np.maximum((cost <= each[..., None]).sum(-1, keepdims=True), 1)
    over = each[..., None] - np.take_along_axis(cost, held - 1, axis=-1)
    level = np.take_along_axis(rising, held - 1, axis=-1) + np.floor(over / held)
    raised = np.where(places <= held, level + (places <= over % held), rising)
    result = np.empty_like(counts)
    np.put_along_axis(result, order, np.minimum(raised, cap), axis=-1)
    return result


def _mend_sum(counts: Array, tokens: Array, topk: int) -> Array:
    """Bring the sum to n k, in the order of the experts, no count under 0 or over n: for the few pairs that found no room on their rank."""
    cap = tokens[:, None, None]
    counts = counts.copy()
    for _ in range(64):
        missing = (tokens * topk)[:, None] - counts.sum(-1)
        if not missing.any():
            break
        add = missing[..., None] > 0
        open_ = np.where(add, counts < cap, counts > 0)
        order = np.cumsum(open_, axis=-1)
        share = np.maximum(np.floor(np.abs(missing) / np.maximum(open_.sum(-1), 1)), 1.0)[..., None]
        chosen = open_ & (order * share <= np.abs(missing)[..., None])
        step = np.where(add, np.minimum(share, cap - counts), -np.minimum(share, counts))
        counts += np.where(chosen, step, 0.0)
    return counts
