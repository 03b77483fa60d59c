"""Sweeps: every point is what `gap` says of it, whatever the grid; mistakes in the grid are refused at once."""

import json
from itertools import product

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel
from perfmodel.causes import NAMES, Causes
from perfmodel.errors import PerfModelError
from perfmodel.hardware.catalog import find_gpu
from perfmodel.sweeps.plan import identity, make_plan, pack, unpack
from perfmodel.sweeps.request import FAST, SLOW, TRUSTED, CountRange, SweepRequest, read_request
from perfmodel.sweeps.table import COLUMNS, KEYS, as_table

ACCEPTANCE = """model: [gpt-oss-20b, deepseek-v3]
gpu: [h200, b200]
format: [auto]
tokens: {from: 64, to: 4096, steps: 64, scale: linear}
ep: [1, 8]
"""
UNGATED = "layer:hidden=1024,inter=512,experts=16,topk=2,gated=false"


def rows_of(grid: dict) -> list[dict]:
    """The points of a small grid, without a file."""
    from perfmodel.sweeps.points import solve

    plan = make_plan(read_request(grid))
    return as_table(solve(plan, 0, plan.points)).to_pylist()


def as_gap_says(row: dict) -> None:
    """Hold a row against `perfmodel.gap` of the same point: figures, words, or the very message."""
    asked = {key: None if row[key] == "auto" and key != "kernel" else row[key] for key in KEYS}
    result = message = None
    try:
        result = perfmodel.gap(asked.pop("model"), asked.pop("gpu"), **asked)
    except PerfModelError as error:
        message = str(error)
    assert row["error"] == message
    if result is None:
        assert all(row[name] is None for name in COLUMNS if name not in (*KEYS, "error"))
        return
    (expected,) = result["rows"]
    assert (row["bound"], row["kernel_used"]) == (expected["bound"], expected["kernel"])
    assert (row["format_used"], row["routing_used"]) == (result["format"], result["routing"])
    figures = [row["latency_us"], row["low_us"], row["high_us"], row["ideal_us"]]
    assert figures == pytest.approx([expected["latency_us"], *expected["interval_us"], expected["ideal_us"]], rel=1e-9)
    losses = {NAMES[cause]: row[f"loss_{cause}_us"] for cause in Causes._fields}
    assert losses == pytest.approx({loss["cause"]: loss["us"] for loss in expected["losses"]}, rel=1e-6, abs=1e-9)


def test_the_acceptance_grid_has_a_row_a_point(tmp_path, run):
    grid, out = tmp_path / "grid.yaml", tmp_path / "f.parquet"
    grid.write_text(ACCEPTANCE)
    code, printed, err = run("sweep", grid, "--out", out, "--json")
    summary = json.loads(printed)
    assert (code, err, summary["schema"], summary["points"], summary["errors"]) == (0, "", "perfmodel.sweep/1", 512, 0)
    table = pq.read_table(out)
    assert table.column_names == list(COLUMNS)
    points = {tuple(row[key] for key in ("model", "gpu", "tokens", "ep")) for row in table.to_pylist()}
    assert points == set(product(["gpt-oss-20b", "deepseek-v3"], ["h200", "b200"], range(64, 4097, 64), [1, 8]))
    assert table.num_rows == 512
    for row in table.to_pylist()[::37]:
        as_gap_says(row)


def test_columns_are_small_and_typed(tmp_path):
    perfmodel.sweep({"model": ["gpt-oss-20b"], "gpu": ["b200"], "tokens": [1, 64]}, tmp_path / "f.parquet")
    schema = pq.read_schema(tmp_path / "f.parquet")
    kinds = {str(schema.field(name).type) for name in COLUMNS if name.endswith("_us")}
    assert kinds == {"double"}
    assert str(schema.field("model").type).startswith("dictionary<values=string")
    assert str(schema.field("tokens").type) == "int32"
    assert schema.field("loss_launch_us").metadata[b"cause"] == b"launch and sync"
    assert json.loads(schema.metadata[b"perfmodel.grid"])["gpu"] == ["b200"]


def test_losses_add_up_and_the_interval_holds_the_latency():
    for row in rows_of({"model": ["gpt-oss-20b", UNGATED], "gpu": ["b200", "h200"], "tokens": {"from": 1, "to": 9000, "steps": 9}}):
        losses = [row[f"loss_{cause}_us"] for cause in Causes._fields]
        assert row["ideal_us"] + sum(losses) == pytest.approx(row["latency_us"], rel=1e-9)
        assert min(losses) >= -1e-9
        assert 0 < row["low_us"] <= row["latency_us"] <= row["high_us"]


subsets = lambda words: st.lists(st.sampled_from(words), min_size=1, max_size=2, unique=True)  # noqa: E731


@settings(deadline=None, max_examples=12)
@given(
    st.fixed_dictionaries(
        {
            "model": subsets(["gpt-oss-20b", "deepseek-v3", "qwen3-30b-a3b", "kimi-k2", UNGATED]),
            "gpu": subsets(["h200", "b200", "v100", "rtx-5090"]),
            "format": subsets(["auto", "nvfp4", "bf16", "fp8-block"]),
            "kernel": subsets(["auto", "generic-fused", "trtllm-gen"]),
            "routing": subsets(["auto", "balanced", "group-limited", "powerlaw:1.2", "active:8"]),
            "tokens": st.lists(st.integers(1, 20_000), min_size=1, max_size=2, unique=True),
            "ep": subsets([1, 3, 8, 64]),
            "tp": subsets([1, 2, 7]),
            "launch": subsets(["graph", "pdl"]),
            "comm": subsets(["exclude", "include"]),
            "clock": subsets(["burst", "sustained"]),
            "placement": subsets(["contiguous", "balanced"]),
            "redundant": subsets([0, 3, 8]),
        }
    )
)
def test_every_point_is_what_gap_says_of_it_or_why_it_cannot_be(grid):
    rows = rows_of(grid)
    assert len({tuple(row[key] for key in KEYS) for row in rows}) == len(rows) == np.prod([len(values) for values in grid.values()])
    for row in rows[:: max(1, len(rows) // 20)]:
        as_gap_says(row)


@pytest.mark.parametrize("gpu", ["h200", "b200"])
def test_models_that_share_a_call_do_not_change_each_other(gpu):
    models = ["gpt-oss-20b", "deepseek-v3", "qwen3-30b-a3b", "llama-4-scout", "mixtral-8x7b", UNGATED]  # two have shared experts
    grid = {"model": models, "gpu": [gpu], "format": ["auto", "bf16"], "routing": ["uniform", "auto"], "tokens": [3, 700], "ep": [1, 4]}
    for row in rows_of(grid):
        as_gap_says(row)


def test_counts_of_a_file_may_fit_some_tokens_only(tmp_path):
    file = tmp_path / "counts.csv"
    file.write_text("102\n" + "100\n" * 3 + "0\n" * 28)  # top-4: expert 0 may hold a quarter of the pairs, rounded
    rows = rows_of(
        {"model": ["gpt-oss-20b", "deepseek-v3"], "gpu": ["b200"], "tokens": [1, 8, 64, 512, 4096], "routing": [f"counts:{file}"]}
    )
    for row in rows:
        as_gap_says(row)
    assert {row["error"] is None for row in rows if row["model"] == "gpt-oss-20b"} == {True, False}
    assert all("holds 32 counts" in row["error"] for row in rows if row["model"] == "deepseek-v3")


@pytest.mark.parametrize(
    ("span", "counts"),
    [
        ({"from": 64, "to": 256, "steps": 4}, [64, 128, 192, 256]),
        ({"from": 1, "to": 1000, "steps": 4, "scale": "log"}, [1, 10, 100, 1000]),
        ({"from": 1, "to": 4, "steps": 31}, [1, 2, 3, 4]),
        ({"from": 1, "to": 2, "steps": 4, "scale": "linear"}, [1, 2]),
        ({"from": 5, "to": 5, "steps": 1}, [5]),
        ({"from": 1, "to": 8, "steps": 3}, [1, 4, 8]),  # 4.5 to the even number
    ],
)
def test_ranges_are_rounded_and_duplicates_dropped(span, counts):
    assert CountRange.model_validate(span).counts.tolist() == counts
    assert read_request({"model": ["gpt-oss-20b"], "gpu": ["b200"], "tokens": span}).points == len(counts)


def test_duplicates_in_lists_are_one_point():
    assert read_request({"model": ["gpt-oss-20b"] * 2, "gpu": ["b200"], "tokens": [64, 64, 1]}).points == 2


GOOD = "model: [gpt-oss-20b]\ngpu: [b200]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("modle: [gpt-oss-20b]\ngpu: [b200]\n", (":1: modle", "Did you mean model?")),
        ("gpu: [b200]\n", ("model", "Add the field")),
        ("model:\n  - gpt-oss-20b\n  - gpt-oss-20\ngpu: [b200]\n", (":3: model.1: no such model", "'gpt-oss-20'", "gpt-oss-20b")),
        ("model: [llama-3.1-8b]\ngpu: [b200]\n", (":1: model.0: has no MoE layer",)),
        ("model: [gpt-oss-20b]\ngpu: [b2000]\n", (":2: gpu.0: no such GPU", "b200")),
        ("model: [gpt-oss-20b]\ngpu: b200\n", (":2: gpu: must be a list (got 'b200')", "Write ['b200']")),
        ("model: []\ngpu: [b200]\n", (":1: model",)),
        ("model: [3]\ngpu: [b200]\n", (":1: model.0", "string")),
        (GOOD + "format: [nvfp5]\n", (":3: format.0: unknown format (got 'nvfp5')", "nvfp4")),
        (GOOD + "kernel: [trtllm]\n", (":3: kernel.0: no such kernel profile", "trtllm-gen")),
        (GOOD + "routing: [zipff]\n", (":3: routing.0: no such routing", "zipf")),
        (GOOD + "routing: ['counts:missing.csv']\n", (":3: routing.0", "no such counts file")),
        (GOOD + "launch: [graphs]\n", (":3: launch.0: no such launch mode", "graph")),
        (GOOD + "comm: [included]\n", (":3: comm.0", "'exclude' or 'include'")),
        (GOOD + "tokens: many\n", (":3: tokens: must be a list (got 'many')",)),
        (GOOD + "tokens: [1.5]\n", (":3: tokens.0", "1.5")),
        (GOOD + "tokens: [true]\n", (":3: tokens.0", "integer")),
        (GOOD + "tokens: [0]\n", (":3: tokens.0", "got 0")),
        (GOOD + "tokens:\n  from: 1\n  to: 9\n  steps: 0\n", (":6: tokens.steps", "got 0")),
        (GOOD + "tokens: {from: 1, to: 9, step: 3}\n", (":3: tokens.step", "Did you mean steps?")),
        (GOOD + "tokens: {from: 9, to: 1, steps: 3}\n", (":3: tokens: runs backwards",)),
        (GOOD + "tokens: {from: 1, to: 9, steps: 1}\n", (":3: tokens: cannot reach",)),
        (GOOD + "tokens: {from: 0, to: 9, steps: 3}\n", (":3: tokens: must lie between 1 and",)),
        (GOOD + "redundant: {from: 0, to: 9, steps: 3, scale: log}\n", (":3: redundant: a log scale",)),
        (GOOD + "tokens: {from: 1, to: 9, steps: 3, scale: cubic}\n", (":3: tokens.scale", "'linear' or 'log'")),
        (GOOD + "tokens: {from: 1, to: .inf, steps: 3}\n", (":3: tokens.to", "finite")),
        (GOOD + "tokens: {from: 1, to: 9, steps: 1000000000000}\n", (":3: tokens.steps", "1000000000000")),
        (GOOD + "ep: [1, 2]\ntokens: {from: 1, to: 2000000000, steps: 9000000}\n", (":4: tokens: the grid has 18,000,000 points",)),
        (GOOD + "launch: {from: 1, to: 9, steps: 3}\n", (":3: launch: must be a list",)),
        (GOOD + "1: [2]\n", ("1",)),
        ("- gpt-oss-20b\n", ("holds no mapping",)),
        ("model: [gpt-oss-20b\n", (":", "broken YAML")),
    ],
)
def test_mistakes_in_the_grid_are_refused_at_once(tmp_path, run, text, words):
    grid, out = tmp_path / "grid.yaml", tmp_path / "f.parquet"
    grid.write_text(text)
    code, printed, err = run("sweep", grid, "--out", out)
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert "Traceback" not in err
    for word in (str(grid), *words):
        assert word in err
    assert list(tmp_path.iterdir()) == [grid]


def test_a_mistake_in_a_file_that_the_grid_names_names_both(tmp_path):
    (tmp_path / "my.yaml").write_text("id: my\nname: [broken\n")
    with pytest.raises(PerfModelError, match=r"gpu\.0: .*my\.yaml"):
        read_request({"model": ["gpt-oss-20b"], "gpu": [str(tmp_path / "my.yaml")]})


@pytest.mark.parametrize("out", ["f.csv", "missing/f.parquet", "folder.parquet", "locked.parquet", "\0.parquet", "x" * 300 + ".parquet"])
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_computed(tmp_path, out):
    (tmp_path / "folder.parquet").mkdir()
    (tmp_path / "locked.parquet").touch()
    (tmp_path / "locked.parquet").chmod(0o444)
    with pytest.raises(PerfModelError):
        perfmodel.sweep({"model": ["gpt-oss-20b"], "gpu": ["b200"]}, f"{tmp_path}/{out}")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.parquet", "locked.parquet"]


def test_points_that_cannot_be_are_counted_by_their_reason(tmp_path, run):
    grid = tmp_path / "grid.yaml"
    grid.write_text("model: [gpt-oss-20b]\ngpu: [h200, b200]\nformat: [nvfp4]\ntokens: [1, 64]\nep: [1, 5]\n")
    code, printed, _ = run("sweep", grid, "--out", tmp_path / "f.parquet")
    assert code == 0
    assert "8 points" in printed
    assert "6 points cannot be" in printed
    assert "4: FORMAT: nvfp4 needs fp4 units" in printed
    assert "2: ep: does not divide the experts (got 5)" in printed


def test_the_request_is_the_same_object_in_json():
    request = read_request({"model": ["gpt-oss-20b"], "gpu": ["b200"], "tokens": {"from": 1, "to": 9, "steps": 3}})
    assert SweepRequest.model_validate_json(request.model_dump_json()) == request
    assert SweepRequest.model_validate_json('{"model": ["gone.json"], "gpu": ["b200"]}', context=TRUSTED).model == ("gone.json",)
    schema = SweepRequest.model_json_schema()
    assert set(schema["properties"]) == set(KEYS) == {*SLOW, *FAST}
    assert all("description" in field for field in schema["properties"].values())


def test_a_plan_is_the_same_after_the_journey_and_named_by_what_it_depends_on(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(find_gpu("b200").read_text())
    request = read_request({"model": ["gpt-oss-20b", "deepseek-v3"], "gpu": [str(own)]})
    packed = pack(make_plan(request))
    assert unpack(packed).contents == make_plan(request).contents
    assert packed == pack(make_plan(request))
    changed = own.read_text().replace("tdp_W: {value: 1000", "tdp_W: {value: 1001")
    assert changed != own.read_text()
    own.write_text(changed)
    assert identity(pack(make_plan(request))) != identity(packed)


def test_hundreds_of_thousands_of_points_take_seconds(tmp_path):
    grid = {"model": ["gpt-oss-20b", "deepseek-v3"], "gpu": ["h200", "b200"], "tokens": {"from": 1, "to": 16384, "steps": 16384}}
    summary = perfmodel.sweep(grid, tmp_path / "f.parquet")
    assert summary.points == 65_536
    assert summary.points_per_s > 5_000  # 40,000 on an idle core


def test_a_wrong_key_of_a_range_is_told_the_names_as_they_are_written():
    with pytest.raises(PerfModelError, match="Choose from: from, scale, steps, to"):
        read_request({"model": ["gpt-oss-20b"], "gpu": ["h200"], "tokens": {"from": 1, "to": 5, "steps": 3, "x": 1}})
