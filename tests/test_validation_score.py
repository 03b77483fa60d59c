"""Flags and scores, against figures worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import PerfModelError
from perfmodel.validation.flags import Trap, flag_rows, is_scored, load_traps, series_of, spikes_and_dips
from perfmodel.validation.measurements import Labels, Measurements, group_ids
from perfmodel.validation.predicting import has_profile, hold
from perfmodel.validation.score import Comparison, families, score

NAN = float("nan")


def layers(latency_us, tokens=None, *, kernel="trtllm-gen", gpu="b200", source="", **sizes):
    """Rows of one layer shape; every argument may be a list."""
    n = len(latency_us)
    shape = {
        "num_tokens": tokens or range(1, n + 1),
        "hidden": 7168,
        "inter": 2048,
        "topk": 8,
        "num_experts": 256,
        "tp": 1,
        "ep": 1,
    } | sizes
    texts = {"gpu": gpu, "kernel": kernel, "format": "nvfp4", "routing": "balanced", "gated": "true", "source": source, "launch": ""}
    return Measurements(
        kind="layer",
        file="mine.csv",
        lines=np.arange(n) + 2,
        labels={name: Labels.of([text] * n if isinstance(text, str) else text) for name, text in texts.items()},
        sizes={name: np.broadcast_to(np.asarray(size), n).astype(np.int64) for name, size in shape.items()},
        latency=np.asarray(latency_us, float) * 1e-6,
    )


def compared(measured, predicted, flags=None, low=0.8, high=1.25, kernel="k"):
    measured, predicted = np.asarray(measured, float), np.asarray(predicted, float)
    n = len(measured)
    family = {
        "gpu": Labels.of(["h200"] * n),
        "kernel": Labels.of([kernel] * n if isinstance(kernel, str) else kernel),
        "format": Labels.of(["bf16"] * n),
    }
    return Comparison(family, measured, predicted, predicted * 0, predicted * low, predicted * high, Labels.of(flags or [""] * n))


def test_score_by_hand():
    # predicted / measured - 1: -0.5, 0, +0.1, +0.4, -0.2; measured / predicted: 2.0 (outside 0.8 .. 1.25), 1.0, 0.91, 0.71 (outside), 1.25
    s = score(compared([2, 1, 10, 10, 10], [1, 1, 11, 14, 8]))
    assert (s["n"], s["scored"], s["flagged"], s["flagged_by"]) == (5, 5, 0, {})
    assert s["mape"] == pytest.approx((0.5 + 0 + 0.1 + 0.4 + 0.2) / 5)
    assert s["median_ape"] == pytest.approx(0.2)
    assert s["p90_ape"] == pytest.approx(0.4 + 0.6 * 0.1)  # the 90th percentile lies 0.6 of the way from the fourth to the fifth
    assert s["bias"] == pytest.approx(0.0)
    assert s["coverage80"] == pytest.approx(0.6)


def test_only_spikes_and_dips_among_the_flagged_are_scored():
    flags = ["", "spike", "dip", "below-floor", "trap:x", "no-profile"]
    s = score(compared([1] * 6, [1.1, 1.2, 1.3, 9, 9, NAN], flags))
    assert (s["n"], s["scored"], s["flagged"]) == (6, 3, 5)
    assert s["flagged_by"] == {"below-floor": 1, "dip": 1, "no-profile": 1, "spike": 1, "trap:x": 1}
    assert s["median_ape"] == pytest.approx(0.2)


def test_nothing_scored_gives_no_figures():
    s = score(compared([1, 1], [NAN, NAN], ["no-profile"] * 2))
    assert s["scored"] == 0
    assert {s[name] for name in ("mape", "median_ape", "p90_ape", "bias", "coverage80")} == {None}


def test_families_are_scored_apart_and_add_up():
    rows = compared([1, 1, 1, 1], [1.1, 1.3, 0.9, 2.0], kernel=["b", "a", "b", "a"])
    found = families(rows)
    assert [(f["kernel"], f["n"]) for f in found] == [("a", 2), ("b", 2)]
    assert [f["mape"] for f in found] == pytest.approx([0.65, 0.1])
    assert score(rows)["mape"] == pytest.approx((0.65 + 0.1) / 2)


def test_joining_keeps_every_row():
    one, two = compared([1, 2], [1, 3], kernel=["b", "a"]), compared([4], [5], ["spike"], kernel="c")
    both = Comparison.join([one, two])
    assert [both.family["kernel"][i] for i in range(3)] == ["b", "a", "c"]
    assert [both.flags[i] for i in range(3)] == ["", "", "spike"]
    assert both.measured.tolist() == [1, 2, 4]
    assert score(both)["n"] == 3


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.floats(0.1, 10)), min_size=1, max_size=30), st.floats(1e-3, 1e3))
def test_units_and_order_change_no_score(pairs, unit):
    measured = np.array([m for m, _ in pairs])
    predicted = measured * [r for _, r in pairs]
    here, there = score(compared(measured, predicted)), score(compared(measured[::-1] * unit, predicted[::-1] * unit))
    for name in ("mape", "median_ape", "p90_ape", "bias"):
        assert here[name] == pytest.approx(there[name], rel=1e-9, abs=1e-12)


# flags


def test_a_spike_and_the_point_after_it():
    spike, dip = spikes_and_dips(np.zeros(5, int), np.arange(5), np.array([10.0, 30.0, 11.0, 22.0, 23.0]))
    assert spike.tolist() == [False, True, False, False, False]
    assert not dip.any()


def test_a_dip_needs_the_return():
    tokens = np.arange(4)
    assert spikes_and_dips(np.zeros(4, int), tokens, np.array([10.0, 7.0, 12.0, 13.0]))[1].tolist() == [False, True, False, False]
    assert not spikes_and_dips(np.zeros(4, int), tokens, np.array([10.0, 7.0, 7.2, 7.4]))[1].any()  # it got faster and stayed so
    assert not spikes_and_dips(np.zeros(4, int), tokens, np.array([10.0, 8.0, 12.0, 13.0]))[1].any()  # 10 / 8 is under 1.3


def test_ends_and_steep_growth_are_no_spikes():
    assert not spikes_and_dips(np.zeros(4, int), np.arange(4), np.array([99.0, 1.0, 4.0, 16.0]))[0].any()


def test_series_are_judged_apart_whatever_the_order():
    # two series whose points alternate; only the second has a spike
    series, tokens = np.array([1, 0, 1, 0, 1, 0]), np.array([3, 1, 2, 2, 1, 3])
    latency = np.array([11.0, 1.0, 40.0, 2.0, 10.0, 4.0])
    assert spikes_and_dips(series, tokens, latency)[0].tolist() == [False, False, True, False, False, False]


def test_repeated_points_count_by_their_median():
    tokens = np.array([1, 2, 2, 2, 3])
    assert not spikes_and_dips(np.zeros(5, int), tokens, np.array([10.0, 10.0, 11.0, 90.0, 12.0]))[0].any()
    assert spikes_and_dips(np.zeros(5, int), tokens, np.array([10.0, 10.0, 80.0, 90.0, 12.0]))[0].tolist() == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_a_series_is_all_but_tokens_and_latency():
    rows = layers([1, 2, 3, 4], [1, 2, 1, 2], source=["a", "a", "b", "b"])
    assert series_of(rows).tolist() == [0, 0, 1, 1]
    assert series_of(layers([1, 2], tp=[1, 2])).tolist() == [0, 1]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["x", "y"])), min_size=1, max_size=20))
def test_group_ids_are_equal_where_rows_are(pairs):
    ids = group_ids([np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])])
    assert len(set(ids.tolist())) == len(set(pairs))
    assert all((ids[i] == ids[j]) == (pairs[i] == pairs[j]) for i in range(len(pairs)) for j in range(len(pairs)))


def flags_of(rows, floor_us, predicted=None, traps=()):
    known = np.ones(len(rows), bool) if predicted is None else np.array(predicted)
    flags = flag_rows(rows, np.asarray(floor_us, float) * 1e-6, known, traps)
    return [flags[i] for i in range(len(rows))], is_scored(flags).tolist()


def test_below_the_floor_is_flagged_and_on_it_is_not():
    assert flags_of(layers([99.9, 100, 101]), [100, 100, 100]) == (["below-floor", "", ""], [False, True, True])


def test_one_flag_a_row_in_the_stated_order():
    trap = Trap(name="t", why="w", source="s", sources=("bad*",))
    rows = layers([1, 1, 9, 1], source=["bad 1", "bad 1", "", ""], kernel=["a", "b", "b", "b"])
    names, scored = flags_of(rows, [NAN, 5, 5, 5], [False, True, True, True], [trap])
    assert names == ["no-profile", "trap:t", "", "below-floor"]
    assert scored == [False, False, True, False]


def test_the_deepseek_shape_is_a_trap_for_two_versions_only():
    sources = ["sglang 0.5.14", "sglang 0.5.10", "vllm 0.24.0 triton", "", "vllm 0.24.0"]
    rows = layers([1e6] * 5, source=sources, num_experts=[256, 256, 256, 256, 128])
    flags, _ = flags_of(rows, [0] * 5, traps=load_traps())
    assert flags == ["trap:group-limited", "", "trap:group-limited", "", ""]


def test_min_latency_is_a_trap_in_any_shape():
    rows = layers([1e6] * 2, source=["trtllm 1.3.0 moe_torch_flow_min_latency", "trtllm 1.3.0 moe_torch_flow_cutlass"], num_experts=8)
    assert flags_of(rows, [0] * 2, traps=load_traps())[0] == ["trap:min-latency", ""]


def test_traps_say_why_and_where_from():
    assert all(len(trap.why) > 40 and trap.source for trap in load_traps())


# the model's answers


def half_of(kind, labels, sizes):
    """A fake model: tokens in microseconds, and the floor at half of it."""
    latency = sizes["num_tokens"] * 1e-6
    return np.stack([latency, latency / 2, latency * 0.9, latency * 1.1])


def test_hold_puts_each_answer_in_its_row():
    rows = layers([10, 20, 30, 40], [40, 30, 20, 10], kernel=["trtllm-gen", "marlin", "trtllm-gen", "no-such-kernel"])
    held = hold(rows, half_of)
    assert held.predicted[[0, 2]] == pytest.approx([40e-6, 20e-6])
    assert np.isnan(held.predicted[[1, 3]]).all()  # marlin has no nvfp4, the last no profile at all
    assert [held.flags[i] for i in range(4)] == ["below-floor", "no-profile", "", "no-profile"]


def test_an_error_names_the_first_row_that_causes_it():
    def strict(kind, labels, sizes):
        if (sizes["tp"] == 5).any():
            raise PerfModelError("does not divide", field="tp", value=5, mend="Mend it.")
        return half_of(kind, labels, sizes)

    rows = layers([1] * 9, tp=[1, 1, 1, 1, 5, 1, 5, 1, 1])
    with pytest.raises(PerfModelError, match=r"mine\.csv:6: tp: does not divide \(got 5\)\. Mend it\."):
        hold(rows, strict)


def test_a_format_that_the_gpu_lacks_cannot_have_been_measured():
    with pytest.raises(PerfModelError, match=r"mine\.csv:3: .*nvfp4 needs fp4 units") as caught:
        hold(layers([1, 1], gpu=["b200", "h200"], kernel="generic-fused"), half_of)
    assert "nvfp4-w4a16" in str(caught.value)


@pytest.mark.parametrize(
    ("gpu", "kernel", "format_id", "there"),
    [
        ("b200", "trtllm-gen", "nvfp4", True),
        ("h200", "marlin", "mxfp4-w4a16", True),
        ("h200", "auto", "bf16", True),
        ("h200", "deepgemm", "mxfp4-w4a16", False),
        ("b200", "nobody", "nvfp4", False),
    ],
)
def test_has_profile(gpu, kernel, format_id, there):
    assert has_profile(gpu, kernel, format_id) is there
