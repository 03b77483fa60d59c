"""The loader of the public measurements, on small files of the same layout."""

import numpy as np
import pytest

from perfmodel.errors import MissingRequirementError, PerfModelError
from perfmodel.hardware import load_gpu
from perfmodel.profiles import load_profile
from perfmodel.validation.calibrate import Family, Fitted
from perfmodel.validation.silicon import moe, parts
from perfmodel.validation.silicon.leave_out import predict_by
from perfmodel.validation.silicon.names import names, routing_of
from perfmodel.validation.silicon.usable import rough_floor, usable_rows
from perfmodel.validation.silicon.validate import validate_silicon

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

COLUMNS = ("kernel_source", "moe_dtype", "distribution", *moe.SIZES.values(), "latency")


def write(folder, gpu, framework, version, rows):
    path = folder / gpu / "moe" / framework / version / "moe_perf.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}), path)


def row(kernel, form, tokens, ms, *, routing="balanced", hidden=7168, inter=2048, topk=8, experts=256, ep=1):
    return (kernel, form, routing, tokens, hidden, inter, topk, experts, 1, ep, ms)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Two GPUs in scope, one out of it; six rows."""
    nemotron = {"hidden": 2688, "inter": 1856, "topk": 6, "experts": 128}
    cutlass = [row("moe_torch_flow_cutlass", "bfloat16", 64, 6.5), row("moe_torch_flow_nongated", "bfloat16", 64, 0.6, **nemotron)]
    write(tmp_path, "h200_sxm", "trtllm", "1.3.0", cutlass)
    triton = [row("sglang_fused_moe_triton", "fp8_block", 8, 1.0, routing="power_law_1.2", ep=8), row("unheard_of", "fp8", 1, 0.1)]
    write(tmp_path, "b200_sxm", "sglang", "0.5.10", triton)
    write(
        tmp_path,
        "gb200",
        "sglang",
        "0.5.14",
        [row("sglang_fused_moe_triton", "bfloat16", 8, 2.0, ep=8, hidden=4096), row("x", "nvfp4", 4096, 1e-4)],
    )
    write(tmp_path, "b60", "vllm", "0.1", [row("x", "bfloat16", 1, 1.0)])
    monkeypatch.setattr(parts, "data_folder", lambda: tmp_path)
    return tmp_path


def test_rows_are_told_in_our_words(data):
    rows = moe.read_moe()
    label = {name: [column[i] for i in range(len(rows))] for name, column in rows.labels.items()}
    assert label["gpu"] == ["b200", "b200", "gb200", "gb200", "h200", "h200"]
    assert label["kernel"] == ["sglang-triton-0.5.10", "unheard_of", "sglang-triton", "x", "trtllm-cutlass", "trtllm-cutlass-ungated"]
    assert label["format"] == ["fp8-block", "fp8", "bf16", "nvfp4", "bf16", "bf16"]
    assert label["routing"][0] == "powerlaw:1.2"
    assert label["gated"] == ["true"] * 5 + ["false"]
    assert label["source"][0] == "sglang 0.5.10 sglang_fused_moe_triton"
    assert label["caches"] == ["warm"] * 4 + ["cold"] * 2  # SGLang's and TensorRT-LLM's
    assert rows.latency[4] == pytest.approx(6.5e-3)
    assert rows.sizes["ep"].tolist() == [8, 1, 8, 1, 1, 1]
    assert rows.lines.tolist() == [1, 2, 1, 2, 1, 2]


def test_a_gpu_out_of_scope_is_not_read_and_the_names_say_why(data):
    assert "b60" not in {part.path.parts[-5] for part in parts.parts("moe/*/*/moe_perf.parquet")}
    assert "Intel" in names().left_out["b60"]


def test_a_format_that_is_converted_at_load_is_what_it_becomes(data):
    write(data, "l40s", "sglang", "0.5.14", [row("sglang_fused_moe_triton", "w4a16_mxfp4", 8, 1.0)])
    rows = moe.read_moe()
    l40s = int(np.flatnonzero(rows.labels["gpu"].where("l40s"))[0])
    assert (rows.labels["kernel"][l40s], rows.labels["format"][l40s]) == ("sglang-triton", "bf16")


def test_the_rough_floor_is_the_weights_of_the_experts_that_can_be_active(data):
    rows = moe.read_moe()
    floor = rough_floor(rows)
    every = 256 * 3 * 7168 * 2048 * 2 / 4.8e12  # 64 tokens x 8 reach every expert; h200 reads 4.8 TB/s
    assert floor[4] == pytest.approx(every, rel=0.02)
    assert floor[0] == 0  # skewed routing may leave a rank without tokens
    some = 8 * 3 * 4096 * 2048 * 2  # 8 experts of a rank; what its L2 may hold of them need not be read
    assert floor[2] == pytest.approx((some - load_gpu("gb200").l2_capacity) / load_gpu("gb200").dram_bandwidth)


def test_a_row_below_the_floor_is_not_fitted(data):
    rows, usable = usable_rows()
    assert usable.tolist() == [True, True, True, False, True, True]
    alone, _ = usable_rows(["trtllm-cutlass"])
    assert len(alone) == 1
    assert len(rows) == 6


def test_every_row_is_scored_or_says_why_not(data):
    outcome = validate_silicon()
    summary = outcome.summary()
    assert summary["overall"]["n"] == 6
    assert sum(family["n"] for family in summary["families"]) == 6
    assert {family["kernel"]: family["scored"] for family in summary["families"]}["unheard_of"] == 0


def test_rows_go_to_a_parquet_file(data, tmp_path):
    path = tmp_path / "rows.parquet"
    validate_silicon().write(path)
    table = pq.read_table(path)
    assert len(table) == 6
    assert table["latency_us"].to_numpy()[4] == pytest.approx(6500)
    assert {"gpu", "predicted_us", "low_us", "high_us", "floor_us", "flag"} <= set(table.column_names)
    assert np.isnan(table["predicted_us"].to_numpy()[1])


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"op": "gem"}, "--op"), ({"leave_out_gpu": ["a100-80gb"]}, "--leave-out-gpu"), ({"leave_out_arch": "volta"}, "--leave-out-arch")],
)
def test_what_is_not_there_is_said(data, arguments, field):
    with pytest.raises(PerfModelError) as caught:
        validate_silicon(**arguments)
    assert caught.value.field == field


def test_an_architecture_with_nothing_older_is_refused_before_any_fit(data):
    write(data, "a100_sxm", "vllm", "0.24.0", [row("vllm_fused_moe", "bfloat16", 8, 1.0)])
    with pytest.raises(PerfModelError, match=r"--leave-out-arch: nothing older was measured.*ampere"):
        validate_silicon(leave_out_arch="ampere")


def test_what_is_left_out_is_not_predicted_by_a_stand_in():
    fit = load_profile("trtllm-cutlass").fit("blackwell", "nvfp4")
    sizes = {"num_tokens": 8, "hidden": 4096, "inter": 2688, "topk": 22, "num_experts": 512, "tp": 1, "ep": 1}
    labels = {"gpu": "b200", "kernel": "trtllm-cutlass", "format": "nvfp4", "routing": "balanced", "gated": "false", "caches": "cold"}
    times = []
    for fixed_us in (1.0, 101.0):
        made = fit.model_copy(update={"parameters": fit.parameters.model_copy(update={"fixed_us": fixed_us})})
        predict = predict_by([Fitted(Family("trtllm-cutlass", "blackwell", "nvfp4"), made, 0, {})])
        times.append(predict("layer", labels, {name: np.array([size]) for name, size in sizes.items()})[0, 0])
    assert times[1] - times[0] == pytest.approx(100e-6)  # the bundled stand-in would not know of it


def test_without_the_package_the_extra_is_named(monkeypatch):
    parts.data_folder.cache_clear()
    monkeypatch.setattr(parts, "find_spec", lambda name: None)
    with pytest.raises(MissingRequirementError, match="aiconfigurator-core"):
        parts.data_folder()
    parts.data_folder.cache_clear()


def test_routing_names():
    assert routing_of("balanced") == "balanced"
    assert routing_of("power_law_1.01") == "powerlaw:1.01"


def test_every_rule_names_a_profile():
    from perfmodel.profiles import profile_ids

    missing = {rule.profile for rule in names().kernels} - set(profile_ids())
    assert not missing


class TestOnlySomeRows:
    """--gpu and --kernel."""

    def test_rows_of_a_gpu_alone_are_scored(self, data):
        overall = validate_silicon(gpu="h200").summary()
        assert overall["overall"]["n"] == 2
        assert {family["gpu"] for family in overall["families"]} == {"h200"}

    def test_rows_of_a_kernel_alone_are_scored(self, data):
        found = validate_silicon(kernel="sglang-triton").summary()
        assert [(family["gpu"], family["kernel"]) for family in found["families"]] == [("gb200", "sglang-triton")]

    def test_the_share_is_of_the_rows_that_the_fits_of_the_rest_were_drawn_from(self, data):
        from perfmodel.profiles import load_profile

        def rows_of(kernel, architecture, form):
            return load_profile(kernel).find_fit(architecture, form).provenance.rows

        one = validate_silicon(kernel="trtllm-cutlass")
        assert (one.used, one.of) == (rows_of("trtllm-cutlass", "hopper", "bf16"), 1)
        both = validate_silicon(gpu="h200")
        assert both.of == 2
        assert both.used == one.used + rows_of("trtllm-cutlass-ungated", "hopper", "bf16")
        assert validate_silicon().of == 4  # of the six, nothing was drawn from the two whose kernels have no profile

    def test_rows_without_a_profile_are_no_rows_that_fits_were_drawn_from(self, data):
        found = validate_silicon(kernel="unheard_of")
        assert (found.used, found.of) == (0, 0)
        assert found.summary()["calibration"] == {"fraction_used": 0.0, "rows": 0}
        assert validate_silicon(leave_out_gpu=["h200"]).of == 2  # of four rows of the other GPUs

    def test_a_fit_of_two_gpus_counts_the_rows_of_both(self, tmp_path, monkeypatch):
        for gpu in ("h100_sxm", "h200_sxm"):
            write(tmp_path, gpu, "trtllm", "1.3.0", [row("moe_torch_flow_cutlass", "bfloat16", 64, 6.5)] * 3)
        monkeypatch.setattr(parts, "data_folder", lambda: tmp_path)
        alone, whole = validate_silicon(gpu="h100"), validate_silicon()
        assert len(alone.rows) == 3
        assert (alone.used, alone.of) == (whole.used, whole.of) == (whole.used, 6)

    @pytest.mark.parametrize(
        ("arguments", "field", "words"),
        [
            ({"gpu": "h20O"}, "--gpu", "Did you mean h200"),
            ({"kernel": "trtllm-cutlas"}, "--kernel", "Did you mean trtllm-cutlass"),
            ({"gpu": "h200", "kernel": "sglang-triton"}, "--gpu, --kernel", "Leave one of them out"),
            ({"gpu": "h200", "leave_out_gpu": ["b200"]}, "--gpu, --kernel", "Name one that is left out"),
            ({"kernel": "trtllm-cutlass", "leave_out_gpu": ["h200"]}, "--kernel", "of both"),
        ],
    )
    def test_what_leaves_no_row_is_said(self, data, arguments, field, words):
        with pytest.raises(PerfModelError, match=words) as caught:
            validate_silicon(**arguments)
        assert caught.value.field == field
