"""The scoreboard: its figures, its table, the documents it is written into, and whether the committed ones are of the present profiles."""

import json
from pathlib import Path

import numpy as np
import pytest

from perfmodel.cli import scoreboard as command
from perfmodel.errors import PerfModelError
from perfmodel.report.scoreboard import BEGIN, END, markdown, percent, replaced
from perfmodel.units import MICROSECOND
from perfmodel.validation import scoreboard as board
from perfmodel.validation.measurements import Labels, Measurements
from perfmodel.validation.reader import read_measurements
from perfmodel.validation.score import Comparison
from perfmodel.validation.silicon.sample import LEAST, SAMPLE, draw_sample, row_hashes, sample_text
from perfmodel.validation.silicon.validate import SiliconValidation

ROOT = Path(__file__).resolve().parents[1]
SHARES = ("median_ape", "mape", "coverage80")


def line(name="MoE layers", **changes):
    figures = {"command": "perfmodel validate silicon", "scored": 1234, "median_ape": 0.0932, "mape": 0.14, "coverage80": 0.8}
    return board.Line(**({"name": name, "fitted_on": 0.043} | figures | changes))


def layers(tokens, latencies_us, *, gpus=("h200",), forms=("bf16",), flags=("",)):
    """A measured series, every prediction 100 us, held."""
    count = len(tokens)
    texts = {"gpu": gpus, "format": forms, "kernel": ("trtllm-cutlass",), "routing": ("balanced",), "gated": ("true",)}
    texts |= {"source": ("trtllm 1.3.0 x",), "launch": ("",), "caches": ("cold",)}
    labels = {name: Labels.of([values[i % len(values)] for i in range(count)]) for name, values in texts.items()}
    same = {"hidden": 7168, "inter": 2048, "topk": 8, "num_experts": 256, "tp": 1, "ep": 1}
    sizes = {"num_tokens": np.array(tokens)} | {name: np.full(count, size) for name, size in same.items()}
    rows = Measurements("layer", "test", np.arange(1, count + 1), labels, sizes, np.array(latencies_us) * MICROSECOND)
    predicted = np.full(count, 100.0) * MICROSECOND
    family = {name: labels[name] for name in ("gpu", "kernel", "format")}
    flag = Labels.of([flags[i % len(flags)] for i in range(count)])
    held = Comparison(family, rows.latency, predicted, predicted / 10, predicted * 0.9, predicted * 1.1, flag)
    return SiliconValidation(rows, held, 1, count)


class TestCommitted:
    """CI fails here when profiles change and nobody wrote the scoreboard anew: perfmodel scoreboard --write README.md."""

    def test_the_sample_gives_the_figures_that_were_written(self):
        kept = board.load_scoreboard().lines[-1]
        now = board.sample_line()
        assert (now.name, now.scored, now.command) == (kept.name, kept.scored, kept.command)
        for name in SHARES:
            assert getattr(now, name) == pytest.approx(getattr(kept, name), abs=5e-4), name

    def test_the_table_in_the_readme_is_the_one_that_was_written(self):
        text = (ROOT / "README.md").read_text()
        assert replaced(text, markdown(board.load_scoreboard().as_json()), "README.md") == text

    def test_there_is_a_line_for_every_step(self):
        lines = board.load_scoreboard().lines
        assert len(lines) == len(board.steps()) + 3  # NVFP4, TTFT and DRAM bytes come along with others
        assert all(one.scored > 0 and one.median_ape is not None for one in lines)

    def test_the_sample_holds_every_kernel_that_is_scored_often(self):
        rows = read_measurements(SAMPLE)
        assert 1400 < len(rows) < 2000
        assert rows.about.source.startswith("aiconfigurator-core 0.12.0 (Apache-2.0)")
        assert {"h100", "h200", "b200", "gb200", "b300", "a100-80gb", "l40s"} <= set(rows.labels["gpu"].values)


class TestTable:
    def test_a_line_of_the_table(self):
        data = board.scoreboard([line(), line("unseen", unseen=True, coverage80=None), line("bytes", fitted_on=0.0)]).as_json()
        rows = markdown(data).splitlines()
        assert rows[2] == "| MoE layers | 1,234 | 9.3 % | 14.0 % | 80 % | 4.3 % |"
        assert rows[3] == "| unseen | 1,234 | 9.3 % | 14.0 % | – | 4.3 %, none scored |"
        assert rows[4].endswith("| none |")
        assert len({row.count("|") for row in rows[:5]}) == 1

    def test_nothing_is_no_figure(self):
        assert percent(None) == "–"

    def test_figures_survive_the_file(self, tmp_path):
        path = tmp_path / "board.json"
        first = board.scoreboard([line()])
        path.write_text(json.dumps(first.as_json()))
        assert board.load_scoreboard(path) == first

    def test_only_what_stands_between_the_markers_is_replaced(self):
        text = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
        assert replaced(text, "new\n", "x.md") == f"above\n{BEGIN}\nnew\n{END}\nbelow\n"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("nothing\n", "has no line"),
            (f"{BEGIN}\n", "has no line"),
            (f"in a line {BEGIN}\n{END}\n", "has no line"),
            (f"{END}\n{BEGIN}\n", "stands above"),
            (f"{BEGIN}\n{BEGIN}\n{END}\n", "twice"),
        ],
    )
    def test_markers_that_are_wrong_are_said(self, text, words):
        with pytest.raises(PerfModelError, match=words) as caught:
            replaced(text, "new\n", "x.md")
        assert caught.value.file == "x.md"
        assert caught.value.mend


class TestCommand:
    @pytest.fixture
    def quick(self, monkeypatch, tmp_path):
        """One step in place of the minutes, and figures kept in a folder of the test."""
        monkeypatch.setattr(board, "steps", lambda: [board.Step("one", lambda: [line()])])
        monkeypatch.setattr(board, "FILE", tmp_path / "scoreboard.json")
        return tmp_path

    def test_it_writes_the_document_and_the_figures(self, quick, capsys):
        page = quick / "page.md"
        page.write_text(f"# Page\n{BEGIN}\n{END}\nend\n")
        command.scoreboard(write=page, sample=None, json=False)
        table = markdown(board.load_scoreboard(board.FILE).as_json())
        assert page.read_text() == f"# Page\n{BEGIN}\n{table}{END}\nend\n"
        shown = capsys.readouterr()
        assert shown.out == table
        assert shown.err.splitlines()[0] == "one ..."  # no terminal: a note for each step

    def test_json_is_the_same_object(self, quick, capsys):
        command.scoreboard(write=None, sample=None, json=True)
        data = json.loads(capsys.readouterr().out)
        assert data["schema"] == "perfmodel.scoreboard/1"
        assert data["lines"][0]["median_ape"] == 0.0932
        assert not board.FILE.exists()

    def test_a_page_without_markers_fails_before_anything_is_computed(self, quick, monkeypatch):
        monkeypatch.setattr(board, "steps", lambda: pytest.fail("computed"))
        page = quick / "page.md"
        page.write_text("# Page\n")
        with pytest.raises(PerfModelError, match="has no line"):
            command.scoreboard(write=page, sample=None, json=False)
        assert page.read_text() == "# Page\n"

    def test_an_interrupt_leaves_everything_as_it_was(self, quick, monkeypatch):
        def stop():
            raise KeyboardInterrupt

        monkeypatch.setattr(board, "steps", lambda: [board.Step("one", stop)])
        page = quick / "page.md"
        page.write_text(f"{BEGIN}\n{END}\n")
        with pytest.raises(KeyboardInterrupt):
            command.scoreboard(write=page, sample=None, json=False)
        assert page.read_text() == f"{BEGIN}\n{END}\n"
        assert not board.FILE.exists()


def test_nvfp4_is_the_mean_of_medians_by_scored_rows():
    # three rows 25 % off (predicted 100 of 80), one 0 % off, and one of another format
    outcome = layers(
        [1, 2, 4, 8, 16], [80, 80, 80, 100, 50], gpus=("b200", "b200", "b200", "gb200", "b200"), forms=(*["nvfp4"] * 4, "bf16")
    )
    found = board.nvfp4_line(outcome, outcome.summary()["families"])
    assert found.scored == 4
    assert found.median_ape == pytest.approx((3 * 0.25 + 1 * 0.0) / 4)
    assert found.coverage80 == pytest.approx(0.25)


class TestSample:
    def test_it_draws_in_proportion_and_of_each_family_a_few(self):
        count = 1000
        gpus = ["h200"] * 990 + ["b200"] * 10
        index = draw_sample(layers(range(1, count + 1), [100] * count, gpus=gpus), 100)
        drawn = [gpus[i] for i in index]
        assert drawn.count("h200") == 99
        assert drawn.count("b200") == LEAST
        assert np.all(np.diff(index) > 0)

    def test_rows_that_are_not_scored_are_not_drawn(self):
        outcome = layers(range(1, 101), [100] * 100, flags=("", "below-floor", "spike", "trap:x"))
        index = draw_sample(outcome, 100)
        assert {outcome.held.flags[int(i)] for i in index} == {"", "spike"}

    def test_a_row_has_its_hash_wherever_it_stands(self):
        rows = layers([1, 2, 3, 1], [5, 6, 7, 8], gpus=("h200", "b200")).rows
        back = rows.take(np.array([3, 2, 1, 0]))
        assert row_hashes(back).tolist() == row_hashes(rows)[::-1].tolist()
        assert len(set(row_hashes(rows).tolist())) == 4

    def test_what_is_written_is_read_back(self, tmp_path):
        rows = layers([64, 128, 256], [5010.123, 6000, 7000]).rows
        path = tmp_path / "sample.csv"
        path.write_text(sample_text(rows, np.array([0, 2])))
        again = read_measurements(path)
        assert again.tokens.tolist() == [64, 256]
        assert again.latency == pytest.approx(rows.latency[[0, 2]], rel=1e-6)
        assert again.labels["source"][0] == "trtllm 1.3.0 x"


def test_gpus_of_the_catalogue_are_read_once_and_files_each_time(tmp_path):
    from perfmodel.hardware import find_gpu
    from perfmodel.validation.predicting import load_measured_gpu

    assert load_measured_gpu("h200") is load_measured_gpu("h200")
    mine = tmp_path / "mine.yaml"
    text = find_gpu("h200").read_text()
    mine.write_text(text)
    before = load_measured_gpu(str(mine)).dram_bandwidth
    lines = text.splitlines()
    place = next(i for i, line in enumerate(lines) if "bandwidth_GBps" in line)
    lines[place] = lines[place].replace("4800", "4900")
    mine.write_text("\n".join(lines))
    assert load_measured_gpu(str(mine)).dram_bandwidth == pytest.approx(before * 4900 / 4800)
