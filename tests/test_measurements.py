"""Columns of measured rows: the numbers of groups, and how many rows of a table fits may take."""

import numpy as np
import pytest

from perfmodel.profiles.op_profile import load_op_profile
from perfmodel.validation.calibrate_ops import MOST_SHARE, MOST_SHARE_APART, calibrate_ops
from perfmodel.validation.measurements import Labels, Measurements, group_ids


@pytest.mark.parametrize(
    "columns",
    [
        ([3, 1, 3, 1, 3], [0, 0, 1, 0, 0]),
        ([-5, 2**40, -5, 0, 2**40], [2**61, 1, 2**61, 1, 1]),
        ([0.5, 0.25, 0.5, 0.5, 0.25], [7, 7, 7, 8, 7]),
        (["b", "a", "b", "b", "a"], [1, 1, 1, 2, 1]),
    ],
)
def test_groups_are_the_rows_that_are_equal_in_all_columns(columns):
    ids = group_ids([np.array(column) for column in columns])
    keys = list(zip(*columns, strict=True))
    assert ids.tolist() == [sorted(set(keys)).index(key) for key in keys]


def test_wide_ranges_of_many_columns_do_not_run_over():
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, 2**20 - 1, 50) for _ in range(6)]
    assert sorted(group_ids([*columns, *columns]).tolist()) == list(range(50))


def attention_rows(count):
    """Decode on H200 that takes 10 us and the cache at 4 TB/s."""
    rng = np.random.default_rng(1)
    draw = {"batch": 2 ** rng.integers(0, 9, count), "context": 2 ** rng.integers(6, 15, count), "kv_heads": 2 ** rng.integers(0, 4, count)}
    fixed = {"key_dim": 128, "value_dim": 128, "cache_dim": 256, "window": 0, "prefix": 0}
    sizes = draw | {"heads": 4 * draw["kv_heads"]} | {name: np.full(count, value) for name, value in fixed.items()}
    latency = 1e-5 + draw["batch"] * draw["context"] * draw["kv_heads"] * 512.0 / 4e12
    texts = {"gpu": "h200", "kernel": "attention-trtllm-decode", "format": "bf16", "source": ""}
    labels = {name: Labels(np.zeros(count, np.int32), (text,)) for name, text in texts.items()}
    return Measurements("attention", "made up", np.arange(count), labels, sizes, latency)


def test_fits_of_an_op_take_few_rows_and_find_what_rows_were_made_of():
    rows = attention_rows(20_000)
    (fitted,) = calibrate_ops(rows, np.ones(len(rows), bool))
    assert fitted.rows <= (MOST_SHARE + MOST_SHARE_APART) * len(rows) + 1
    assert fitted.fit.menus == load_op_profile("attention-trtllm-decode").find_fit("hopper", "bf16").menus
    assert fitted.fit.parameters["fixed_us"] == pytest.approx(10.0, abs=3.0)
    assert fitted.fit.interval.low > 0.8
    assert fitted.fit.interval.high < 1.25
