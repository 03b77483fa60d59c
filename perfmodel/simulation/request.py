"""What a simulation is asked for, checked."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from perfmodel.errors import PerfModelError
from perfmodel.serving.anchors import MOST_ANCHORS, Anchor
from perfmodel.simulation.arrivals import gaps_cv
from perfmodel.simulation.lengths import check_lengths
from perfmodel.simulation.table import Speculation
from perfmodel.simulation.words import number_in
from perfmodel.validated import Strict

MOST_REQUESTS = 5_000_000
MOST_TOKENS = 2**24
Count = Field(default=None, ge=1, le=2**20)
Tokens = Field(default=None, ge=1, le=MOST_TOKENS)


class SimulationRequest(Strict):
    """The load and the deployment. One of `rate`, `concurrency` and `trace`; with a trace, `rate` is what its arrivals are scaled to."""

    gpus: int = Field(ge=1, le=2**20)
    rate: float | None = Field(default=None, gt=0, le=1e9)
    """Requests a second, of all instances together."""
    concurrency: int | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    """Clients of a closed loop, each of which sends its next request as soon as the last is answered."""
    trace: str | None = None
    """CSV file of requests."""
    isl: int | None = Tokens
    """Tokens of a prompt; their mean, or most, by `lengths`."""
    osl: int | None = Tokens
    requests: int | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    seed: int = Field(default=0, ge=0, lt=2**63)
    arrivals: str = "poisson"
    lengths: str = "fixed"
    format: str | None = None
    backend: str | None = None
    """trtllm, sglang or vllm, whose habits then count; absent: what they have in common."""
    tp: int | None = Count
    pp: int | None = Count
    dp: int | None = Count
    ep: int | None = Count
    mode: Literal["aggregated", "disaggregated"] = "aggregated"
    prefill_gpus: int | None = Count
    chunk: int | None = Tokens
    """Prompt tokens of a step at most, of any number of prompts; absent: one prompt a step."""
    prefix_cache: float = Field(default=0.0, ge=0, le=1)
    """Share of each prompt that is found in the cache."""
    speculative: str | None = None
    dispatch: Literal["least-loaded", "round-robin"] = "least-loaded"
    anchors: tuple[Anchor, ...] = Field(default=(), max_length=MOST_ANCHORS, strict=False)
    """The user's own measurements of services, which pull the times of steps."""
    max_sequences: int = Field(default=1024, ge=1, le=2**20)
    """Sequences that run at a time in an instance at most."""

    def check(self) -> None:
        """Raises PerfModelError where fields do not go together, or words are wrong."""
        gaps_cv(self.arrivals)
        check_lengths(self.lengths)
        self.speculation  # noqa: B018  (raises)
        for field, wrong, problem, mend in self._faults():
            if wrong:
                raise PerfModelError(problem, field=field, value=getattr(self, field), mend=mend)

    def _faults(self) -> list[tuple[str, bool, str, str]]:
        """(field, whether it is wrong, what is, the mend)."""
        loads = (self.rate is not None) + (self.concurrency is not None)
        no_trace = self.trace is None
        return [
            ("rate", loads + (not no_trace) == 0, "no load given", "Give a rate, a concurrency or a trace."),
            ("concurrency", self.concurrency is not None and loads + (not no_trace) > 1, "goes with neither rate nor trace", "Give one."),
            ("isl", not no_trace and self.isl is not None, "is in the trace", "Leave it out."),
            ("osl", not no_trace and self.osl is not None, "is in the trace", "Leave it out."),
            ("isl", no_trace and self.isl is None, "no prompt length given", "Give --isl 1000, say, or a trace."),
            ("osl", no_trace and self.osl is None, "no answer length given", "Give --osl 200, say, or a trace."),
            ("prefill_gpus", self.mode == "aggregated" and self.prefill_gpus is not None, "is for --mode disaggregated", "Leave it out."),
            ("prefill_gpus", self.mode != "aggregated" and self.prefill_gpus is None, "how many GPUs run prompts is not given", "Give it."),
            (
                "prefill_gpus",
                self.prefill_gpus is not None and self.prefill_gpus >= self.gpus,
                "leaves no GPU to decode",
                "Give fewer than there are GPUs.",
            ),
        ]

    @property
    def speculation(self) -> Speculation:
        """`TOKENS:ACCEPTANCE` as numbers. Raises PerfModelError."""
        if self.speculative is None:
            return Speculation()
        tokens, _, acceptance = self.speculative.partition(":")
        drafted = number_in("speculative", tokens, self.speculative, low=1, high=64, example="2:0.7")
        share = number_in("speculative", acceptance, self.speculative, low=0, high=1, example="2:0.7")
        if drafted != int(drafted):
            raise PerfModelError("needs a whole number of tokens", field="speculative", value=self.speculative, mend="Give 2:0.7, say.")
        return Speculation(int(drafted), share)
