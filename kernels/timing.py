"""The one way in which kernels are timed: CUDA graphs replayed for a while, contenders in turn, clock and power read meanwhile.

A graph of about 2.5 ms holds many calls, so launches cost nothing; the calls go round copies of the weights that are larger than L2
together, so each call finds its weights in DRAM. Contenders take turns with pauses, so that none has the cooler chip.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from perfmodel.kernels.clocks import Sensor, State, sensor_of

GRAPH_S = 2.5e-3
"""What one graph should take."""
HOLD_S = 0.07
"""How long replays go on for a median."""
PAUSE_S = 0.12
"""Rest before each turn."""
ROUNDS = 2
LEAST_REPLAYS = 4


@dataclass(frozen=True)
class Replay:
    """A captured graph of `calls` calls."""

    graph: Any = field(repr=False)
    calls: int


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: median, lowest and highest tenth of the replays of all turns, the best first replay after a pause.

    Clock and power are the last reading, 60 % into a turn.
    """

    us: float
    us_low: float
    us_high: float
    burst_us: float
    hold_s: float
    sm_MHz: int | None
    power_W: float | None


def capture(calls: Sequence[Callable[[], None]], seconds: float = GRAPH_S) -> Replay:
    """A graph that makes `calls` in turn, again and again, for about `seconds`. Each enqueues on torch's current stream."""
    import torch

    once = _enqueue_s(calls)
    turns = max(1, round(seconds / once))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()  # what the calls read may have been written on another stream
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        for _ in range(turns):
            for call in calls:
                call()
    torch.cuda.synchronize()
    return Replay(graph, turns * len(calls))


def measure(
    contenders: Mapping[str, Replay],
    *,
    hold_s: float = HOLD_S,
    rounds: int = ROUNDS,
    pause_s: float = PAUSE_S,
    sensor: Sensor | None = None,
) -> dict[str, Timing]:
    """The timing of each contender; they take turns `rounds` times."""
    import torch

    sensor = sensor or sensor_of(torch.cuda.current_device())
    turns: dict[str, list[_Turn]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, replay in contenders.items():
            time.sleep(pause_s)
            turns[name].append(_turn(replay, hold_s, sensor))
    return {name: summarise(found, hold_s) for name, found in turns.items()}


@dataclass(frozen=True)
class _Turn:
    """Microseconds a call: of the first replay, and of each one after it."""

    burst: float
    held: list[float]
    state: State


def _turn(replay: Replay, hold_s: float, sensor: Sensor) -> _Turn:
    import torch

    burst_s = _replays(replay, 1)[0]
    events = _record(replay, max(LEAST_REPLAYS, round(hold_s / burst_s)))
    time.sleep(0.6 * hold_s)
    state = sensor.read()
    torch.cuda.synchronize()
    per_call = 1e6 / replay.calls
    return _Turn(burst_s * per_call, [second * per_call for second in _elapsed(events)], state)


def summarise(turns: Sequence[_Turn], hold_s: float) -> Timing:
    """One timing of all turns of a contender."""
    held = sorted(us for turn in turns for us in turn.held)
    tenth = len(held) // 10
    return Timing(
        us=statistics.median(statistics.median(turn.held) for turn in turns),
        us_low=held[tenth],
        us_high=held[-1 - tenth],
        burst_us=min(turn.burst for turn in turns),
        hold_s=hold_s,
        sm_MHz=turns[-1].state.sm_MHz,
        power_W=turns[-1].state.power_W,
    )


def _enqueue_s(calls: Sequence[Callable[[], None]]) -> float:
    """Seconds that all calls take one after the other, once warm."""
    import torch

    for call in calls:
        call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for call in calls:
        call()
    end.record()
    torch.cuda.synchronize()
    return max(start.elapsed_time(end) * 1e-3, 1e-6)


def _replays(replay: Replay, count: int) -> list[float]:
    """Seconds of each of `count` replays, waited for."""
    import torch

    events = _record(replay, count)
    torch.cuda.synchronize()
    return _elapsed(events)


def _record(replay: Replay, count: int) -> list[Any]:
    """Enqueue `count` replays; the events before, between and after them."""
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        replay.graph.replay()
        event.record()
    return events


def _elapsed(events: Sequence[Any]) -> list[float]:
    return [first.elapsed_time(second) * 1e-3 for first, second in pairwise(events)]
