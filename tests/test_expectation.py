import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from perfmodel.workload.expectation import expected_active, expected_maximum, expected_tiles

MENU = (8, 16, 32, 64, 128, 256)


def exact_tiles(tokens: int, probability: float, rows: int) -> float:
    counts = np.arange(tokens + 1)
    return float((binom.pmf(counts, tokens, probability) * np.ceil(counts / rows)).sum())


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 20_000), st.floats(1e-4, 0.999))
def test_tiles_agree_with_the_full_binomial_sum(tokens, probability):
    got = expected_tiles(np.array([float(tokens)]), np.array([probability]), MENU)[:, 0]
    want = [exact_tiles(tokens, probability, rows) for rows in MENU]
    assert got == pytest.approx(want, rel=2e-3)


def test_one_token_of_top_8_of_256_wakes_8_experts():
    assert 256 * expected_active(np.array([1.0]), np.array([8 / 256]))[0] == pytest.approx(8)


def test_two_tokens_by_hand():
    # 256 (1 - (1 - 1/32)^2) = 256 x 63/1024 = 15.75
    assert 256 * expected_active(np.array([2.0]), np.array([1 / 32]))[0] == pytest.approx(15.75)


def test_every_token_on_every_expert_is_certain():
    assert expected_tiles(np.array([100.0]), np.array([1.0]), (64,))[0, 0] == 2


def test_large_means_fill_all_but_half_a_tile():
    # With a spread of many tiles the last one is half full on average: mean / m + (m - 1) / 2m.
    got = expected_tiles(np.array([1e6]), np.array([0.1]), (16,))[0, 0]
    assert got == pytest.approx(1e5 / 16 + 15 / 32, rel=1e-6)


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-3, 0.9), st.sampled_from(MENU))
def test_more_tokens_never_need_fewer_tiles(probability, rows):
    tokens = np.arange(1.0, 4000.0, 7.0)
    tiles = expected_tiles(tokens, np.full_like(tokens, probability), (rows,))[0]
    assert (np.diff(tiles) >= -2e-3 * tiles[1:]).all()


def test_expected_maximum_against_sampling():
    samples = np.random.default_rng(1).standard_normal((200_000, 8)).max(axis=1).mean()
    assert expected_maximum(np.array([8.0]))[0] == pytest.approx(samples, rel=0.01)
    assert expected_maximum(np.array([1.0]))[0] == 0
