"""Which experts the tokens go to: the kinds of routing, and the load that each puts on the busiest rank.

Symmetric kinds (balanced, uniform, group-limited, active) have closed forms; skewed ones (powerlaw, counts) are counted,
zipf is an expectation over experts of unequal probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.files import is_file
from perfmodel.workload.expectation import Array, expected_active, expected_maximum
from perfmodel.workload.layer import MOST_EXPERTS
from perfmodel.workload.loads import BinomialLoad, Load, TwoLevelLoad

Kind = Literal["balanced", "uniform", "group-limited", "powerlaw", "powerlaw-early", "zipf", "active", "counts"]
Placement = Literal["contiguous", "round-robin", "balanced"]
SKEWED = ("powerlaw", "powerlaw-early", "zipf", "counts")


@dataclass(frozen=True)
class Routing:
    """One kind of routing with its parameter. `parameter` is ALPHA, S, N or (n_group, topk_group); `file` holds counts."""

    kind: Kind
    parameter: float = 0.0
    groups: tuple[int, int] = (1, 1)
    file: str | None = None
    placement: Placement = "contiguous"
    redundant: int = 0
    """Replicas of the hottest experts, over all ranks (skewed routing only)."""

    def __post_init__(self) -> None:
        if self.placement not in get_args(Placement):
            raise PerfModelError(
                "no such placement", field="placement", value=self.placement, mend=did_you_mean(self.placement, get_args(Placement))
            )
        if not 0 <= self.redundant <= MOST_EXPERTS:
            raise PerfModelError(f"must be 0 to {MOST_EXPERTS:,}", field="redundant", value=self.redundant, mend="Give a few replicas.")
        if self.redundant and self.kind not in SKEWED:
            raise PerfModelError(
                f"replicas change nothing under {self.kind} routing, where every expert is equally hot",
                field="redundant",
                value=self.redundant,
                mend="Use a skewed routing: powerlaw:ALPHA, zipf:S or counts:FILE.",
            )

    def __str__(self) -> str:
        if self.kind == "counts":
            return f"counts:{self.file}"
        if self.kind == "group-limited":
            return f"group-limited:{self.groups[0]}/{self.groups[1]}"
        return self.kind if self.kind in ("balanced", "uniform") else f"{self.kind}:{self.parameter:g}"


@dataclass(frozen=True)
class Problem:
    """The routed part of a layer at some token counts: broadcast float vectors over rows."""

    tokens: Array
    experts: Array
    topk: Array
    ep: Array

    @property
    def local_experts(self) -> Array:
        """Experts of one rank."""
        return self.experts / self.ep


def parse_routing(text: str, *, groups: tuple[int, int] = (1, 1), placement: Placement = "contiguous", redundant: int = 0) -> Routing:
    """`balanced`, `uniform`, `powerlaw:1.2`, `zipf:1`, `group-limited[:8/4]`, `active:16`, `counts:FILE` as a Routing.

    `powerlaw-early:1.2` is the power law of an earlier version of the public collector.

    `groups` (n_group, topk_group) are the model's own, for `group-limited` without numbers. Raises PerfModelError.
    """
    kind, _, rest = text.partition(":")
    if kind not in get_args(Kind):
        raise PerfModelError("no such routing", field="routing", value=text, mend=did_you_mean(kind, get_args(Kind)))
    options = {"placement": placement, "redundant": redundant}
    if kind in ("balanced", "uniform"):
        if rest:
            raise PerfModelError(f"{kind} takes no parameter", field="routing", value=text, mend=f"Write {kind}.")
        return Routing(kind, **options)  # type: ignore[arg-type]
    if kind == "counts":
        if not is_file(rest):
            raise PerfModelError("no such counts file", field="routing", value=rest, mend="Give a CSV or .npy of tokens per expert.")
        return Routing("counts", file=rest, **options)  # type: ignore[arg-type]
    if kind == "group-limited":
        if not rest and groups == (1, 1):
            raise PerfModelError("which groups? The model names none", field="routing", value=text, mend="Write group-limited:8/4, say.")
        return Routing("group-limited", groups=_parse_groups(rest, text) if rest else groups, **options)  # type: ignore[arg-type]
    return Routing(kind, parameter=_parse_parameter(kind, rest, text), **options)  # type: ignore[arg-type]


def _parse_groups(rest: str, text: str) -> tuple[int, int]:
    parts = rest.split("/")
    if len(parts) != 2 or not all(p.isascii() and p.isdigit() and len(p) <= 5 and int(p) > 0 for p in parts):
        raise PerfModelError("needs GROUPS/USED", field="routing", value=text, mend="Write group-limited:8/4, say.")
    return int(parts[0]), int(parts[1])


def _parse_parameter(kind: str, rest: str, text: str) -> float:
    example = {"powerlaw": "powerlaw:1.2", "powerlaw-early": "powerlaw-early:1.2", "zipf": "zipf:1", "active": "active:16"}[kind]
    try:
        value = float(rest)
    except ValueError:
        value = float("nan")
    whole = kind != "active" or value == int(value) if np.isfinite(value) else False
    if not (whole and 0 < value <= (1e6 if kind == "active" else 10)):
        raise PerfModelError(f"{kind} needs a positive number", field="routing", value=text, mend=f"Write {example}.")
    return value


def busiest_load(routing: Routing, problem: Problem, menu: tuple[int, ...] = ()) -> tuple[Load, Array]:
    """The load of the busiest rank, and its pairs over the mean rank's (1 when all are equal).

    `menu` lists the tile heights that the kernel will ask for. Raises PerfModelError where the routing does not fit the layer.
    """
    if routing.kind == "balanced":
        load: Load = _balanced(problem)
    elif routing.kind in ("uniform", "group-limited"):
        load = _symmetric(problem, _checked_groups(routing, problem), menu)
    elif routing.kind == "active":
        load = _active(problem, routing.parameter)
    else:
        from perfmodel.workload.skewed import skewed_load

        load = skewed_load(routing, problem, menu)
    mean_pairs = problem.tokens * problem.topk / problem.ep
    return load, load.pairs / mean_pairs


def _balanced(p: Problem) -> TwoLevelLoad:
    """Token t, slot j goes to expert t + j ceil(E / k) mod E; rank 0 owns the first experts and gets the rounded-up counts.

    For n < s = E / k tokens the generator spreads them: floor(t s / n) + j s. Where k does not divide E, the counts are levelled.
    """
    stride = np.ceil(p.experts / p.topk)
    exact = stride * p.topk == p.experts
    strides, rest = np.divmod(p.local_experts, stride)
    base, extra = np.divmod(p.tokens, stride)
    few = p.tokens < stride
    upper = strides * extra + np.where(few, np.ceil(rest * p.tokens / stride), np.minimum(rest, extra))
    level_base, level_upper = np.divmod(np.ceil(p.tokens * p.topk / p.ep), p.local_experts)
    base, upper = np.where(exact, base, level_base), np.where(exact, upper, level_upper)
    load = TwoLevelLoad(base, p.local_experts - upper, upper, p.tokens)
    touched = np.where(p.local_experts >= stride, p.tokens, np.minimum(p.tokens, load.pairs))
    return TwoLevelLoad(base, p.local_experts - upper, upper, touched)


def _active(p: Problem, count: float) -> TwoLevelLoad:
    """`count` experts share the tokens equally; they lie evenly over the ranks."""
    if (count > p.experts).any() or (count < p.topk).any():
        raise PerfModelError(
            f"active:{count:g} does not fit {p.experts.min():g} experts, top-{p.topk.max():g}",
            field="routing",
            mend="Choose N between top-k and the number of experts.",
        )
    on_rank = np.minimum(np.ceil(count / p.ep), p.local_experts)
    pairs = np.minimum(np.ceil(p.tokens * p.topk * on_rank / count), p.tokens * on_rank)
    base, upper = np.divmod(pairs, on_rank)
    return TwoLevelLoad(base, on_rank - upper, upper, np.minimum(p.tokens, pairs))


def _checked_groups(routing: Routing, p: Problem) -> tuple[int, int]:
    groups, used = routing.groups
    fits = used <= groups and not (p.experts % groups).any() and not (p.topk > used * (p.experts / groups)).any()
    if not fits:
        raise PerfModelError(
            f"{p.experts.min():g} experts, top-{p.topk.max():g} do not fit {groups} groups of which {used} are used",
            field="routing",
            value=str(routing),
            mend="Give group-limited:GROUPS/USED that divide the experts.",
        )
    return groups, used


def _symmetric(p: Problem, groups: tuple[int, int], menu: tuple[int, ...]) -> BinomialLoad:
    """Every expert is equally likely: each receives Binomial(T, q) tokens, q = k / E on a mean rank, more on the busiest."""
    pairs = p.tokens * p.topk / p.ep
    touched = p.tokens
    if (p.ep > 1).any():
        # ranks' loads sum to a constant, so they spread by sqrt(ep / (ep - 1)) more than independent ones of the same variance
        spread = np.sqrt(p.tokens * _rank_variance(p, *groups) * p.ep / np.maximum(p.ep - 1, 1)) * expected_maximum(p.ep)
        pairs = np.minimum(pairs + np.where(p.ep > 1, spread, 0.0), p.tokens * np.minimum(p.topk, p.local_experts))
        chance = touch_probability(p, *groups)
        touched = np.minimum(p.tokens * np.minimum(chance * pairs * p.ep / (p.tokens * p.topk), 1.0), pairs)
    probability = pairs / (p.tokens * p.local_experts)
    active = p.local_experts * expected_active(p.tokens, probability)
    return BinomialLoad(p.tokens, probability, p.local_experts, pairs, active, touched, menu)


def _rank_variance(p: Problem, groups: int, used: int) -> Array:
    """Variance of the pairs that one token puts on one rank of contiguous experts.

    From the chances that one expert, two of one group, and two of different groups are chosen together.
    """
    size = p.experts / groups
    q = p.topk / p.experts
    chosen = p.topk * (p.topk - 1) / np.maximum(used * size * (used * size - 1), 1e-12)
    same = used / groups * chosen
    other = used * (used - 1) / max(groups * (groups - 1), 1e-12) * chosen
    local = p.local_experts
    same_pairs = local * (np.minimum(local, size) - 1)
    other_pairs = local * (local - 1) - same_pairs
    variance: Array = np.maximum(local * q + same_pairs * same + other_pairs * other - (local * q) ** 2, 0.0)
    return variance


def touch_probability(p: Problem, groups: int = 1, used: int = 1) -> Array:
    """Chance that a token has at least one expert on a given rank, for uniform choice within `used` of `groups` groups."""
    size = p.experts / groups
    in_one = np.minimum(p.local_experts, size)
    on_rank = np.maximum(p.local_experts / size, 1.0)
    missed = np.zeros_like(p.tokens)
    for mine in range(used + 1):
        drawn = _log_choose(on_rank, mine) + _log_choose(groups - on_rank, used - mine) - _log_choose(np.float64(groups), used)
        avoided = _log_choose(used * size - mine * in_one, p.topk) - _log_choose(used * size, p.topk)
        missed += np.exp(drawn + avoided)
    return np.clip(1.0 - missed, 0.0, 1.0)


def _log_choose(n: Array | np.float64, k: Array | int) -> Array:
    """Logarithm of the binomial coefficient of reals, -inf where k is over n. The coefficients themselves overflow."""
    from scipy.special import gammaln

    n, k = np.broadcast_arrays(np.asarray(n, float), np.asarray(k, float))
    inside = (k <= n + 1e-9) & (n >= 0)
    safe_n, safe_k = np.where(inside, n, 1.0), np.where(inside, np.minimum(k, n), 0.0)
    log: Array = gammaln(safe_n + 1) - gammaln(safe_k + 1) - gammaln(safe_n - safe_k + 1)
    return np.where(inside, log, -np.inf)
