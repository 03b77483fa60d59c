"""`perfmodel.sweep`: a grid of MoE layers into a Parquet file, chunk by chunk, here or on a cluster, resumable."""

from __future__ import annotations

import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError
from perfmodel.sweeps.cluster import completed, open_pool
from perfmodel.sweeps.parts import Parts, open_parts
from perfmodel.sweeps.plan import CHUNK, Plan, identity, make_plan, pack
from perfmodel.sweeps.request import PointError, SweepRequest, SweepSummary, read_request

REASONS = 10
"""Messages of points that cannot be, in the summary."""


def sweep(
    grid: SweepRequest | Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    scheduler: str | None = None,
    restart: bool = False,
    chunk: int = CHUNK,
    progress: Callable[[int, int], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> SweepSummary:
    """Predict every point of `grid` (a SweepRequest, a mapping of its keys, or a GRID.yaml) and write them to the Parquet file `out`.

    A row holds the keys, latency, 80 % interval, bound and losses in microseconds, or nulls and an `error`. Finished chunks of `chunk`
    points are kept in `out`.parts until all are there, so the same call goes on after an interrupt; `restart` drops those of another grid.
    `scheduler`: the address of a Dask scheduler, or local:N for N worker processes here (a script that asks for them must do so under
    `if __name__ == "__main__":`, since each worker imports it). `progress(done, points)` is called as chunks
    arrive, `tell` with what a person at a terminal should know.
    Raises PerfModelError for a grid that is wrong, an output that cannot be written, and a cluster that is lost.
    """
    if scheduler is not None and not isinstance(scheduler, str):
        raise PerfModelError("must be an address", field="scheduler", value=scheduler, mend="Give host:port or local:N, or leave it out.")
    target = _writable(out)
    plan = make_plan(read_request(grid), _chunk(chunk))
    packed = pack(plan)
    notes: list[str] = []

    def say(text: str) -> None:
        notes.append(text)
        if tell is not None:
            tell(text)

    begun = time.monotonic()
    with open_parts(target, identity(packed), restart=restart) as parts:
        resumed = sorted(parts.done)
        _say_what_was_there(parts, plan, say)
        _compute(plan, packed, parts, scheduler, say, progress or (lambda done, points: None))
        errors = parts.join(target, _about(plan, packed))
        parts.remove()
    return _summary(target, plan, resumed, errors, time.monotonic() - begun, notes)


def _compute(
    plan: Plan, packed: bytes, parts: Parts, scheduler: str | None, say: Callable[[str], None], progress: Callable[[int, int], None]
) -> None:
    """Compute the chunks that are not there yet."""
    missing = [number for number in range(plan.chunks) if number not in parts.done]
    done = plan.points - _points(plan, missing)
    progress(done, plan.points)
    if not missing:
        return
    with open_pool(scheduler, say) as (submit, ahead):
        for number, data in completed(submit, packed, {number: plan.span(number) for number in missing}, ahead):
            parts.add(number, data)
            done += _points(plan, [number])
            progress(done, plan.points)


def _points(plan: Plan, numbers: list[int]) -> int:
    return sum(stop - start for start, stop in map(plan.span, numbers))


def _say_what_was_there(parts: Parts, plan: Plan, say: Callable[[str], None]) -> None:
    if parts.damaged:
        say(f"{parts.damaged} damaged chunks in {parts.folder.name} are computed anew")
    if parts.done:
        say(f"going on: {len(parts.done)} of {plan.chunks} chunks are there")


def _writable(out: str | Path) -> Path:
    """The file to write, links followed. Raises PerfModelError now for what would fail when everything is computed."""
    if not isinstance(out, str | Path):
        raise PerfModelError("must be the name of a file", field="out", value=out, mend="Give sweep.parquet, say.")
    path = Path(out)
    try:
        if path.suffix != ".parquet":
            raise PerfModelError("must end in .parquet", field="out", value=str(out), mend="Give --out sweep.parquet, say.")
        target = path.resolve()
        if not target.parent.is_dir():
            raise PerfModelError("no such folder", file=target.parent, mend="Make it, or choose another --out.")
        if target.exists():
            mode = target.stat().st_mode
            if not stat.S_ISREG(mode):
                raise PerfModelError("is no ordinary file", file=path, mend="Choose another --out.")
            if not mode & 0o222:
                raise PerfModelError("is write-protected", file=path, mend="Allow writing (chmod u+w) or choose another --out.")
    except (OSError, ValueError, RuntimeError) as error:
        raise PerfModelError(f"cannot write: {error}", field="out", value=str(out), mend="Choose another --out.") from error
    return target


def _chunk(points: int) -> int:
    if isinstance(points, bool) or not isinstance(points, int) or not 1 <= points <= 1_000_000:
        raise PerfModelError("must be a whole number up to a million", field="chunk", value=points, mend=f"Leave it out: {CHUNK}.")
    return points


def _about(plan: Plan, packed: bytes) -> dict[str, str]:
    """Where the rows come from, as metadata of the Parquet file."""
    contents = plan.contents
    return {
        "perfmodel.sweep": identity(packed),
        "perfmodel.version": contents.version,
        "perfmodel.code": contents.code,
        "perfmodel.grid": contents.request.model_dump_json(),
    }


def _summary(out: Path, plan: Plan, resumed: list[int], errors: Counter[str], seconds: float, notes: list[str]) -> SweepSummary:
    return SweepSummary(
        out=str(out),
        points=plan.points,
        errors=errors.total(),
        reasons=tuple(PointError(message=message, points=count) for message, count in errors.most_common(REASONS)),
        chunks=plan.chunks,
        resumed=len(resumed),
        seconds=seconds,
        points_per_s=(plan.points - _points(plan, resumed)) / max(seconds, 1e-9),
        notes=tuple(notes),
    )
