"""A process that answers jobs. It can be killed at any time, which a thread cannot: that is the time limit, and the clean stop."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

from perfmodel.server.problem import Answer


class OverTimeError(Exception):
    """The time limit is over."""


class GoneError(Exception):
    """The process ended before it had answered: killed, or out of memory."""


class Worker:
    """One such process, started at once; `ask` waits for it. Raises GoneError where the system gives no process, memory or files."""

    def __init__(self, nice: int = 0) -> None:
        self._ending = Lock()
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of other threads
        try:
            self._connection, other = context.Pipe()
            with other:
                self._process = context.Process(target=_work, args=(other, nice), daemon=True, name="perfmodel worker")
                self._process.start()
        except OSError as error:
            raise GoneError(str(error)) from error

    def ask(self, jobs: list[tuple[str, bytes]], limit_s: float, start_s: float = 300.0) -> tuple[list[Answer], list[str]]:
        """(answers, lines for the log). `start_s` is for imports and compilation, `limit_s` for the jobs.

        Raises OverTimeError, GoneError.
        """
        try:
            self._connection.send(jobs)
            self._receive(start_s)
            answered: tuple[list[Answer], list[str]] = self._receive(limit_s)
            return answered
        except (EOFError, OSError) as error:
            raise GoneError(str(error)) from error

    def _receive(self, limit_s: float) -> Any:
        if not self._connection.poll(limit_s):
            raise OverTimeError
        return self._connection.recv()

    def alive(self) -> bool:
        """Whether the process is still there."""
        return self._process.is_alive()

    def kill(self) -> None:
        """End the process now. Several threads may ask for it: a second close would fail, or close what another has opened since."""
        with self._ending:
            self._process.kill()
            self._process.join(1.0)
            if not self._connection.closed:
                self._connection.close()


def _work(connection: Connection, nice: int) -> None:
    """Answer until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the server, which ends this process
    if hasattr(os, "nice"):
        os.nice(nice)
    from perfmodel.server.answers import answers

    while True:
        try:
            jobs = connection.recv()
            if any(name == "simulate" for name, _ in jobs):
                _compile()
            connection.send("started")
            lines: list[str] = []
            connection.send((answers(jobs, lines.append), lines))
        except (EOFError, OSError):
            return


def _compile() -> None:
    """The loop of the simulation takes long to compile, once on each machine: not a request's own time."""
    from perfmodel.simulation.run import simulate

    simulate("qwen3-30b-a3b", "h100", gpus=1, concurrency=1, isl=8, osl=2, requests=1)
