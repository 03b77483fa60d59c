"""Points as an Arrow table and as the bytes of a Parquet file."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.causes import NAMES
from perfmodel.sweeps.plan import unpack
from perfmodel.sweeps.points import FOUND, TIMES, Points, Words, solve
from perfmodel.sweeps.request import SweepRequest

if TYPE_CHECKING:
    import pyarrow as pa

COUNTED = ("tokens", "ep", "tp", "redundant")
KEYS = tuple(SweepRequest.model_fields)
"""The first columns: keys as they were asked for."""
COLUMNS = (*KEYS, *FOUND[1:4], *TIMES[:4], FOUND[0], *TIMES[4:], FOUND[4])
NAMED = tuple(name for name in COLUMNS if name not in (*TIMES, *COUNTED))
"""Columns of words: each is stored once, and a small number a row."""


@cache
def schema() -> pa.Schema:
    """Name, type and nullability of the columns; a loss carries the cause's name as `gap` prints it."""
    import pyarrow as pa

    def one(name: str) -> pa.Field:
        if name in NAMED:
            return pa.field(name, pa.dictionary(pa.int32(), pa.string()), nullable=name not in KEYS)
        if name in COUNTED:
            return pa.field(name, pa.int32(), nullable=False)
        cause = NAMES.get(name.removeprefix("loss_").removesuffix("_us"))
        return pa.field(name, pa.float64(), metadata={"cause": cause} if cause else None)

    return pa.schema([one(name) for name in COLUMNS])


def as_table(points: Points) -> pa.Table:
    """The points, a row each; null where there is nothing."""
    import pyarrow as pa

    def column(name: str) -> pa.Array:
        if name in TIMES:
            return pa.array(points.times[name], mask=np.isnan(points.times[name]))
        if name in FOUND:
            return _dictionary(points.words[name])
        if name in COUNTED:
            return pa.array(np.asarray(points.plan.axes[name])[points.places[name]], pa.int32())
        words = pa.array(points.plan.axes[name], pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(points.places[name], pa.int32()), words)

    return pa.table([column(name) for name in COLUMNS], schema=schema())


def _dictionary(words: Words) -> pa.Array:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(words.codes, mask=words.codes < 0), pa.array(list(words.known), pa.string()))


def compute_part(packed: bytes, start: int, stop: int, halted: Callable[[], bool] = bool) -> bytes:
    """Parquet of the points from `start` to `stop` of a packed plan: nothing else goes in, so any worker may do it, twice if need be.

    Raises CancelledError soon after `halted()` has become true.
    """
    import io

    import pyarrow.parquet as pq

    stream = io.BytesIO()
    pq.write_table(as_table(solve(unpack(packed), start, stop, halted)), stream, **WRITING)
    return stream.getvalue()


WRITING = {"compression": "zstd", "use_dictionary": [*NAMED, *COUNTED], "store_schema": True}
