"""The bundled tables: cited, consistent with themselves and with our formats, and held against the model."""

import csv

import numpy as np
import pytest

from perfmodel.errors import PerfModelError
from perfmodel.formats import get_format
from perfmodel.validation.reader import count_rows, read_about, read_measurements
from perfmodel.validation.targets import table_files, validate_file, validate_tables

TABLES = {path.stem: path for path in table_files()}
SCORED = ("b200_nvfp4_moe", "h200_feasibility", "h200_grouped_gemm")
UNSCORED = ("b200_deepseek_tflops", "flashinfer_4048_stages", "h200_feasibility_run9", "h200_ncu")


def raw(name):
    """The rows of a bundled table as texts, every column."""
    return list(csv.DictReader(line for line in TABLES[name].open() if not line.startswith("#")))


@pytest.fixture(scope="module")
def outcome():
    return validate_tables()


def test_every_table_names_its_source_and_is_rectangular():
    assert set(TABLES) >= {*SCORED, *UNSCORED}
    for path in TABLES.values():
        about = read_about(path)
        assert about.title, path
        assert about.source, path
        assert all(None not in row and None not in row.values() for row in raw(path.stem)), path


def test_tables_are_scored_or_say_why_not():
    assert all(read_about(TABLES[name]).not_scored is None for name in SCORED)
    assert all(len(read_about(TABLES[name]).not_scored or "") > 30 for name in UNSCORED)


def test_the_b200_table_counts_flops_as_it_says():
    for row in raw("b200_nvfp4_moe"):
        flops = 2 * int(row["num_tokens"]) * int(row["topk"]) * 3 * int(row["hidden"]) * int(row["inter"])
        assert flops / (float(row["latency_us"]) * 1e-6) / 1e12 == pytest.approx(float(row["tflops"]), rel=2e-3)


def test_the_b200_table_holds_the_published_figures():
    published = {("SGLang", 1): 206.9, ("SGLang", 128): 433, ("SGLang", 4096): 1722.9, ("vLLM", 1): 369.5, ("vLLM", 4096): 1946.6}
    found = {(row["source"], int(row["num_tokens"])): float(row["latency_us"]) for row in raw("b200_nvfp4_moe")}
    assert len(found) == 8
    assert published.items() <= found.items()


def test_h200_rows_weigh_what_our_formats_weigh():
    for row in raw("h200_grouped_gemm"):
        weights = int(row["experts"]) * int(row["n"]) * int(row["k"])
        assert int(row["weight_bytes"]) == weights * get_format(row["format"]).weights.bits / 8, row


def test_h200_throughputs_belong_to_the_latencies():
    for row in raw("h200_grouped_gemm"):
        k = 2880 if "padded" in row["source"] else int(row["k"])  # what the kernel multiplied against what its user asked for
        flops = 2 * int(row["experts"]) * int(row["n"]) * k * int(row["tokens_per_expert"])
        assert flops / float(row["latency_us"]) * 1e-6 == pytest.approx(float(row["tflops"]), rel=6e-3, abs=0.051)
        assert float(row["us_low"]) <= float(row["latency_us"]) <= float(row["us_high"])


def test_the_same_kernel_agrees_between_the_two_h200_tables():
    """torch._grouped_mm in bf16 was in both campaigns: E16 N4096 K7168, within the 10 % by which their clocks differ."""
    peers, spike = (read_measurements(TABLES[name]) for name in ("h200_grouped_gemm", "h200_feasibility"))
    for tokens in (128, 512, 2048):
        medians = []
        for rows in (peers, spike):
            mask = rows.labels["kernel"].where("torch-grouped-mm") & rows.labels["format"].where("bf16")
            mask &= (rows.tokens == tokens) & (rows.sizes["n"] == 4096)
            assert mask.any()
            medians.append(np.median(rows.latency[mask]))
        assert medians[0] == pytest.approx(medians[1], rel=0.1)


def test_the_unknown_shape_of_run_9_is_what_its_note_says():
    for row in raw("h200_feasibility_run9"):
        product = float(row["tflops_burst"]) * float(row["us_burst"]) * 1e6 / 2 / int(row["tokens_per_expert"])
        assert product == pytest.approx(507.5e6, rel=4e-3)


def test_stages_add_up_to_their_totals_as_noted():
    *stages, total = raw("flashinfer_4048_stages")
    sums = {column: sum(float(row[column] or 0) for row in stages) for column in total if column != "stage"}
    assert total["stage"] == "Total staged GPU kernel time"
    off = {column: round(sums[column] - float(total[column]), 3) for column in sums}
    assert off == {"w4a4_ep8_ms": 0.0, "w4a16_ep8_ms": -0.001, "w4a4_tp8_ms": -0.002, "w4a16_tp8_ms": 0.0}


def test_stages_are_physical_on_the_gpus_that_they_may_be_from():
    active = 32 * (1 - (1 - 8 / 256) ** 32)
    gate_up = active * 2 * 2048 * 7168 * get_format("nvfp4").weights.bits / 8
    gemm = {row["stage"]: float(row["w4a4_ep8_ms"]) * 1e-3 for row in raw("flashinfer_4048_stages") if row["stage"].startswith("GEMM")}
    assert gate_up / gemm["GEMM1"] == pytest.approx(4.7e12, rel=0.02)
    assert gate_up / 2 / gemm["GEMM2"] == pytest.approx(5.3e12, rel=0.02)


def test_counters_read_the_compulsory_bytes_as_noted():
    rows = raw("h200_ncu")
    value = {(r["run"], r["kernel"], r["format"], r["tokens_per_expert"], r["metric"]): float(r["value"]) for r in rows if r["value"]}
    fp4 = {tokens: value["analytic", "", "", tokens, "read_once_total_fp4"] for tokens in ("16", "512")}
    read = {
        kernel: {t: value["run2", kernel, "mxfp4-w4a16", t, "dram__bytes_read.sum"] / fp4[t] for t in fp4}
        for kernel in ("triton-kernels", "marlin")
    }
    assert read["triton-kernels"]["16"] == pytest.approx(1.0, abs=0.01)
    assert read["triton-kernels"]["512"] == pytest.approx(1.26, abs=0.005)
    assert read["marlin"]["512"] == pytest.approx(1.45, abs=0.005)


# held against the model


def test_every_b200_latency_and_every_profiled_h200_row_is_scored(outcome):
    tables = {table["id"]: table for table in outcome.summary()["tables"]}
    assert set(tables) == set(TABLES)
    assert (tables["b200_nvfp4_moe"]["n"], tables["b200_nvfp4_moe"]["scored"]) == (8, 8)
    proto = sum(row["kernel"] == "proto-w4a16" for row in raw("h200_grouped_gemm"))
    assert tables["h200_grouped_gemm"]["scored"] == 291 - proto
    assert any("proto-w4a16" in reason for reason in tables["h200_grouped_gemm"]["not_scored"])
    assert tables["h200_ncu"]["n"] == count_rows(TABLES["h200_ncu"]) == 260
    assert all(table["not_scored"] for table in tables.values() if table["scored"] < table["n"])


def test_no_bundled_row_is_faster_than_physics(outcome):
    assert "below-floor" not in outcome.summary()["overall"]["flagged_by"]


def test_predictions_are_within_35_percent_in_the_median(outcome):
    for family in outcome.summary()["families"]:
        if family["scored"]:
            assert family["median_ape"] < 0.35, family


def test_rows_are_what_gap_gives(outcome):
    from perfmodel.api import gap

    row = next(row for row in outcome.rows() if row["table"] == "b200_nvfp4_moe" and row["num_tokens"] == 128)
    layer = "layer:hidden=2880,inter=7680,experts=32,topk=4"
    options = {"format": "nvfp4", "kernel": "generic-unfused", "launch": "eager", "routing": "uniform", "tokens": 128}
    expected = gap(layer, "b200", **options)["rows"][0]
    assert row["predicted_us"] == pytest.approx(expected["latency_us"], rel=1e-12)
    assert row["floor_us"] == pytest.approx(expected["floor_us"], rel=1e-12)
    assert row["interval_us"] == pytest.approx(expected["interval_us"], rel=1e-12)


def test_rows_add_up_to_the_overall_score(outcome):
    rows = [row for row in outcome.rows() if row["flag"] in (None, "spike", "dip")]
    overall = outcome.summary()["overall"]
    errors = np.array([row["predicted_us"] / row["latency_us"] - 1 for row in rows])
    inside = np.mean([row["interval_us"][0] <= row["latency_us"] <= row["interval_us"][1] for row in rows])
    assert overall["scored"] == len(rows)
    assert overall["median_ape"] == pytest.approx(np.median(np.abs(errors)))
    assert overall["mape"] == pytest.approx(np.abs(errors).mean())
    assert overall["bias"] == pytest.approx(np.median(errors))
    assert overall["coverage80"] == pytest.approx(inside)


def test_a_bundled_table_is_a_csv_of_the_contract(outcome):
    alone = validate_file(TABLES["h200_grouped_gemm"]).summary()
    table = next(table for table in outcome.summary()["tables"] if table["id"] == "h200_grouped_gemm")
    assert alone["overall"]["median_ape"] == table["median_ape"]


def test_choosing_rows():
    chosen = validate_tables(gpu="h200", kernel="marlin").summary()
    assert [(f["gpu"], f["kernel"]) for f in chosen["families"]] == [("h200", "marlin")]
    assert [table["id"] for table in chosen["tables"]] == ["h200_grouped_gemm"]
    with pytest.raises(PerfModelError, match=r"--gpu: no row has it \(got 'h100'\)\. Did you mean h200"):
        validate_tables(gpu="h100")
    with pytest.raises(PerfModelError, match="no row has both"):
        validate_tables(gpu="b200", kernel="marlin")
