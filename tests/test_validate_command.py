"""`perfmodel validate` as a user calls it."""

import json
import os
import subprocess
import sys

import pytest

HEADER = "gpu,kernel,format,num_tokens,hidden,inter,topk,num_experts,tp,ep,routing,latency_us"


def run(*args, cwd=None):
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", "validate", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.csv"
    rows = ["h200,trtllm-cutlass,bf16,64,7168,2048,8,256,1,1,balanced,5010", "h200,trtllm-cutlass,bf16,64,7168,2048,8,256,1,1,balanced,100"]
    path.write_text("\n".join([HEADER, *rows, ""]))
    return path


def test_tables_as_json():
    done = run("tables", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["schema"] == "perfmodel.validate/1"
    assert data["overall"]["scored"] > 200
    assert len(data["rows"]) == data["overall"]["n"]
    assert {
        "gpu",
        "kernel",
        "format",
        "n",
        "scored",
        "flagged",
        "mape",
        "median_ape",
        "p90_ape",
        "bias",
        "coverage80",
        "flagged_by",
    } <= set(data["families"][0])


def test_tables_for_people():
    out = run("tables").stdout
    for text in (
        "b200_nvfp4_moe",
        "8 of 8 rows scored",
        "h200 marlin mxfp4-w4a16",
        "not scored: the GPU is not stated",
        "Rows furthest off",
    ):
        assert text in out


def test_a_row_faster_than_physics_is_flagged_not_scored(mine):
    data = json.loads(run(str(mine), "--json").stdout)
    assert [row["flag"] for row in data["rows"]] == [None, "below-floor"]
    assert data["rows"][1]["floor_us"] > 100
    assert (data["overall"]["n"], data["overall"]["scored"], data["overall"]["flagged_by"]) == (2, 1, {"below-floor": 1})
    assert data["rows"][0]["interval_us"][0] < data["rows"][0]["predicted_us"] < data["rows"][0]["interval_us"][1]
    shown = run(str(mine)).stdout
    assert "1 rows, below-floor" in shown
    assert "line 3" in shown


def test_a_bad_row_is_named_by_its_line(mine):
    mine.write_text(mine.read_text() + "h200,trtllm-cutlass,bf16,-3,7168,2048,8,256,1,1,balanced,xyz\n")
    done = run(str(mine))
    assert done.returncode == 2
    assert f"{mine}:4: num_tokens" in done.stderr


def test_a_kernel_that_nobody_knows_is_said_not_guessed(mine):
    mine.write_text(mine.read_text().replace("trtllm-cutlass", "trtllm-cutlas"))
    data = json.loads(run(str(mine), "--json").stdout)
    assert {row["flag"] for row in data["rows"]} == {"no-profile"}
    assert data["rows"][0]["predicted_us"] is None
    assert data["overall"]["mape"] is None
    assert "Did you mean trtllm-cutlass?" in run(str(mine)).stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["tabels"], "Did you mean tables?"),
        (["silicon", "--op", "gem"], "is not modelled yet"),
        (["silicon", "--rows", "nowhere/rows.parquet"], "the folder is not there"),
        (["tables", "--leave-out-gpu", "b200"], "goes with `silicon`"),
        (["mein.csv"], "Did you mean mine.csv?"),
        (["."], "Is a directory"),
        (["tables", "--gpu", "h20O"], "Did you mean h200"),
        (["mine.csv", "--kernel", "marlin"], "no row has it"),
    ],
)
def test_wrong_calls(mine, args, words):
    done = run(*args, cwd=mine.parent)
    assert done.returncode == 2
    assert words in done.stderr
    assert not done.stdout


def test_help_carries_an_example():
    assert "perfmodel validate tables" in run("--help").stdout
