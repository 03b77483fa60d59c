"""The model's choice of tiles for our kernels: the menus are those of the kernels, and the choice costs little on measured tiles."""

import json
from pathlib import Path

import pytest

from perfmodel.cli import main
from perfmodel.errors import PerfModelError
from perfmodel.kernels import tiles
from perfmodel.kernels.mma_w4a16 import ROWS
from perfmodel.kernels.tiles import Problem
from perfmodel.profiles import load_profile
from perfmodel.validation.tile_choice import choices, choose_tile, chooser, predicted_tiles

MEASURED = Path(__file__).parent.parent / "validation" / "results" / "h200_kernels_full_2026-11-30.csv"
WIDE, NARROW = Problem("mxfp4-w4a16", 16, 4096, 7168, 1), Problem("mxfp4-w4a16", 16, 4096, 7168, 2048)


def weight_rows(config):
    return getattr(config, "rows", None) or getattr(config, "strips", 1) * ROWS


@pytest.mark.parametrize("kind", ["decode", "wgmma"])
@pytest.mark.parametrize("form", ["mxfp4-w4a16", "nvfp4-w4a16", "mxfp4-w4a8"])
def test_a_profile_has_the_tiles_of_the_kernels(kind, form):
    there = {(choice.columns, weight_rows(choice.config)) for choice in tiles.menu(form, "plain", "sm_90a") if choice.kind == kind}
    fit = load_profile(f"numba-{kind}").find_fit("hopper", form)
    assert there == (set() if fit is None else {(m, n) for n, rows in fit.tiles.rows_by_columns().items() for m in rows})


def test_few_tokens_take_small_tiles_and_many_take_large_ones():
    assert choose_tile("h200", WIDE) == tiles.Tile("decode", 8)
    assert choose_tile("h200", NARROW) == tiles.Tile("wgmma", 256)
    times = [time.predicted for time in predicted_tiles("h200", NARROW)]
    assert times == sorted(times)


def test_regret_on_measured_tiles():
    """Three shapes on an H200, every tile measured: the model's choice may be a few percent slower, on the mean under one."""
    found = choices("h200", MEASURED)
    assert len(found) > 30
    assert all(choice.regret >= 0 for choice in found)
    assert max(choice.regret for choice in found) < 0.05
    assert sum(choice.regret for choice in found) / len(found) < 0.01


def test_no_kernel_for_a_gpu_or_format():
    with pytest.raises(PerfModelError, match="no kernel of ours"):
        predicted_tiles("h200", Problem("int8", 16, 4096, 7168, 1))
    with pytest.raises(PerfModelError, match="no such GPU"):
        predicted_tiles("h2000", WIDE)


def test_chooser_falls_back_to_the_table():
    choose = chooser("h200")
    assert choose(WIDE) == choose_tile("h200", WIDE)
    assert choose(Problem("int4-w4a16", 16, 4096, 7168, 100.0)) == tiles.tile_for(100.0)


@pytest.mark.parametrize(("column", "cell"), [("us", ""), ("us", "nan"), ("k", "-3"), ("hold_s", "long")])
def test_a_cell_that_is_no_number(tmp_path, column, cell):
    row: dict[str, object] = {"kernel": "numba-wgmma-mxfp4-w4a16-n64", "format": "mxfp4-w4a16", "experts": 16, "n": 4096, "k": 7168}
    row |= {"tokens_per_expert": 64, "us": 100, "hold_s": 1}
    row[column] = cell
    path = tmp_path / "rows.csv"
    path.write_text("# provenance: {}\n" + ",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
    with pytest.raises(PerfModelError, match="must be a positive number") as caught:
        choices("h200", path)
    assert (caught.value.line, caught.value.field) == (3, column)


def test_files_that_are_no_results(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(PerfModelError, match="is no result of `perfmodel kernels bench`"):
        choices("h200", path)
    with pytest.raises(PerfModelError, match="cannot read"):
        choices("h200", tmp_path / "missing.csv")


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["kernels", "tiles", *arguments])
    return stopped.value.code


def test_command(capsys):
    assert run("--shape", "experts=16,n=4096,k=7168,tokens=64", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["tiles"][0]["kind"], shown["tiles"][0]["tokens"], shown["tiles"][0]["weight_rows"]) == ("wgmma", 64, 512)
    assert run("--measured", str(MEASURED)) == 0
    assert "mean regret" in capsys.readouterr().out
    assert run() == 2
    assert "give one of the two" in capsys.readouterr().err
