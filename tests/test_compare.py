"""The comparison: checks on measurements by hand, figures by regime and tokens, a page that needs nothing and trusts nobody."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.dom import minidom

import numpy as np
import pytest

from perfmodel.errors import PerfModelError
from perfmodel.report import compare_page, compare_plot
from perfmodel.validation.checks import check_rows, flops_time, regimes
from perfmodel.validation.compare import Compared, Part, compare_rows
from perfmodel.validation.flags import flag_rows
from perfmodel.validation.measurements import Labels, Measurements
from perfmodel.validation.score import Comparison
from perfmodel.validation.silicon.validate import SiliconValidation

PEAK, BANDWIDTH, L2 = 989.4e12, 4.8e12, 60 * 2**20  # H200, bf16


def gemms(us, tokens, *, n=4096, k=7168, experts=16, kernel="torch-grouped-mm", source="", gpu="h200"):
    """Single grouped GEMMs in bf16."""
    count = len(us)
    texts = {"gpu": gpu, "kernel": kernel, "format": "bf16", "source": source}
    sizes = {"experts": experts, "n": n, "k": k, "tokens_per_expert": tokens}
    return Measurements(
        "grouped-gemm",
        "x.csv",
        np.arange(count) + 2,
        {name: Labels.of([text] * count if isinstance(text, str) else text) for name, text in texts.items()},
        {name: np.broadcast_to(np.asarray(size), count).astype(np.int64) for name, size in sizes.items()},
        np.array(us, float) * 1e-6,
    )


def attentions(kernel, us, *, context, batch):
    """Attention of 2 heads of 128 over as many KV heads, in bf16."""
    count = len(us)
    texts = {"gpu": "h200", "kernel": kernel, "format": "bf16", "source": ""}
    sizes = {"batch": batch, "context": context, "prefix": 0, "heads": 2, "kv_heads": 2, "window": 0}
    sizes |= {"key_dim": 128, "value_dim": 128, "cache_dim": 256}
    labels = {name: Labels.of([text] * count) for name, text in texts.items()}
    columns = {name: np.full(count, size, np.int64) for name, size in sizes.items()}
    return Measurements("attention", "x", np.arange(count) + 1, labels, columns, np.array(us, float) * 1e-6)


def floor_of(rows):
    s = {name: column.astype(float) for name, column in rows.sizes.items()}
    pairs = s["experts"] * s["tokens_per_expert"]
    moved = 2 * (s["experts"] * s["n"] * s["k"] + pairs * (s["n"] + s["k"]))
    return np.maximum(2 * pairs * s["n"] * s["k"] / PEAK, moved / BANDWIDTH)


def part(rows, factor=1.1):
    predicted, floor = rows.latency * factor, floor_of(rows)
    family = {name: rows.labels[name] for name in ("gpu", "kernel", "format")}
    flags = flag_rows(rows, floor, np.ones(len(rows), bool), [])
    return Part(rows, Comparison(family, rows.latency, predicted, floor, predicted * 0.9, predicted * 1.2, flags))


def failing(rows):
    return {name: np.flatnonzero(mask).tolist() for name, mask in check_rows(rows, floor_of(rows)).failed.items()}


class TestChecks:
    def test_each_check_by_hand(self):
        # 939 MB of weights: 196 us at the DRAM's rate; 2,048 tokens are 1.92 TFLOP: 1,945 us at the peak
        us = [150, 300, 900, 310, 200, 330, 1500]
        found = failing(gemms(us, [1, 2, 4, 8, 16, 32, 2048]))
        assert found == {"bandwidth": [0], "cached": [], "flops": [6], "spike": [2], "dip": [4], "repeats": []}

    def test_what_fits_in_l2_is_told_apart(self):
        rows = gemms([4.0], [1], experts=1, n=4096, k=6000)  # 49 MB: 10 us from DRAM
        assert failing(rows)["cached"] == [0]
        assert L2 > 2 * 4096 * 6000

    def test_measured_again(self):
        assert failing(gemms([300, 330, 345], [1, 1, 1]))["repeats"] == [0, 1, 2]
        assert failing(gemms([300, 330], [1, 1]))["repeats"] == []

    def test_families_add_up_and_the_worst_comes_first(self):
        rows = gemms([150, 300, 150, 150], [1, 2, 1, 2], kernel=["a", "a", "b", "b"])
        found = check_rows(rows, floor_of(rows)).summary()
        assert [(f["kernel"], f["n"], f["any"], f["bandwidth"]) for f in found["families"]] == [("b", 2, 2, 2), ("a", 2, 1, 1)]
        assert found["overall"] == {"n": 4, "bandwidth": 3, "cached": 0, "flops": 0, "spike": 0, "dip": 0, "repeats": 0, "any": 3}

    def test_regimes_by_hand(self):
        rows = gemms([250, 3000, 900, 1], [1, 2048, 1, 1])
        predicted = np.array([250e-6, 3000e-6, 900e-6, np.nan])
        found, names = regimes(rows, predicted, floor_of(rows))
        assert [names[i] for i in found] == ["memory", "compute", "overhead", "unknown"]

    def test_attention_knows_its_products(self):
        # a whole prompt of 32768 tokens, 2 heads of 128: 2^29 + 2^14 pairs x 512 FLOP x 2, 0.56 ms at the peak; its bytes 34 MB, 7 us
        rows = attentions("attention-vllm-fa3-prefill", [600, 500], context=32768, batch=1)
        floor = np.full(2, (2**29 + 2**14) * 1024 / PEAK)
        assert flops_time(rows) == pytest.approx(floor)
        found, names = regimes(rows, rows.latency, floor)
        assert [names[i] for i in found] == ["compute", "compute"]
        assert np.flatnonzero(check_rows(rows, floor).failed["flops"]).tolist() == [1]

    def test_decode_has_one_query_a_sequence(self):
        rows = attentions("attention-vllm-fa3-decode", [100], context=4096, batch=64)
        assert flops_time(rows) == pytest.approx([64 * 2 * 4096 * 512 / PEAK])
        found, names = regimes(rows, rows.latency, np.array([60e-6]))
        assert names[found[0]] == "memory"

    def test_floors_that_leave_out_l2_are_no_excuse(self):
        rows = attentions("attention-vllm-fa3-decode", [5], context=4096, batch=64)
        failed = check_rows(rows, np.array([6e-6])).failed  # 29 MB beyond what L2 holds
        assert (failed["bandwidth"].tolist(), failed["cached"].tolist()) == ([True], [False])

    def test_attention_without_a_profile_has_no_peak(self):
        assert np.isnan(flops_time(attentions("unheard-of", [5], context=4096, batch=64))).all()

    @pytest.mark.parametrize("kind", ["collectives", "a2a"])
    def test_the_floor_of_communication_is_the_link_s(self, kind):
        grows = {"collectives": "bytes", "a2a": "tokens"}[kind]
        labels = {name: Labels.of(["h200"] * 3 if name == "gpu" else ["x"] * 3) for name in ("gpu", "kernel", "format", "source")}
        latency, floor = np.array([90e-6, 120e-6, 100e-6]), np.array([100e-6, 100e-6, 1e-6])
        rows = Measurements(kind, "x", np.arange(3) + 1, labels, {grows: np.array([1, 2, 4]), "ranks": np.full(3, 8)}, latency)
        checks = check_rows(rows, floor).summary()
        assert checks["overall"]["link"] == 1
        assert list(checks["checks"]) == ["link", "spike", "dip", "repeats"]
        assert "DRAM" not in str(checks["checks"])
        found, names = regimes(rows, np.array([110e-6, np.nan, 100e-6]), floor)
        assert [names[i] for i in found] == ["link", "unknown", "overhead"]

    def test_a_format_that_the_gpu_lacks_has_no_peak(self):
        rows = gemms([250], [1])
        rows.labels["format"] = Labels.of(["nvfp4"])
        assert failing(rows)["flops"] == []


@pytest.fixture
def nasty():
    """Texts of a user's that are HTML, in every place where a text can be."""
    rows = gemms([300, 400, 3000], [1, 4, 2048], kernel="<script>alert(1)</script>", source='"><img src=x onerror=1>')
    return Compared("runs", ["<b>data</b>"], [part(rows)], ["a & b"])


class Strict(HTMLParser):
    """What tags stand there, and that they close."""

    def __init__(self):
        super().__init__()
        self.seen, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


class TestPage:
    def test_it_is_whole_and_needs_nothing_else(self, nasty):
        text = compare_page.page(nasty.result(), nasty.points())
        parser = Strict()
        parser.feed(text)
        assert not parser.open
        assert not {"script", "link", "iframe", "img", "b"} & set(parser.seen)
        assert not re.search(r'(src|href)="(?!#)', text.replace('xlink:href="#', ""))
        assert "@import" not in text
        assert 'name="viewport"' in text
        assert "prefers-color-scheme: dark" in text
        for escaped in ("&lt;script&gt;alert(1)", "&lt;b&gt;data", "a &amp; b", "&quot;&gt;&lt;img"):
            assert escaped in text

    def test_it_says_what_when_and_which_version(self, nasty):
        result = nasty.result()
        text = compare_page.page(result, nasty.points())
        assert result["made"] in text
        assert f"perfmodel {result['versions']['perfmodel']}" in text
        assert "3 of 3 rows scored: median error 10.0%" in text

    def test_pictures_take_the_colour_of_the_page_and_have_names_of_their_own(self, nasty):
        points = nasty.points()
        pictures = {name: compare_plot.svg(name, points) for name in compare_plot.PICTURES}
        ids = [found for text in pictures.values() for found in re.findall(r'id="([^"]+)"', text)]
        assert len(ids) == len(set(ids))
        for text in pictures.values():
            element = minidom.parseString(text).documentElement
            assert element.getAttribute("viewBox")
            assert not element.getAttribute("width")
            assert "currentColor" in text
            assert compare_plot.INK not in text

    def test_nothing_scored_is_a_page_too(self):
        compared = Compared("x", [], [part(gemms([1.0], [1]))])
        assert "0 of 1 rows scored: median error -" in compare_page.page(compared.result(), compared.points())

    @pytest.mark.parametrize("path", ["page.pdf", "no/such/folder/page.html"])
    def test_names_that_cannot_be(self, path):
        with pytest.raises(PerfModelError):
            compare_page.check_page(path)


class TestFigures:
    def test_by_regime_and_tokens(self):
        rows = gemms([250, 260, 3000], [1, 3, 2048])
        found = Compared("x", [], [part(rows)]).result()
        assert [(r["regime"], r["scored"]) for r in found["regimes"]] == [("compute", 1), ("memory", 2)]
        assert [(t["from"], t["to"], t["scored"]) for t in found["tokens"]] == [(1, 3, 2), (1024, 4095, 1)]
        assert found["overall"]["median_ape"] == pytest.approx(0.1)

    def test_the_worst_come_first(self):
        rows = gemms([250, 260, 3000], [1, 3, 2048])
        one = part(rows)
        one.held.predicted[1] *= 2
        worst = Compared("x", [], [one]).result()["worst"]
        assert worst[0]["error"] == pytest.approx(1.2)
        assert "tokens_per_expert 3" in worst[0]["sizes"]

    def test_points_are_drawn_at_random_but_always_the_same(self):
        rows = gemms(np.linspace(250, 2500, 300), np.arange(300) + 1)
        compared = Compared("x", [], [part(rows)])
        few = compared.points(50)
        assert len(few["tokens"]) == 50
        assert few == compared.points(50)
        assert few["of"] == [300]

    def test_many_kernels_share_a_grey(self):
        colours = compare_plot.colours({"kernel": ["a"] * 3 + [f"k{i}" for i in range(9)]})
        assert colours["a"] == compare_plot.KERNEL_COLOURS[0]
        assert list(colours.values()).count(compare_plot.OTHERS) == 4


def test_rows_of_silicon_from_a_file(tmp_path):
    rows = gemms([250, 100, 3000], [1, 2, 2048])
    one = part(rows)
    SiliconValidation(rows, one.held, 1, 3).write(tmp_path / "rows.parquet")
    found = compare_rows(tmp_path / "rows.parquet").result()
    whole = Compared("silicon", [], [one]).result()
    assert found["overall"].pop("flagged_by") == whole["overall"].pop("flagged_by") == {"below-floor": 1}
    assert found["overall"] == pytest.approx(whole["overall"])
    assert re.search(r"rows of rows.parquet, predicted 20\d\d-", found["data"][-1])
    assert [row["sizes"] for row in found["worst"]] == [row["sizes"] for row in whole["worst"]]
    (tmp_path / "other.parquet").write_bytes(b"x")
    with pytest.raises(PerfModelError, match="no Parquet file"):
        compare_rows(tmp_path / "other.parquet")


def run(*arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", *arguments], capture_output=True, text=True, cwd=cwd, env={**os.environ, "COLUMNS": "100"}
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_command(tmp_path):
    done = run("compare", "runs", "--html", "a.html", "--plot", "a.png", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["schema"] == "perfmodel.compare/1"
    assert data["overall"]["scored"] == 206
    assert data["dram_bytes"]["scored"] == 40
    page = Path(tmp_path / "a.html").read_text()
    assert "numba-decode-mxfp4-w4a16-n8" in page
    assert "NVIDIA H200, driver 580.159.04, 2026-11-30" in page
    assert Path(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_of_the_user(tmp_path):
    (tmp_path / "mine.csv").write_text(
        "gpu,kernel,format,experts,n,k,tokens_per_expert,latency_us\nh200,torch-grouped-mm,bf16,16,4096,7168,16,317\n"
    )
    shown = run("compare", "mine.csv", cwd=tmp_path).stdout
    assert " rows scored: median error " in run("compare", "mine.csv", "--html", "mine.html", cwd=tmp_path).stdout
    assert "Checks on the measurements: 0 of 1 rows" in shown
    for arguments in (("mine.csv", "--store", "x"), ("tables", "--rows", "x"), ("runs", "--html", "x.pdf"), ("nothing.csv",)):
        assert run("compare", *arguments, cwd=tmp_path).returncode == 2
