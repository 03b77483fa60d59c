"""Loads that others are made of: all slots computed, and tables of loads that are alike."""

import numpy as np
import pytest

from perfmodel.workload.loads import AllSlotsLoad, CountLoad
from perfmodel.workload.routing import Problem, busiest_load, parse_routing
from perfmodel.workload.skewed import skewed_load


def counts(*rows) -> CountLoad:
    values = np.array(rows, float)[:, None, :]
    return CountLoad(values, np.array([5.0] * len(rows)))


def test_slots_elsewhere_are_one_more_expert_of_work_and_none_of_weights():
    load = AllSlotsLoad(counts([3, 0, 4]), np.array([4.0]))  # 5 tokens x top-4 = 20 slots, of which 7 are here
    assert load.pairs == pytest.approx([20])
    assert load.active == pytest.approx([2])
    assert load.tokens == pytest.approx([5])
    assert load.tiles(4) == pytest.approx([1 + 1 + 4])  # the 13 in vain fill 4 tiles of 4


def test_all_tokens_may_enter_a_rank():
    load = AllSlotsLoad(counts([3, 0, 4]), np.array([4.0]), np.array([8.0]))  # 8 tokens x top-4 = 32 slots, 25 of them in vain
    assert load.pairs == pytest.approx([32])
    assert load.tiles(4) == pytest.approx([1 + 1 + 7])


def test_without_other_ranks_all_slots_are_local():
    local = counts([10, 5, 5])
    load = AllSlotsLoad(local, np.array([4.0]))
    assert load.pairs == pytest.approx(local.pairs)
    assert load.tiles(8) == pytest.approx(local.tiles(8))


def test_a_table_of_loads_says_what_each_row_says_by_itself():
    tokens = np.array([1.0, 64, 7, 64, 1, 300])
    problem = Problem(tokens, *(np.array(column, float) for column in ([128, 64, 128, 64, 128, 64], [8] * 6, [1, 4, 1, 4, 1, 4])))
    routing, menu = parse_routing("powerlaw:1.2"), (16, 64)
    table, plain = skewed_load(routing, problem, menu), skewed_load(routing, problem)
    assert table.pairs == pytest.approx(plain.pairs)
    assert table.active == pytest.approx(plain.active)
    assert table.tokens == pytest.approx(plain.tokens)
    for height in menu:
        assert table.tiles(height) == pytest.approx(plain.tiles(height))
    assert len(table.table[0]) == 4  # four different rows


def test_all_slots_cost_no_less_than_local_ones():
    tokens = np.array([1.0, 16, 512, 4096])
    problem = Problem(tokens, *(np.full(4, value) for value in (256.0, 8.0, 8.0)))
    local, _ = busiest_load(parse_routing("balanced"), problem)
    every = AllSlotsLoad(local, problem.topk)
    for height in (16, 128):
        assert (every.tiles(height) >= local.tiles(height)).all()
