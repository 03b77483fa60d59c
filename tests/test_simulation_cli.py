"""`perfmodel simulate`: JSON, tables, pictures, exit codes."""

import json
import os
import signal
import threading
import time
from contextlib import suppress

import pytest

from perfmodel.cli import main

LOAD = ["simulate", "qwen3-30b-a3b", "--gpu", "h100", "--gpus", "2", "--isl", "1000", "--osl", "200", "--requests", "300"]


@pytest.mark.parametrize("gpu", ["gb10", "v100"])
def test_gpus_without_links_or_bf16(gpu, capsys):
    main_("simulate", "gpt-oss-20b", "--gpu", gpu, "--rate", "1", "--isl", "100", "--osl", "10", "--requests", "20", "--json")
    assert json.loads(capsys.readouterr().out)["completed"] == 20


def test_json(capsys):
    main_(*LOAD, "--rate", "8", "--json")
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == "perfmodel.simulate/1"
    assert result["completed"] == 300
    for figure in ("ttft_ms", "tpot_ms", "latency_ms"):
        found = result[figure]
        assert 0 < found["p50"] <= found["p90"] <= found["p99"]
    assert result["tokens_per_s"] > 0
    assert 0 < result["utilisation"] <= 1
    assert {"memory", "step_us", "kv_full_share", "preempted", "notes"} <= result.keys()


@pytest.mark.parametrize("load", [["--rate", "8"], ["--concurrency", "16"], ["--rates", "2,8"]])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_table_and_picture(load, suffix, capsys, tmp_path):
    main_(*LOAD, *load, "--speculative", "2:0.7", "--plot", str(tmp_path / f"a.{suffix}"))
    out = capsys.readouterr().out
    assert "clients see" in out
    assert "drafts" in out
    assert ("Against load" in out) == (load[0] == "--rates")
    assert (tmp_path / f"a.{suffix}").stat().st_size > 8000


def test_pictures_of_the_same_simulation_are_alike(tmp_path):
    for name in ("a.svg", "b.svg"):
        main_(*LOAD, "--rate", "8", "--plot", str(tmp_path / name))
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        ["--rate", "x"],
        ["--rates", "1,x"],
        ["--rates", ""],
        [],
        ["--rate", "8", "--plot", "a.gif"],
        ["--rate", "nan"],
        ["--rate", "8", "--tp", "7"],
    ],
)
def test_bad_input_exits_with_2(options, capsys):
    with pytest.raises(SystemExit) as stop:
        main(LOAD + options)
    assert stop.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def main_(*words: str) -> None:
    with suppress(SystemExit):  # of code 0 where all went well; else there is no output to look at
        main(list(words))


def test_ctrl_c_ends_a_long_simulation(capsys):
    options = ["--gpus", "1", "--rate", "1000", "--isl", "1000", "--osl", "1000", "--lengths", "lognormal:1"]
    with suppress(SystemExit):
        main(["simulate", "qwen3-30b-a3b", "--gpu", "h100", *options, "--requests", "50"])  # compiles
    timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(SystemExit) as stop:
        main(["simulate", "qwen3-30b-a3b", "--gpu", "h100", *options, "--requests", "3000000"])
    assert stop.value.code == 130
    assert time.monotonic() - begun < 15
