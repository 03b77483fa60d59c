import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import PerfModelError
from perfmodel.workload.placement import add_replicas, place
from perfmodel.workload.powerlaw import DRAWS, SEED, powerlaw_counts
from perfmodel.workload.routing import Problem, Routing, busiest_load, parse_routing, touch_probability
from perfmodel.workload.skewed import scaled_counts, zipf_probability


def problem(tokens, experts=256, topk=8, ep=1) -> Problem:
    tokens = np.atleast_1d(np.asarray(tokens, float))
    return Problem(tokens, *(np.full_like(tokens, float(v)) for v in (experts, topk, ep)))


def collector_counts(tokens: int, experts: int, topk: int, ep: int) -> np.ndarray:
    """Rank 0 under the balanced assignment of the public collector, token by token."""
    stride = -(-experts // topk)
    counts = np.zeros(experts)
    for token in range(tokens):
        start = token if tokens >= stride else token * stride // tokens
        for slot in range(topk):
            counts[(start + slot * stride) % experts] += 1
    return counts[: experts // ep]


@pytest.mark.parametrize(("experts", "topk"), [(256, 8), (128, 4), (64, 8), (8, 2)])
@pytest.mark.parametrize("ep", [1, 2, 8])
@pytest.mark.parametrize("tokens", [1, 3, 7, 31, 32, 48, 100, 256, 1000])
def test_balanced_equals_the_collector_counted_token_by_token(experts, topk, ep, tokens):
    counts = collector_counts(tokens, experts, topk, ep)
    load, _ = busiest_load(Routing("balanced"), problem(tokens, experts, topk, ep))
    assert load.pairs[0] == counts.sum()
    assert load.active[0] == (counts > 0).sum()
    for rows in (1, 8, 64):
        assert load.tiles(rows)[0] == np.ceil(counts / rows).sum()


def test_balanced_rank_0_gets_the_rounded_up_counts():
    load, ratio = busiest_load(Routing("balanced"), problem(48, 256, 8, 32))
    assert load.pairs[0] == 16  # not 48 x 8 / 32 = 12
    assert ratio[0] == pytest.approx(16 / 12)


@pytest.mark.parametrize("kind", ["balanced", "uniform", "powerlaw:1.2", "zipf:1", "group-limited:8/4"])
def test_pairs_of_one_rank_are_tokens_times_top_k(kind):
    load, ratio = busiest_load(parse_routing(kind), problem([1, 5, 64, 4096]))
    assert load.pairs == pytest.approx(np.array([1, 5, 64, 4096]) * 8)
    assert ratio == pytest.approx(1)
    assert (load.active <= np.minimum(256, load.pairs) + 1e-9).all()


def test_uniform_active_experts_by_formula():
    load, _ = busiest_load(Routing("uniform"), problem([1, 64]))
    assert load.active == pytest.approx([8, 256 * (1 - (1 - 8 / 256) ** 64)])


def test_the_busiest_rank_of_random_routing_against_sampling():
    rng = np.random.default_rng(3)
    loads = []
    for _ in range(300):
        chosen = np.argpartition(rng.random((64, 256)), 8, axis=1)[:, :8]
        loads.append(np.bincount(chosen.ravel() // 32, minlength=8).max())
    load, _ = busiest_load(Routing("uniform"), problem(64, ep=8))
    assert load.pairs[0] == pytest.approx(np.mean(loads), rel=0.03)


def test_group_limited_tokens_touch_fewer_ranks_against_sampling():
    rng = np.random.default_rng(4)
    hits = 0
    for _ in range(4000):
        groups = rng.permutation(8)[:4]
        experts = rng.choice(np.concatenate([np.arange(g * 32, g * 32 + 32) for g in groups]), 8, replace=False)
        hits += bool((experts // 32 == 0).any())
    p = problem(1, ep=8)
    assert touch_probability(p, 8, 4)[0] == pytest.approx(hits / 4000, abs=0.03)
    assert touch_probability(p, 8, 4)[0] < touch_probability(p)[0]


def test_active_shares_the_tokens_equally():
    load, _ = busiest_load(parse_routing("active:16"), problem(100))
    assert load.active[0] == 16
    assert load.tiles(64)[0] == 16  # 50 tokens each


@pytest.mark.parametrize(
    "text",
    [
        "active:4",
        "active:300",
        "active:2.5",
        "powerlaw",
        "powerlaw:x",
        "powerlaw:-1",
        "uniform:1",
        "group-limited:7/4",
        "group-limited:8",
        "counts:nowhere.csv",
        "zipf:nan",
        "zipf:inf",
        "even",
        "",
        "powerlaw:1e9",
    ],
)
def test_bad_routing_is_refused(text):
    with pytest.raises(PerfModelError):
        busiest_load(parse_routing(text), problem(64))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5000), st.sampled_from([(8, 2), (64, 8), (128, 4), (256, 8)]), st.sampled_from([0.6, 1.0, 1.01, 1.2, 2.0]))
def test_power_law_counts_sum_up_and_no_expert_sees_a_token_twice(tokens, shape, alpha):
    counts = powerlaw_counts(np.array([float(tokens)]), *shape, alpha)
    assert counts.sum(-1) == pytest.approx(tokens * shape[1])
    assert counts.min() >= 0
    assert counts.max() <= tokens


@pytest.mark.parametrize("case", [(1, 256, 8, 8), (7, 256, 8, 4), (64, 256, 8, 16), (300, 128, 8, 8), (5, 8, 2, 2), (33, 64, 6, 1)])
def test_the_sum_of_power_law_counts_is_mended_one_pair_at_a_time(case):
    """The collector's own procedure, step by step, on the same draws."""
    tokens, experts, topk, ep = case
    counts = powerlaw_counts(np.array([float(tokens)]), experts, topk, 1.2, ep)[0].reshape(DRAWS, ep, -1)
    low, high = (1.0, max(0.8 * tokens, 1.0 + 1e-9)) if tokens * topk > experts else (0.01, 2.0)
    for draw, uniform in enumerate(np.random.default_rng(SEED).random((DRAWS, experts))):
        drawn = (low**-0.2 + uniform * (high**-0.2 - low**-0.2)) ** -5.0
        rounded = np.rint(drawn / drawn.sum() * tokens * topk)
        ranks = np.minimum(rounded, tokens).reshape(ep, -1)
        in_turn(ranks, int((rounded - np.minimum(rounded, tokens)).sum()), tokens)
        in_turn(ranks, int(tokens * topk - ranks.sum()), tokens)
        assert (np.sort(counts[draw]) == np.sort(ranks)).all()


@pytest.mark.parametrize("case", [(1, 256, 8), (4, 256, 8), (64, 256, 8), (4096, 64, 6), (5, 8, 2)])
def test_the_earlier_power_law_mends_from_the_least_loaded_expert_of_all(case):
    tokens, experts, topk = case
    counts = powerlaw_counts(np.array([float(tokens)]), experts, topk, 1.2, early=True)[0]
    low, high = (1.0, max(0.8 * tokens, 1.0 + 1e-9)) if tokens * topk > experts else (0.01, 2.0)
    for draw, uniform in enumerate(np.random.default_rng(SEED).random((DRAWS, experts))):
        drawn = (low**-0.2 + uniform * (high**-0.2 - low**-0.2)) ** -5.0
        rounded = np.rint(drawn / drawn.sum() * tokens * topk)
        kept = np.minimum(rounded, tokens)
        for _ in range(int((rounded - kept).sum())):
            kept[next(e for e in np.argsort(-np.minimum(rounded, tokens), kind="stable")[::-1] if kept[e] < tokens)] += 1
        order, missing = np.argsort(-kept, kind="stable")[::-1], int(tokens * topk - kept.sum())
        for turn in range(abs(missing)):
            place = order[turn % experts]
            if missing > 0:
                kept[place] += 1
            else:
                kept[place if kept[place] > 0 else kept.argmax()] -= 1
        assert (np.sort(counts[draw]) == np.sort(kept)).all()


def test_the_earlier_power_law_puts_few_tokens_on_one_rank():
    few = [busiest_load(parse_routing(f"{name}:1.2"), problem(1, ep=8))[0].active[0] for name in ("powerlaw", "powerlaw-early")]
    assert few[0] < 4
    assert few[1] > 6  # of top-8


def in_turn(ranks, missing, cap):
    """Add `missing` pairs (or take them away), one to the least loaded expert of each rank in turn (from the most loaded)."""
    while missing:
        for rank in ranks:
            place = rank.argmin() if missing > 0 else rank.argmax()
            if missing and (rank[place] < cap if missing > 0 else rank[place] > 0):
                rank[place] += np.sign(missing)
                missing -= np.sign(missing)


def test_skew_makes_the_busiest_rank_busier():
    even = busiest_load(Routing("balanced"), problem(4096, ep=8))[0].pairs[0]
    assert busiest_load(parse_routing("powerlaw:1.2"), problem(4096, ep=8))[0].pairs[0] > 1.3 * even


def test_placement_by_hand():
    loads = np.array([[[8.0, 7, 1, 0]]])
    assert place(loads, 2).sum() == 15
    assert place(loads, 2, "round-robin").sum() == 9
    assert place(loads, 2, "balanced").sum() == 8


def test_replicas_share_the_hottest_expert():
    assert sorted(add_replicas(np.array([[[9.0, 3, 2, 2]]]), 2)[0, 0]) == [2, 2, 3, 3, 3, 3]
    with pytest.raises(PerfModelError, match="do not divide"):
        place(np.ones((1, 1, 8)), 4, redundant=1)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 1000), min_size=8, max_size=8), st.sampled_from([2, 4, 8]))
def test_balanced_placement_stays_near_the_best_possible(loads, ep):
    # The greedy rule may lose to a lucky order, but never by more than the heaviest expert over the mean rank.
    counts = np.array(loads, float)[None, None]
    assert place(counts, ep, "balanced").sum() <= sum(loads) / ep + max(loads) + 1e-9


def test_zipf_chances_sum_to_top_k_and_fall():
    chance = zipf_probability(64, 4, 1.0)
    assert chance.sum() == pytest.approx(4)
    assert (np.diff(chance) < 0).all()
    assert chance.max() < 1


def test_counts_scale_to_the_tokens(tmp_path):
    path = tmp_path / "counts.csv"
    path.write_text("tokens\n" + "\n".join(["30", "10", "20", "20"]))
    load, _ = busiest_load(parse_routing(f"counts:{path}"), problem([40, 80], experts=4, topk=2))
    assert load.pairs == pytest.approx([80, 160])
    assert load.tiles(20)[0] == 2 + 1 + 1 + 1


def test_counts_that_no_routing_can_give_are_refused():
    with pytest.raises(PerfModelError, match="more than one visit"):
        scaled_counts(np.array([9.0, 1, 0, 0]), np.array([10.0]), 2)


@pytest.mark.parametrize("text", ["1,2,3", "1,2,x,4", "1,2,-3,4", "0,0,0,0", "nan,1,1,1", ""])
def test_broken_counts_files(tmp_path, text):
    path = tmp_path / "counts.csv"
    path.write_text(text)
    with pytest.raises(PerfModelError, match=r"counts\.csv"):
        busiest_load(parse_routing(f"counts:{path}"), problem(64, experts=4, topk=2))


def test_counts_from_npy_and_a_broken_one(tmp_path):
    np.save(tmp_path / "c.npy", np.array([1, 2, 3, 2]))
    assert busiest_load(parse_routing(f"counts:{tmp_path / 'c.npy'}"), problem(4, 4, 2))[0].pairs[0] == 8
    (tmp_path / "d.npy").write_bytes(b"\x93NUMPY broken")
    with pytest.raises(PerfModelError, match="not a NumPy array"):
        busiest_load(parse_routing(f"counts:{tmp_path / 'd.npy'}"), problem(4, 4, 2))


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=30))
def test_any_text_gives_a_routing_or_an_error_of_ours(text):
    with contextlib.suppress(PerfModelError):
        parse_routing(text)


@pytest.mark.parametrize(("experts", "topk", "ep", "groups"), [(4096, 200, 2, (1, 1)), (1200, 8, 4, (1200, 600)), (16384, 4096, 8, (1, 1))])
def test_many_experts_do_not_overflow(experts, topk, ep, groups):
    load, _ = busiest_load(Routing("group-limited" if groups != (1, 1) else "uniform", groups=groups), problem([1, 64], experts, topk, ep))
    for values in (load.tokens, load.pairs, load.active):
        assert np.isfinite(values).all()
        assert (values > 0).all()
