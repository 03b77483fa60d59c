"""DRAM bytes of grouped GEMMs, against figures worked out by hand."""

from dataclasses import replace

import pytest

from perfmodel.ops.dram import HELD, LOST, Grouped, lost_between_waves, traffic

MB = 1e6
SMALL = Grouped(experts=2, n=256, k=100, tokens=8, rows=4, columns=128, weight_bytes=0.5, act_bytes=2.0)
"""For each expert 2 token tiles x 2 strips; a strip holds 6,400 B of weights, a token tile 800 B."""


def test_one_wave_reads_everything_once():
    found = traffic(SMALL, sm_count=8, l2_capacity=1.0)
    assert (found.weights, found.activations, found.output, found.again) == (25_600, 3_200, 8_192, 0)
    assert (found.read, found.total) == (28_800, 36_992)


@pytest.mark.parametrize(("order", "again"), [("tokens", 2 * 2 * 6_400), ("weights", 2 * 2 * 800)])
def test_a_wave_of_two_tiles_reads_again_what_the_order_splits(order, again):
    """Two SMs: with all strips of a token tile in a wave each expert's weights come twice, with all tokens of a strip its tokens do."""
    found = traffic(replace(SMALL, order=order), sm_count=2, l2_capacity=1.0)
    assert found.again == again


def test_a_large_cache_holds_it_all():
    assert traffic(SMALL, sm_count=2, l2_capacity=1e9).again == 0
    assert traffic(SMALL, sm_count=2, l2_capacity=None).again == 0


def test_ragged_edges_count_what_is_there():
    ragged = replace(SMALL, n=200, tokens=5)
    found = traffic(ragged, sm_count=1, l2_capacity=1.0)
    assert found.weights == 2 * 200 * 100 * 0.5
    # each of 8 tiles alone: both strips (128 and 72 columns) for either token tile (4 and 1 tokens)
    assert found.read == 2 * (2 * 200 * 50 + 2 * 5 * 200)


def test_what_the_cache_drops_grows_from_nothing_to_all():
    assert [lost_between_waves(x, 1.0) for x in (0.1, HELD, (HELD + LOST) / 2, LOST, 5.0)] == pytest.approx([0, 0, 0.5, 1, 1])


def test_many_tiles_are_scaled(monkeypatch):
    whole = traffic(replace(SMALL, experts=64), sm_count=2, l2_capacity=1.0)
    monkeypatch.setattr("perfmodel.ops.dram.MOST_TILES", 64)
    cut = traffic(replace(SMALL, experts=64), sm_count=2, l2_capacity=1.0)
    assert cut.total == pytest.approx(whole.total)


@pytest.mark.parametrize("tokens", [1, 64, 512, 2048])
def test_more_cache_never_reads_more(tokens):
    gemm = Grouped(16, 4096, 7168, tokens, 256, 128, 4.25 / 8, 2.0)
    reads = [traffic(gemm, 132, mib * 2**20).read for mib in (10, 30, 60, 120)]
    assert reads == sorted(reads, reverse=True)
    assert reads[-1] >= gemm.experts * (4096 * 7168 * 4.25 / 8 + tokens * 7168 * 2) * (1 - 1e-12)
