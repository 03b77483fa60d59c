"""What-ifs: what follows from a changed field is changed too and said, contradictions are refused."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import PerfModelError
from perfmodel.hardware import load_gpu
from perfmodel.hardware.fields import field_kinds, parse_changes

B200 = load_gpu("b200")


def test_a_field_that_nothing_depends_on_changes_alone():
    gpu = load_gpu("b200", ["memory.bandwidth_GBps=9000"])
    assert gpu.dram_bandwidth == 9e12
    assert gpu.memory.bandwidth_GBps.status == "user"
    assert gpu.notes == ()
    assert gpu.model_copy(update={"memory": B200.memory}) == B200


def test_sms_rescale_every_peak_and_say_so():
    gpu = load_gpu("b200", ["compute.sm_count=74"])
    for kind in B200.math_types:
        assert gpu.peak_flops(kind) == pytest.approx(B200.peak_flops(kind) / 2)
    assert gpu.compute.sparse_tflops.fp4.value == 9000
    assert gpu.compute.vector_tflops.fp32.value == 37.5
    assert gpu.compute.dense_tflops.fp4.status == "derived"
    assert any("fp4 9000 -> 4500" in line for line in gpu.notes)


def test_boost_moves_the_tensor_clock_in_proportion():
    gpu = load_gpu("b200", ["clock.boost_MHz=982.5"])
    assert gpu.tensor_peak_clock == pytest.approx(928e6)
    assert gpu.peak_flops("bf16") == pytest.approx(1125e12)
    assert any("tensor_peak_MHz 1856 -> 928" in line for line in gpu.notes)


def test_clocks_above_boost_come_down_to_it():
    gpu = load_gpu("h200", ["clock.boost_MHz=1400"])
    assert gpu.sustained_clock == 1400e6
    assert gpu.clock.base_MHz.value == 1400
    assert any("sustained_MHz 1500 -> 1400" in line for line in gpu.notes)


def test_tensor_clock_leaves_boost_alone():
    gpu = load_gpu("b200", ["clock.tensor_peak_MHz=928"])
    assert gpu.boost_clock == B200.boost_clock
    assert gpu.peak_flops("fp8") == pytest.approx(2250e12)
    assert gpu.compute.vector_tflops == B200.compute.vector_tflops


def test_rate_rescales_its_own_peak_only():
    gpu = load_gpu("b200", ["compute.flop_per_clock_per_sm.fp4=49152"])
    assert gpu.peak_flops("fp4") == pytest.approx(13500e12)
    assert gpu.peak_flops("fp8") == B200.peak_flops("fp8")


def test_a_peak_alone_rescales_its_rate_and_its_sparse_twin():
    gpu = load_gpu("b200", ["compute.dense_tflops.fp4=13500"])
    assert gpu.compute.flop_per_clock_per_sm.fp4.value == 49152
    assert gpu.compute.sparse_tflops.fp4.value == 27000
    assert any("flop_per_clock_per_sm: fp4 32768 -> 49152" in line for line in gpu.notes)


def test_a_new_arithmetic_type_from_either_side():
    from_peak = load_gpu("h200", ["compute.dense_tflops.fp4=3957.7"])
    assert from_peak.compute.flop_per_clock_per_sm.fp4.value == pytest.approx(16384, rel=1e-3)
    from_rate = load_gpu("h200", ["compute.flop_per_clock_per_sm.fp4=16384", "compute.sm_count=66"])
    assert from_rate.peak_flops("fp4") == pytest.approx(16384 * 66 * 1830e6, rel=1e-4)


def test_unchanged_values_have_no_consequences():
    assert load_gpu("b200", ["compute.sm_count=148", "compute.dense_tflops.fp4=9000"]).notes == ()


def test_an_exception_is_scaled_but_not_checked():
    gpu = load_gpu("b300", ["compute.sm_count=74"])
    assert gpu.peak_flops("int8") == pytest.approx(76.75e12)
    assert load_gpu("b300", ["compute.dense_tflops.int8=1000"]).peak_flops("int8") == 1e15


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["compute.dense_tflops.fp4=9000", "compute.sm_count=74"], r"dense_tflops\.fp4: 9000 contradicts .* 74 SMs .* Set 4500"),
        (["compute.dense_tflops.fp4=9000", "compute.flop_per_clock_per_sm.fp4=16384"], r"dense_tflops\.fp4: 9000 contradicts"),
        (["clock.tensor_peak_MHz=3000"], r"clock\.tensor_peak_MHz: 3000 is above clock\.boost_MHz = 1965"),
        (["sm.max_threads=1024"], r"sm\.max_threads: 1024 is not 32 x"),
        (["sm.shared_memory_per_block_KiB=300"], r"sm\.shared_memory_per_block_KiB: 300 is above"),
        (["memory.bandwith_GBps=3"], r"no such field. Did you mean memory\.bandwidth_GBps"),
        (["bandwidth_GBps=3"], r"Did you mean .*memory\.bandwidth_GBps"),
        (["clock.boost_mhz=3"], r"Did you mean clock\.boost_MHz"),
        (["memory=3"], r"is a section. Set one of its fields: .*memory\.bandwidth_GBps"),
        (["memory.bandwidth_GBps"], "is no FIELD=VALUE"),
        (["=3"], "no such field"),
        ([""], "is no FIELD=VALUE"),
        (["memory.bandwidth_GBps="], r"must be a number \(got ''\)"),
        (["memory.bandwidth_GBps=-1"], r"memory\.bandwidth_GBps: out of range \(got -1"),
        (["memory.bandwidth_GBps=0"], "out of range"),
        (["memory.bandwidth_GBps=8 TB/s"], r"must be a number \(got '8 TB/s'\). Write the number alone"),
        (["memory.bandwidth_GBps=9,000"], "must be a number"),
        (["memory.bandwidth_GBps=nan"], "must be a number"),
        (["memory.bandwidth_GBps=inf"], "must be a number"),
        (["memory.bandwidth_GBps=1e999"], "must be a number"),
        (["memory.bandwidth_GBps=7672000000000"], r"out of range .* Give 1 to 1,000,000 GB/s"),
        (["compute.sm_count=1.5"], r"must be a whole number \(got '1.5'\)"),
        (["compute.sm_count=0"], r"compute\.sm_count: out of range"),
        (["clock.boost_MHz=-5"], r"clock\.boost_MHz: out of range"),
        (["memory.bandwidth_GBps=1", "memory.bandwidth_GBps=2"], "given twice"),
        (["architecture=hoper"], "architecture"),
        (["compute.instructions=mma,warp"], r"compute\.instructions"),
        (["compute_capability=ten"], "compute_capability"),
        (["l2.latency_ns.status=guess"], r"l2\.latency_ns\.status"),
        (["compute.peak_exceptions.fp4=no"], r"peak_exceptions\.fp4"),
        (["notes=x"], "no such field"),
    ],
)
def test_refusals_name_field_value_and_mend(changes, message):
    with pytest.raises(PerfModelError, match=message):
        load_gpu("b200", changes)


def test_text_fields_and_provenance():
    gpu = load_gpu(
        "b200", ["name=My GPU", "compute.instructions=mma, tma", "l2.latency_ns.source=my bench", "l2.latency_ns.status=measured"]
    )
    assert gpu.name == "My GPU"
    assert gpu.compute.instructions == ("mma", "tma")
    assert gpu.l2.latency_ns.source == "my bench"
    assert gpu.l2.latency_ns.value == B200.l2.latency_ns.value


def test_the_source_may_be_given_before_the_value():
    gpu = load_gpu("b200", ["l2.latency_ns.source=my bench", "l2.latency_ns=200"])
    assert (gpu.l2.latency_ns.value, gpu.l2.latency_ns.source, gpu.l2.latency_ns.status) == (200, "my bench", "user")


def test_sections_that_were_absent_are_added():
    gpu = load_gpu("l40s", ["links.nvlink.per_direction_GBps=450", "node.nvlink_domain=8"])
    assert (gpu.nvlink_bandwidth, gpu.nvlink_domain) == (450e9, 8)


def test_every_path_resolves_to_a_kind():
    kinds = field_kinds()
    assert kinds["memory.bandwidth_GBps"].__name__ == "Quantity"
    assert kinds["compute.sm_count"].__name__ == "Count"
    assert kinds["architecture"] is str
    assert kinds["compute.instructions"] is tuple
    assert kinds["compute.dense_tflops.fp4.source"] is str
    assert len(kinds) > 150


@settings(deadline=None, max_examples=40)
@given(
    sms=st.integers(1, 400),
    boost=st.floats(300, 4000),
    kind=st.sampled_from(B200.math_types),
)
def test_the_peak_is_proportional_to_sms_and_clock(sms, boost, kind):
    gpu = load_gpu("b200", [f"compute.sm_count={sms}", f"clock.boost_MHz={boost:.6f}"])
    assert gpu.peak_flops(kind) == pytest.approx(B200.peak_flops(kind) * sms / 148 * boost / 1965, rel=1e-4)


@settings(deadline=None, max_examples=100)
@given(st.one_of(st.text(max_size=40), st.builds("{}={}".format, st.sampled_from(sorted(field_kinds())), st.text(max_size=12))))
def test_any_change_is_made_or_refused_in_words(text):
    with contextlib.suppress(PerfModelError):
        assert load_gpu("b200", [text]).id


@given(st.floats(1e-3, 1e6, allow_nan=False))
def test_numbers_are_read_as_python_reads_them(value):
    (change,) = parse_changes([f"memory.bandwidth_GBps={value!r}"])
    assert change.value == value
