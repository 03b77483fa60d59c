import numpy as np
import pytest

import perfmodel
from perfmodel.errors import PerfModelError
from perfmodel.latency import CHUNK, moe_latency
from perfmodel.moe_layer import layer_time
from perfmodel.scenario import resolve

SHAPE = {"hidden": 7168, "inter": 2048, "experts": 256, "topk": 8, "format": "nvfp4"}


def test_the_array_call_and_gap_agree():
    tokens = [1, 17, 300, 16384]
    array = moe_latency("b200", **SHAPE, tokens=tokens, kernel="trtllm-cutlass")
    rows = perfmodel.gap("layer:hidden=7168,inter=2048,experts=256,topk=8", "b200", format="nvfp4", kernel="trtllm-cutlass", tokens=tokens)[
        "rows"
    ]
    assert array * 1e6 == pytest.approx([row["latency_us"] for row in rows], rel=1e-12)


def test_columns_broadcast_like_numpy():
    grid = moe_latency("b200", **SHAPE, tokens=np.array([1, 64, 4096])[:, None], ep=np.array([1, 8])[None], kernel="trtllm-gen")
    assert grid.shape == (3, 2)
    one = moe_latency("b200", **SHAPE, tokens=64, ep=8, kernel="trtllm-gen")
    assert one.shape == ()
    assert grid[1, 1] == one


def test_chunks_change_nothing():
    rng = np.random.default_rng(5)
    tokens = rng.integers(1, 16_385, 2 * CHUNK + 3)
    out = moe_latency("h200", hidden=4096, inter=1536, experts=128, topk=8, tokens=tokens, format="bf16", kernel="trtllm-cutlass")
    for i in (0, CHUNK - 1, CHUNK, 2 * CHUNK + 2):
        one = moe_latency("h200", hidden=4096, inter=1536, experts=128, topk=8, tokens=tokens[i], format="bf16", kernel="trtllm-cutlass")
        assert out[i] == pytest.approx(float(one), rel=1e-12)


def test_auto_is_the_fastest_row_by_row():
    tokens = [1, 64, 1024, 16384]
    each = [moe_latency("b200", **SHAPE, tokens=tokens, kernel=p.id) for p in resolve("b200", "nvfp4").profiles]
    assert moe_latency("b200", **SHAPE, tokens=tokens) == pytest.approx(np.minimum.reduce(each))


def test_an_empty_array_gives_an_empty_array():
    assert moe_latency("b200", **SHAPE, tokens=np.array([], dtype=int)).shape == (0,)


def test_an_error_in_a_late_chunk_is_raised():
    tokens = np.full(3 * CHUNK, 64)
    tokens[-1] = 0
    with pytest.raises(PerfModelError, match="tokens"):
        moe_latency("b200", **SHAPE, tokens=tokens)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": 0},
        {"tokens": -1},
        {"tokens": 1.5},
        {"tokens": "many"},
        {"tokens": np.nan},
        {"topk": 300},
        {"ep": 7},
        {"tp": 5},
        {"hidden": 0},
        {"tokens": [1, 2], "ep": [1, 2, 4]},
        {"format": "nvfp5"},
        {"kernel": "trtlm"},
        {"experts": 1e300},
        {"tokens": None},
        {"routing": "balance"},
    ],
)
def test_bad_arrays_name_the_field(change):
    with pytest.raises(PerfModelError):
        moe_latency("b200", **{**SHAPE, "tokens": 64, **change})


def test_ungated_layers_have_a_third_less_work():
    gated, ungated = (moe_latency("b200", **SHAPE, tokens=64, kernel="generic-fused", gated=g) for g in (True, False))
    assert 0.6 < ungated / gated < 0.75


def test_rows_of_mixed_shapes_under_a_power_law_match_single_calls():
    experts, topk, ep = np.array([64, 128, 64]), np.array([4, 8, 4]), np.array([1, 8, 4])
    out = moe_latency("b200", hidden=2048, inter=768, experts=experts, topk=topk, ep=ep, tokens=256, format="nvfp4", routing="powerlaw:1.2")
    for i in range(3):
        one = moe_latency(
            "b200", hidden=2048, inter=768, experts=experts[i], topk=topk[i], ep=ep[i], tokens=256, format="nvfp4", routing="powerlaw:1.2"
        )
        assert out[i] == one


def test_the_scalar_layer_is_the_same_code():
    from perfmodel.scenario import layer_rows

    scenario = resolve("b200", "nvfp4", "trtllm-gen")
    rows = layer_rows(
        {n: np.array([v]) for n, v in {"hidden": 7168, "inter": 2048, "experts": 256, "topk": 8, "tokens": 64, "ep": 1, "tp": 1}.items()}
    )
    assert layer_time(scenario.layer(rows, scenario.profiles[0])[0])[0] == moe_latency("b200", **SHAPE, tokens=64, kernel="trtllm-gen")
