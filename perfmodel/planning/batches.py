"""Which batches and which mixes of instances a search looks at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.planning.candidates import Table
from perfmodel.planning.points import Requests
from perfmodel.planning.types import Rows
from perfmodel.serving.engine import Engine
from perfmodel.serving.steady import prompt_time
from perfmodel.serving.step import decode, step_time
from perfmodel.units import MICROSECOND
from perfmodel.workload.expectation import Array

MOST_A_RANK = 1024
"""Sequences of one attention rank and stage: what engines' schedulers take by default; measured services go no further."""
PREFILL_BUSY = 0.8
"""Share of the time for which prefill instances are planned to be busy: in a queue, the rest keeps waiting short."""
MOST_DECODERS = 16
"""Instances that decode in one mix; more of them are more mixes."""
KEPT_PREFILL, KEPT_DECODE, KEPT_MIXES = 3, 40, 2
"""Ways to run prompts and to decode that are combined, for each GPU, format and size of an instance; and mixes of instances, for each pair
and number of GPUs."""


def grid() -> Array:
    """1, 2 ... 8, 10, 12, 14, 16, 20 ... MOST_A_RANK: four to a doubling."""
    powers = 2.0 ** np.arange(np.log2(MOST_A_RANK))
    steps = (powers[:, None] * [1.0, 1.25, 1.5, 1.75]).ravel()
    return np.append(steps[steps == np.floor(steps)], float(MOST_A_RANK))


def single_batches(table: Table, fits: Rows, concurrency: int | None, most_gpus: Array) -> tuple[Rows, Array, Array]:
    """(rows, batch, copies) of the aggregated instances to look at: all batches that fit, or those that share the concurrency out."""
    each = grid()[None, :] * (table.work.dp * table.work.pp)[fits, None]
    copies = np.ones_like(each)
    able = each <= table.most[fits, None]
    if concurrency is not None:
        copies = np.ceil(concurrency / each)  # fewer and fewer along the grid
        each = concurrency / copies
        able = (each <= table.most[fits, None]) & (copies * table.gpus[fits, None] <= most_gpus[fits, None])
        able[:, 1:] &= copies[:, 1:] < copies[:, :-1]
    row, at = np.nonzero(able)
    return fits[row], each[row, at], copies[row, at]


@dataclass(frozen=True)
class Mixes:
    """Disaggregated services to look at: rows of the table, instances of each, clients in all."""

    prefill: Rows
    prefillers: Array
    decoding: Rows
    decoders: Array
    clients: Array


def mixes(table: Table, fits: Rows, requests: Requests, engine: Engine, concurrency: int | None, most_gpus: float) -> Mixes:
    """Pairs of the best prefill and decode instances of one GPU and format, with as many of each as their rates ask for."""
    small = table.gpus[fits] <= most_gpus - table.gpus[fits].min()  # beside one that decodes
    first, alone = _prefills(table, fits[small], requests, engine)
    second, batch, tpot = _decoders(table, fits, requests, engine, concurrency, most_gpus - table.gpus[first].min())
    p, d = (grid.ravel() for grid in np.meshgrid(np.arange(len(first)), np.arange(len(second)), indexing="ij"))
    makes = (table.work.dp * table.work.pp)[first][p] / alone[p] * PREFILL_BUSY
    takes = batch[d] / (requests.output * tpot[d])
    some = np.arange(1.0, MOST_DECODERS + 1)[None, :] if concurrency is None else np.round(concurrency / batch[d])[:, None]
    index, x, y = _instances(makes, takes, some, table.gpus[first][p], table.gpus[second][d], most_gpus)
    p, d = p[index], d[index]
    before = (engine.first_us + engine.transfer_us) * MICROSECOND + 1.5 * alone[p]
    clients = np.floor(y * batch[d] * (1.0 + before / (requests.output * tpot[d])))
    if concurrency is not None:
        clients = np.full_like(clients, float(concurrency))
    return Mixes(first[p], x, second[d], y, np.maximum(clients, y))


def _prefills(table: Table, fits: Rows, requests: Requests, engine: Engine) -> tuple[Rows, Array]:
    """Rows that run a prompt fastest or most prompts a GPU, of each size, and the seconds of a prompt."""
    sub = table.take(fits)
    alone = prompt_time(sub.work, sub.rates, engine, requests.load(np.ones(len(fits))))
    rate = sub.work.dp * sub.work.pp / alone / sub.gpus
    best = fronts(sub.gpus, -alone, rate, KEPT_PREFILL)
    return fits[best], alone[best]


def _decoders(
    table: Table, fits: Rows, requests: Requests, engine: Engine, concurrency: int | None, most_gpus: float
) -> tuple[Rows, Array, Array]:
    """(rows, batch, seconds a token) of the decode instances that are fastest for a user or in all, of each size."""
    rows, batch, _ = single_batches(table, fits, concurrency, np.full(len(table.gpus), most_gpus))
    small = table.gpus[rows] <= most_gpus
    rows, batch = rows[small], batch[small]
    sub = table.take(rows)
    a_rank = np.maximum(batch / (sub.work.dp * np.minimum(sub.work.pp, np.maximum(batch, 1.0))), 1.0)
    tpot = step_time(sub.work, sub.rates, engine, decode(a_rank, np.full_like(batch, requests.context)))
    best = fronts(sub.gpus, 1.0 / tpot, batch / tpot / sub.gpus, KEPT_DECODE)
    return rows[best], batch[best], tpot[best]


def _instances(makes: Array, takes: Array, y: Array, g_prefill: Array, g_decode: Array, most: float) -> tuple[Rows, Array, Array]:
    """(pair, prefillers, decoders): for each pair the KEPT_MIXES mixes that waste least of what they could do, within `most` GPUs and
    within each power of two below it: a small mix may keep a limit that a larger one breaks.

    makes: requests a second of one prefill instance; takes: of one that decodes; y: numbers of the latter to try, [pairs or 1, tries].
    """
    y = np.broadcast_to(y, (len(makes), y.shape[1]))
    x = np.maximum(np.ceil(y * (takes / makes)[:, None] - 1e-9), 1.0)
    gpus = x * g_prefill[:, None] + y * g_decode[:, None]
    kept = np.zeros(y.shape, dtype=bool)
    for within in (*2.0 ** np.arange(np.ceil(np.log2(max(most, 1.0)))), most):
        served = np.where(gpus <= within, y * takes[:, None] / gpus, 0.0)
        order = np.argsort(-served, axis=1, kind="stable")[:, :KEPT_MIXES]
        np.put_along_axis(kept, order, True, axis=1)
    pair, at = np.nonzero(kept & (gpus <= most) & (y > 0))
    return pair, x[pair, at], y[pair, at]


def front(a: Array, b: Array) -> Rows:
    """Rows that no other beats in both `a` and `b` (more is better), the largest `a` first; of equals the first."""
    order = np.lexsort((np.arange(len(a)), -b, -a))
    best = np.concatenate([[-np.inf], np.maximum.accumulate(b[order])[:-1]])
    kept: Rows = order[b[order] > best]
    return kept


def fronts(gpus: Array, a: Array, b: Array, most: int) -> Rows:
    """`most` rows of the front of each number of `gpus`: larger instances, which more GPUs allow, displace no smaller ones."""
    sizes = [np.flatnonzero(gpus == size) for size in np.unique(gpus)]
    return np.concatenate([own[thin(front(a[own], b[own]), most)] for own in sizes] or [np.zeros(0, dtype=int)])


def thin(rows: Rows, most: int) -> Rows:
    """At most `most` of `rows`, evenly spread, both ends included."""
    if len(rows) <= most:
        return rows
    kept: Rows = rows[np.unique(np.round(np.linspace(0, len(rows) - 1, most)).astype(int))]
    return kept
