"""The 21 GPU files: they load, agree with themselves and with published figures, and keep their provenance."""

import json
from pathlib import Path

import pytest

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.files import load_yaml
from perfmodel.hardware import GpuSpec, find_gpu, gpu_ids, load_gpu
from perfmodel.hardware.checks import implied_tflops
from perfmodel.hardware.fields import field_kinds, field_value
from perfmodel.hardware.quantity import Quantity
from perfmodel.hardware.schema import schema_text
from perfmodel.hardware.spec import Architecture
from perfmodel.validated import validate

FOLDER = Path(__file__).resolve().parents[1] / "gpu_specs"
IDS = [
    *("v100", "a100-40gb", "a100-80gb", "a100-pcie", "l40s", "rtx-4090"),
    *("h100", "h100-pcie", "h100-nvl", "h800", "h20", "h200", "gh200"),
    *("b100", "b200", "gb200", "b300", "gb300", "rtx-pro-6000", "rtx-5090", "gb10"),
]

# Typed in from datasheets: SMs, TFLOPS at 16 bit, fp8, fp4 (dense, fp32 accumulation), GB/s, W.
PUBLISHED = {
    "v100": (80, 125, None, None, 900, 300),
    "a100-40gb": (108, 312, None, None, 1555, 400),
    "a100-80gb": (108, 312, None, None, 2039, 400),
    "a100-pcie": (108, 312, None, None, 1935, 300),
    "l40s": (142, 362.05, 733, None, 864, 350),
    "rtx-4090": (128, 165.2, 330.3, None, 1008, 450),
    "h100": (132, 989.4, 1978.9, None, 3350, 700),
    "h100-nvl": (132, 835.5, 1671, None, 3938, 400),
    "h20": (78, 148, 296, None, 4000, 400),
    "h200": (132, 989.4, 1978.9, None, 4800, 700),
    "b100": (148, 1750, 3500, 7000, None, 700),
    "b200": (148, 2250, 4500, 9000, 7672, 1000),
    "gb200": (152, 2500, 5000, 10000, 8000, 1200),
    "b300": (148, 2250, 4500, 13500, 7750, 1100),
    "gb300": (152, 2500, 5000, 15000, 8000, 1400),
    "rtx-pro-6000": (188, 503.8, 1007.6, 2015, 1792, 600),
    "rtx-5090": (170, 209.5, 419, 1676, 1792, 575),
    "gb10": (48, 125, 250, 500, 273, 140),
}


@pytest.fixture(params=IDS)
def gpu(request) -> GpuSpec:
    return load_gpu(request.param)


def test_every_gpu_of_the_interface_is_there():
    assert set(IDS) <= set(gpu_ids())


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_figures(name):
    sms, bf16, fp8, fp4, bandwidth, watts = PUBLISHED[name]
    gpu = load_gpu(name)
    assert gpu.sm_count == sms
    assert gpu.tdp == watts
    assert gpu.peak_flops("fp16") == pytest.approx(bf16 * 1e12)
    for kind, peak in (("fp8", fp8), ("fp4", fp4)):
        if peak is None:
            assert kind not in gpu.math_types
        else:
            assert gpu.peak_flops(kind) == pytest.approx(peak * 1e12)
    if bandwidth is not None:
        assert gpu.dram_bandwidth == pytest.approx(bandwidth * 1e9)


def test_si_units():
    gpu = load_gpu("h200")
    assert gpu.dram_capacity == pytest.approx(150.8e9)
    assert gpu.dram_latency == pytest.approx(690 / 1.98e9, rel=0.01)
    assert gpu.l2_latency == pytest.approx(281 / 1.98e9, rel=0.01)
    assert gpu.l2_capacity == 60 * 1024 * 1024
    assert gpu.l2_bandwidth == pytest.approx(9.85e12)
    assert (gpu.shared_memory_per_sm, gpu.shared_memory_per_block) == (228 * 1024, 227 * 1024)
    assert (gpu.registers_per_sm, gpu.nvlink_domain, gpu.gpus_per_node) == (65536, 8, 8)
    assert (gpu.boost_clock, gpu.tensor_peak_clock, gpu.sustained_clock) == (1.98e9, 1.83e9, 1.5e9)
    assert (gpu.nvlink_bandwidth, gpu.pcie_bandwidth, gpu.network_bandwidth) == (450e9, 64e9, 50e9)


def test_driver_capacity_is_below_the_marketing_figure(gpu):
    marketing = {"v100": 32, "a100-40gb": 40, "a100-80gb": 80, "h100": 80, "h100-nvl": 94, "l40s": 48, "rtx-4090": 24, "rtx-5090": 32}
    if gpu.id in marketing:
        gib = marketing[gpu.id] * 2**30
        assert 0.92 * gib < gpu.dram_capacity < gib


def test_a_missing_fact_is_none_not_zero():
    gpu = load_gpu("gb10")
    assert gpu.dram_latency is None
    assert gpu.l2_bandwidth is None
    assert gpu.nvlink_bandwidth is None
    assert gpu.sustained_clock is None


def test_an_arithmetic_type_that_is_not_there_is_named():
    with pytest.raises(PerfModelError, match="It has fp16, bf16, tf32, fp8, int8"):
        load_gpu("h200").peak_flops("fp4")
    with pytest.raises(PerfModelError, match="h100"):
        load_gpu("h100").peak_flops("fp5")


def test_peaks_follow_from_rate_sms_and_clock(gpu):
    for kind in gpu.math_types:
        reason = getattr(gpu.compute.peak_exceptions, kind)
        rate = getattr(gpu.compute.flop_per_clock_per_sm, kind)
        implied = implied_tflops(rate.value, gpu.sm_count, gpu.tensor_peak_clock / 1e6) * 1e12
        if reason is None:
            assert gpu.peak_flops(kind) == pytest.approx(implied, rel=0.03)
        else:
            assert abs(gpu.peak_flops(kind) / implied - 1) > 0.03, "an exception without need"
            assert len(reason.split()) >= 3


@pytest.mark.parametrize("factor", [1.05, 0.95])
def test_the_cross_check_can_fail(gpu, factor):
    data = load_yaml(find_gpu(gpu.id))
    for kind in gpu.math_types:
        peak = data["compute"]["dense_tflops"][kind]
        right, peak["value"] = peak["value"], peak["value"] * factor
        if getattr(gpu.compute.peak_exceptions, kind) is None:
            with pytest.raises(PerfModelError, match=rf"compute\.dense_tflops\.{kind}.*contradicts"):
                validate(GpuSpec, data)
        else:
            validate(GpuSpec, data)
        peak["value"] = right
    validate(GpuSpec, data)


def test_a_contradiction_names_its_line():
    path = find_gpu("b200")
    text = path.read_text().replace("fp4: {value: 9000,", "fp4: {value: 18000,", 1)  # the sparse peak taken for the dense one
    with pytest.raises(PerfModelError, match=r"compute\.dense_tflops\.fp4: 18000 contradicts 32768 .* = 9001") as caught:
        validate(GpuSpec, load_yaml(path, text), file=path, text=text)
    assert "18000" in text.splitlines()[caught.value.line - 1]


def test_dense_and_sparse_are_apart(gpu):
    for kind, sparse in gpu.compute.sparse_tflops or ():
        if sparse is not None:
            assert sparse.value * 1e12 > gpu.peak_flops(kind) * 1.2
            assert sparse.value * 1e12 < gpu.peak_flops(kind) * 2.05


def test_provenance_survives_loading(gpu):
    """Each number of the file arrives with its source and status: none lost, none bare, none called the user's."""
    written = dict(_numbers(load_yaml(find_gpu(gpu.id)), ""))
    loaded = {path: field_value(gpu, path) for path, kind in field_kinds().items() if issubclass(kind, Quantity)}
    assert len(written) >= 25
    assert written == {path: q.model_dump() for path, q in loaded.items() if q is not None}
    for path, quantity in written.items():
        assert quantity["status"] in ("datasheet", "measured", "derived", "estimated"), path
        assert len(quantity["source"]) >= 5, path
        if "sibling" in quantity["source"] or "assumed" in quantity["source"]:
            assert quantity["status"] == "estimated", path


def _numbers(data, prefix):
    for key, value in data.items():
        assert isinstance(value, str | list | dict), f"{prefix}{key} is a bare number"
        if isinstance(value, dict) and "value" in value:
            yield prefix + key, value
        elif isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{key}.")


def test_an_exception_needs_a_reason():
    data = load_yaml(find_gpu("b300"))
    data["compute"]["peak_exceptions"]["int8"] = "why not"
    with pytest.raises(PerfModelError, match=r"peak_exceptions\.int8"):
        validate(GpuSpec, data)
    del data["compute"]["peak_exceptions"]
    with pytest.raises(PerfModelError, match=r"dense_tflops\.int8"):
        validate(GpuSpec, data)


def test_a_peak_without_its_rate_is_refused():
    data = load_yaml(find_gpu("b200"))
    del data["compute"]["flop_per_clock_per_sm"]["fp4"]
    with pytest.raises(PerfModelError, match=r"fp4.*cannot be checked.*flop_per_clock_per_sm\.fp4"):
        validate(GpuSpec, data)


def test_layout_of_the_files(gpu):
    text = find_gpu(gpu.id).read_text()
    lines = text.splitlines()
    assert lines[0] == "# yaml-language-server: $schema=.schema.json"
    first = next(i for i, line in enumerate(lines) if "bandwidth_GBps:" in line)
    assert lines[first].startswith("  bandwidth_GBps:")
    assert lines.index("memory:") < first < lines.index("l2:")
    assert gpu.id == find_gpu(gpu.id).stem
    assert max(map(len, lines)) < 260


def test_instructions_fit_the_architecture(gpu):
    families = {
        "volta": {"mma"},
        "ampere": {"mma", "cp-async"},
        "ada": {"mma", "cp-async"},
        "hopper": {"mma", "wgmma", "cp-async", "tma", "multicast"},
        "blackwell": {"mma", "tcgen05", "cp-async", "tma", "multicast"},
        "blackwell-rtx": {"mma", "mma-block-scale", "cp-async", "tma"},
    }
    assert set(families) == set(Architecture.__args__)
    assert set(gpu.compute.instructions) == families[gpu.architecture]
    assert (gpu.sm.tensor_memory_KiB is not None) == (gpu.architecture == "blackwell")
    assert ("fp4" in gpu.math_types) == gpu.architecture.startswith("blackwell")


def test_the_schema_is_in_step():
    assert (FOLDER / ".schema.json").read_text() == schema_text(), "run: perfmodel spec schema --out gpu_specs/.schema.json"


def test_the_schema_knows_bounds_and_whole_numbers():
    parts = json.loads(schema_text())["$defs"]
    bare, sourced = parts["Compute"]["properties"]["sm_count"]["anyOf"]
    assert bare == {"type": "integer", "minimum": 1, "maximum": 1e6}
    assert sourced == {"allOf": [{"$ref": "#/$defs/Count"}], "properties": {"value": {"minimum": 1, "maximum": 1e6}}}
    assert parts["Memory"]["properties"]["bandwidth_GBps"]["anyOf"][0] == {"type": "number", "minimum": 1, "maximum": 1e6}
    assert parts["Memory"]["additionalProperties"] is False


def test_frozen_and_hashable(gpu):
    assert hash(gpu) == hash(load_gpu(gpu.id))
    with pytest.raises(ValueError, match="frozen"):
        gpu.memory.type = "HBM9"


@pytest.mark.parametrize("name", ["b20", "B201", "h1000", "", "nothing-like-it"])
def test_unknown_ids_get_a_suggestion(name):
    with pytest.raises(PerfModelError, match=r"Did you mean|Choose from"):
        load_gpu(name)


def test_did_you_mean_names_the_near_one():
    with pytest.raises(PerfModelError, match=r"Did you mean .*b200"):
        load_gpu("b20")
    assert did_you_mean("FP8", ["bf16", "fp8"]) == "Did you mean fp8?"


def test_a_file_anywhere_works_as_an_id_does(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text(find_gpu("b200").read_text())
    (tmp_path / "plain").write_text(find_gpu("b200").read_text())
    monkeypatch.chdir(tmp_path)
    for name in ("mine.yaml", tmp_path / "mine.yaml", str(tmp_path / "mine.yaml"), "./mine.yaml", "plain"):
        assert load_gpu(name) == load_gpu("b200")


def test_ids_ignore_case_and_files_of_that_name_do_not(tmp_path, monkeypatch):
    assert find_gpu("B200") == find_gpu("b200")
    monkeypatch.chdir(tmp_path)
    Path("B200").write_text(find_gpu("h200").read_text())
    assert load_gpu("B200").id == "h200"
