"""Broken specifications: the message names file, line, field, value and mend, and never is a traceback."""

import contextlib
import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.errors import PerfModelError
from perfmodel.files import load_yaml
from perfmodel.hardware import GpuSpec, find_gpu, load_gpu
from perfmodel.hardware.editing import set_fields
from perfmodel.validated import validate

TEXT = find_gpu("b200").read_text()
FP4 = next(line for line in TEXT.splitlines() if line.startswith("    fp4: {value: 9000"))
BANDWIDTH = next(line for line in TEXT.splitlines() if "bandwidth_GBps:" in line)
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)

MISTAKES = [
    # (what to replace, by what, line of the mistake or None, what the message says)
    ("memory:", "memory: [", True, "broken YAML"),
    ("memory:\n", "memory:\n\tx: 1\n", True, "broken YAML"),
    (BANDWIDTH, "  bandwidth_GBps: -1", True, r"memory\.bandwidth_GBps: out of range \(got -1"),
    (BANDWIDTH, "  bandwidth_GBps: 0", True, r"memory\.bandwidth_GBps: out of range \(got 0"),
    (BANDWIDTH, "  bandwidth_GBps: 8e12", True, r"Give 1 to 1,000,000 GB/s"),
    (BANDWIDTH, "  bandwidth_GBps: 8 TB/s", True, r"must be a number \(got '8 TB/s'\). Write the number alone"),
    (BANDWIDTH, '  bandwidth_GBps: "8000"', True, r"must be a number \(got '8000'\)"),
    (BANDWIDTH, "  bandwidth_GBps: true", True, r"must be a number \(got True\)"),
    (BANDWIDTH, "  bandwidth_GBps: .nan", True, "finite"),
    (BANDWIDTH, "  bandwidth_GBps: .inf", True, "finite|out of range"),
    (BANDWIDTH, "  bandwidth_GBps:", True, "must be a number"),
    (BANDWIDTH, "  bandwidth_GBps: [1, 2]", True, "must be a number"),
    (BANDWIDTH, "  bandwith_GBps: 8000", True, r"bandwith_GBps.*Did you mean bandwidth_GBps"),
    (BANDWIDTH, "  bandwidth_TBps: 8", True, r"bandwidth_TBps.*Did you mean bandwidth_GBps"),
    (BANDWIDTH, BANDWIDTH + "\n  bandwidth_GBps: 1", True, "duplicate key"),
    (BANDWIDTH, "  bandwidth_GBps: {value: 8000}", True, r"memory\.bandwidth_GBps\.source.*Add the field"),
    (BANDWIDTH, "  bandwidth_GBps: {value: 8000, source: mine, status: guess}", True, r"bandwidth_GBps\.status.*'guess'"),
    (BANDWIDTH, "  bandwidth_GBps: {value: 8000, source: 12345, status: user}", True, r"bandwidth_GBps\.source"),
    (BANDWIDTH, "  bandwidth_GBps: {valu: 8000, source: mine, status: user}", True, "bandwidth_GBps"),
    (BANDWIDTH, "  bandwidth_GBps: {value: many, source: mine, status: user}", True, r"must be a number \(got 'many'\)"),
    (FP4, "    fp4: 18000", True, r"dense_tflops\.fp4: 18000 contradicts"),
    (FP4, FP4 + "\n    fp3: 1", True, r"dense_tflops\.fp3.*Did you mean fp"),
    ("\nid: b200", "\nid: b 200", True, r"id: .*'b 200'"),
    ("\nid: b200", "", None, r"id: field required"),
    ("architecture: blackwell", "architecture: blackwel", True, r"architecture.*'blackwel'"),
    (
        'compute_capability: "10.0"',
        "compute_capability: 10.0",
        True,
        r'compute_capability: must be text \(got 10.0\). Write it in quotes, "10.0"',
    ),
    ("\nnode:", "\nnodes:", True, r"nodes|node: field required"),
    ("value: 148,", "value: 148.5,", True, r"sm_count.*148\.5"),
    ("instructions: [mma,", "instructions: [mna,", True, r"instructions\.0.*'mna'"),
    ("\nmemory:", "\nnotes: [x]\nmemory:", True, "notes"),
    (TEXT, "", None, "holds no mapping"),
    (TEXT, "- a\n- b\n", None, "holds no mapping"),
    (TEXT, "just words\n", None, "holds no mapping"),
    (TEXT, "a: 1\n---\nb: 2\n", None, "broken YAML"),
    (TEXT, "x: &x {y: *x}\n", None, r"mine\.yaml"),
    (TEXT, "memory: &x\n  type: *x\n", None, r"mine\.yaml"),
    (TEXT, BOMB + "memory: *i\n", None, r"mine\.yaml"),
    (TEXT, "memory: " + "[" * 3000, None, r"mine\.yaml"),
    (TEXT, "? {a: 1}\n: 2\n", None, r"mine\.yaml"),
    (TEXT, "memory: !!python/object:os.system x\n", None, r"mine\.yaml"),
    (TEXT, "memory: {bandwidth_GBps: 0x" + "f" * 6000 + "}\n", None, r"mine\.yaml"),
    (TEXT, "memory: {bandwidth_GBps: " + "9" * 6000 + "}\n", None, r"mine\.yaml"),
    (TEXT, "1: 2\n3.5: x\nnull: y\n", None, r"mine\.yaml"),
    (TEXT, "memory: 2026-11-29\n", None, r"mine\.yaml"),
]


@pytest.mark.parametrize(("old", "new", "has_line", "message"), MISTAKES)
def test_a_mistake_is_named_and_the_file_left_alone(tmp_path, old, new, has_line, message):
    assert old in TEXT
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT.replace(old, new, 1))
    before = path.read_bytes()
    with pytest.raises(PerfModelError, match=message) as caught:
        load_gpu(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text.strip()
    assert len(text) < 1000
    assert caught.value.mend
    if has_line:
        at = TEXT[: TEXT.index(old)].count("\n") + 1 + (old.startswith("\n"))
        assert at <= caught.value.line <= at + 2, text
    with contextlib.suppress(PerfModelError):
        set_fields(path, ["name=other"])
        raise AssertionError("an invalid file was written")
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"\xff\xfe\x00broken", b"\x00" * 100, b"a" * (17 * 2**20), b"id: \x07\n"])
def test_what_is_no_text_or_too_large(tmp_path, content):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(PerfModelError, match=r"mine\.yaml"):
        load_gpu(path)


def test_folders_and_missing_files(tmp_path):
    for path in (tmp_path, tmp_path / "none.yaml", "/", "/dev/null"):
        with pytest.raises(PerfModelError):
            load_gpu(path)
        with pytest.raises(PerfModelError):
            set_fields(path, ["name=x"])


def test_several_mistakes_are_counted():
    text = TEXT.replace(BANDWIDTH, "  bandwidth_GBps: -1").replace("value: 148,", "value: 0,").replace("type: HBM3e", "type: 3")
    with pytest.raises(PerfModelError, match=r"Also wrong: .*compute\.sm_count"):
        validate(GpuSpec, load_yaml("x.yaml", text), file="x.yaml", text=text)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_fuzz_damaged_text(tmp_path, data):
    """Cut, doubled and overwritten text loads or is refused in words, and an edit of it never raises anything else."""
    text = TEXT
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 30)))
        text = (
            text[:start] + data.draw(st.text(alphabet=st.sampled_from(list(" \n\t:{}[],#&*!|>'\"%@`-?0aé\x00")), max_size=6)) + text[end:]
        )
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    for attempt in (lambda: load_gpu(path), lambda: set_fields(path, ["memory.bandwidth_GBps=9000", "l2.latency_ns.source=me and mine"])):
        with contextlib.suppress(PerfModelError):
            attempt()


JSONISH = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.text(max_size=6), st.integers()), inner, max_size=3)),
    max_leaves=6,
)


@settings(deadline=None, max_examples=120)
@given(st.data(), JSONISH)
def test_fuzz_any_value_anywhere(data, value):
    """Any value in the place of any node, sections and leaves alike."""
    spec = copy.deepcopy(load_yaml(find_gpu("b200")))
    node = spec
    while True:
        key = data.draw(st.sampled_from(sorted(node)))
        if not isinstance(node[key], dict) or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = value
    with contextlib.suppress(PerfModelError):
        validate(GpuSpec, spec, file="x.yaml", text=TEXT)
