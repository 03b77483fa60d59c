"""Lanes: jobs wait in a queue of bounded length for worker processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread

from perfmodel.server.problem import Answer, RefusedError, refused
from perfmodel.server.worker import GoneError, OverTimeError, Worker

MOST_BYTES = 2**14
"""Of jobs that are computed together: some four thousand token counts, a few seconds."""
STOPPED = RefusedError(503, "the server is stopping")
GONE = RefusedError(503, "the computation ended before its time", "Ask for less: it may have run out of memory.")


@dataclass
class Job:
    """A request on its way."""

    name: str
    body: bytes
    alone: bool = False
    """Not to be computed beside others: it was among those that ended a worker."""
    given_up: bool = False
    """Nobody waits for the answer any more."""
    future: Future[Answer] = field(default_factory=Future)

    def start(self) -> bool:
        """Whether someone still waits for the answer; one that was put back has been started before, and that only once."""
        return self.alone or self.future.set_running_or_notify_cancel()


class Lane:
    """`workers` processes, of which each takes up to `together` jobs at a time; at most `waiting` wait."""

    def __init__(
        self, *, workers: int, together: int, waiting: int, limit_s: float, nice: int = 0, log: Callable[[str], None] = lambda line: None
    ) -> None:
        self._together, self._waiting, self._limit_s, self._nice, self._log = together, waiting, limit_s, nice, log
        self._jobs: deque[Job] = deque()
        self._change = Condition()
        self._closed = False
        self._workers: dict[int, Worker] = {}
        self._computed: dict[int, list[Job]] = {}
        self._threads = [Thread(target=self._serve, args=(number,), daemon=True) for number in range(workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, name: str, body: bytes) -> Future[Answer]:
        """The answer to come. Raises RefusedError where too many wait already, or the lane is closed."""
        job = Job(name, body)
        with self._change:
            if self._closed:
                raise STOPPED
            if len(self._jobs) >= self._waiting:
                raise RefusedError(503, "too many requests wait already", "Try again in a few seconds.")
            self._jobs.append(job)
            self._change.notify()
        return job.future

    def abandon(self, future: Future[Answer]) -> None:
        """Nobody waits for this answer any more: leave it out, or end the process where that computes nothing else."""
        with self._change:
            future.cancel()
            alone = next(((number, jobs[0]) for number, jobs in self._computed.items() if [job.future for job in jobs] == [future]), None)
            if alone is None:
                return
            alone[1].given_up = True
            worker = self._workers.pop(alone[0], None)  # within the lock: the next job must not get it
        if worker is not None:
            worker.kill()

    def close(self) -> None:
        """End the processes, whatever they compute, and refuse what waits."""
        with self._change:
            self._closed = True
            waiting, workers = list(self._jobs), list(self._workers.values())
            self._jobs.clear()
            self._change.notify_all()
        for worker in workers:
            worker.kill()
        for job in waiting:
            if job.start():
                job.future.set_result(refused(STOPPED))
        for thread in self._threads:
            thread.join(1.0)

    def _serve(self, number: int) -> None:
        while jobs := self._take():
            answers = self._ask(number, jobs)
            with self._change:
                self._computed.pop(number, None)
            for job, answer in zip(jobs, answers, strict=True):
                if answer is not None:
                    job.future.set_result(answer)

    def _take(self) -> list[Job]:
        """The next jobs, as soon as there are any; none when the lane is closed."""
        with self._change:
            taken: list[Job] = []
            while not taken and not self._closed:
                while self._jobs and self._goes_with(taken, self._jobs[0]):
                    job = self._jobs.popleft()
                    if job.start():
                        taken.append(job)
                if not taken:
                    self._change.wait()
            return taken

    def _goes_with(self, taken: list[Job], job: Job) -> bool:
        """Whether `job` may be computed beside those that are taken: few, small, and none of them under suspicion."""
        if not taken:
            return True
        size = sum(len(other.body) for other in taken) + len(job.body)
        return len(taken) < self._together and size <= MOST_BYTES and not (job.alone or taken[0].alone)

    def _ask(self, number: int, jobs: list[Job]) -> list[Answer | None]:
        """An answer for each job; None for those that were put back, to be tried alone."""
        try:
            worker = self._worker(number, jobs)
            answers, lines = worker.ask([(job.name, job.body) for job in jobs], self._limit_s)
        except (OverTimeError, GoneError) as error:
            over = isinstance(error, OverTimeError)
            self._drop(number)
            if len(jobs) > 1 and self._put_back(jobs):
                return [None] * len(jobs)
            if self._closed:
                return [refused(STOPPED)] * len(jobs)
            reason = "given up, its client has gone" if jobs[0].given_up else "over the time limit" if over else "the process ended"
            self._log(f"{jobs[0].name}: {reason}")
            limit = RefusedError(504, f"not done within {self._limit_s:g} s", "Ask for less, or run the command perfmodel yourself.")
            return [refused(limit if over else GONE)]
        for line in lines:
            self._log(line)
        return list(answers)

    def _put_back(self, jobs: list[Job]) -> bool:
        """Let jobs wait again, before all others; False where the lane is closed, and nobody would take them."""
        with self._change:
            if self._closed:
                return False
            for job in reversed(jobs):
                job.alone = True
                self._jobs.appendleft(job)
            self._change.notify()
        return True

    def _worker(self, number: int, jobs: list[Job]) -> Worker:
        with self._change:
            if self._closed:
                raise GoneError("closed")
            if number not in self._workers or not self._workers[number].alive():  # it may have been killed while it waited
                self._workers[number] = Worker(self._nice)
            self._computed[number] = jobs
            return self._workers[number]

    def _drop(self, number: int) -> None:
        with self._change:
            worker = self._workers.pop(number, None)
        if worker is not None:
            worker.kill()
