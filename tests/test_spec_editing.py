"""Editing a user's file: only what was asked for changes, and a refused or killed edit leaves the file as it was."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.errors import PerfModelError
from perfmodel.files import load_yaml
from perfmodel.hardware import find_gpu, gpu_ids, load_gpu
from perfmodel.hardware.editing import differences, edited_text, new_spec, set_fields
from perfmodel.hardware.fields import Change, field_kinds
from perfmodel.hardware.quantity import Quantity
from perfmodel.hardware.splice import put, render


@pytest.fixture
def mine(tmp_path) -> Path:
    new_spec("h200", tmp_path / "mine.yaml")
    return tmp_path / "mine.yaml"


def changed_lines(old: str, new: str) -> list[tuple[str, str]]:
    assert len(old.splitlines()) == len(new.splitlines())
    return [(a, b) for a, b in zip(old.splitlines(), new.splitlines(), strict=True) if a != b]


def test_a_new_file_is_the_old_one_under_its_own_name(mine):
    stock = find_gpu("h200").read_text().splitlines()
    lines = mine.read_text().splitlines()
    assert lines[0].startswith("# yaml-language-server: $schema=/")
    assert Path(lines[0].partition("=")[2]).is_file()
    assert lines[1:3] == ["id: mine", "name: mine"]
    assert lines[3:] == stock[3:]
    assert load_gpu(mine).id == "mine"
    assert [d.field for d in differences(load_gpu("h200"), load_gpu(mine))] == ["id", "name"]


def test_a_new_file_beside_the_schema_names_it_relatively(tmp_path, monkeypatch):
    monkeypatch.setattr("perfmodel.hardware.editing.schema_path", lambda: tmp_path / ".schema.json")
    new_spec("h200", tmp_path / "mine.yaml")
    assert (tmp_path / "mine.yaml").read_text().startswith("# yaml-language-server: $schema=.schema.json\n")


def test_a_new_file_does_not_overwrite(mine):
    before = mine.read_bytes()
    with pytest.raises(PerfModelError, match=r"exists.*--force"):
        new_spec("b200", mine)
    assert mine.read_bytes() == before
    new_spec("b200", mine, force=True)
    assert load_gpu(mine).sm_count == 148


@pytest.mark.parametrize(
    ("name", "message"),
    [("mine", r"must end in .yaml.*mine\.yaml"), ("no/where/mine.yaml", "cannot write"), ("my gpu.yaml", "id"), ("-.yaml", "id")],
)
def test_a_new_file_needs_a_fitting_name(tmp_path, name, message):
    with pytest.raises(PerfModelError, match=message):
        new_spec("b200", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_set_changes_one_line_and_gives_the_user_the_credit(mine):
    old = mine.read_text()
    edit = set_fields(mine, ["memory.bandwidth_GBps=9600"])
    ((_, line),) = changed_lines(old, mine.read_text())
    assert line == '  bandwidth_GBps: {value: 9600, source: "given by the user", status: user}'
    assert f"+{line}" in edit.diff
    assert load_gpu(mine).dram_bandwidth == 9.6e12


def test_comments_stay_wherever_they_stand(mine):
    lines = mine.read_text().splitlines()
    commented = "".join(f"{' ' * (len(line) - len(line.lstrip()))}# above {i}\n{line}\n" for i, line in enumerate(lines))
    mine.write_text("# my own note\n" + commented + "# the end")
    set_fields(mine, ["memory.bandwidth_GBps=9600", "l2.near_capacity_MiB=30", "links.c2c.per_direction_GBps=450", "name=Mine"])
    text = mine.read_text()
    assert all(f"# above {i}\n" in text for i in range(len(lines)))
    assert text.startswith("# my own note\n")
    assert text.endswith("# the end")
    assert load_gpu(mine).links.c2c.per_direction_GBps.value == 450


def test_odd_layouts_are_left_alone(tmp_path):
    """Spacing, quotes, comments inside a flow mapping, block style, CRLF, bare numbers: none of it is reformatted."""
    text = find_gpu("h200").read_text()
    text = text.replace(
        'bandwidth_GBps: {value: 4800, source: "NVIDIA H200 datasheet; aiconfigurator 0.12.0 h200_sxm.yaml", status: datasheet}',
        "bandwidth_GBps:   {   # inside\n      value:  4800,  # the value\n      source: 'my  source', status: user }   # behind",
    )
    text = text.replace(
        '  tdp_W: {value: 700, source: "NVIDIA H200 datasheet; aiconfigurator 0.12.0 h200_sxm.yaml", status: datasheet}',
        "  tdp_W:  700 # W",
    )
    block = "  boost_MHz:\n      # block style\n      value: 1980\n      source: >-\n        folded\n        text\n      status: user\n"
    text = text.replace('  boost_MHz: {value: 1980, source: "device query", status: measured}\n', block)
    path = tmp_path / "odd.yaml"
    path.write_bytes(text.replace("\n", "\r\n").encode())
    set_fields(path, ["memory.bandwidth_GBps=9600", "power.tdp_W=650", "clock.boost_MHz=2000", "l2.near_capacity_MiB=30"])
    raw = path.read_bytes().decode()
    assert "bandwidth_GBps:   {   # inside\r\n      value:  9600,  # the value\r\n" in raw
    assert 'source: "given by the user", status: user }   # behind\r\n' in raw
    assert "  tdp_W:  650 # W\r\n" in raw
    assert "      # block style\r\n      value: 2000\r\n" in raw
    assert "\n" not in raw.replace("\r\n", "")
    gpu = load_gpu(path)
    assert (gpu.tdp, gpu.boost_clock, gpu.memory.bandwidth_GBps.source) == (650, 2e9, "given by the user")


def test_an_empty_section_and_an_empty_value_are_filled(tmp_path):
    path = tmp_path / "empty.yaml"
    text = find_gpu("l40s").read_text()
    head, _, tail = text.partition("\nlinks:\n")
    path.write_text(head + "\nlinks:\n\nnode:" + tail.partition("\nnode:")[2])
    with pytest.raises(PerfModelError, match="links"):
        load_gpu(path)
    set_fields(path, ["links.pcie.per_direction_GBps=32", "links.network.per_direction_GBps=25"])
    assert (load_gpu(path).pcie_bandwidth, load_gpu(path).network_bandwidth) == (32e9, 25e9)


def test_the_source_of_a_bare_number(mine):
    mine.write_text(mine.read_text().replace(find_line(mine, "bandwidth_GBps:"), "  bandwidth_GBps: 5000"))
    set_fields(mine, ["memory.bandwidth_GBps.source=my own bench", "memory.bandwidth_GBps.status=measured"])
    assert find_line(mine, "bandwidth_GBps:") == '  bandwidth_GBps: {value: 5000, source: "my own bench", status: measured}'


def find_line(path: Path, text: str) -> str:
    return next(line for line in path.read_text().splitlines() if text in line)


REFUSED = [
    (["memory.bandwidth_GBps=-1"], r":\d+: memory\.bandwidth_GBps: out of range"),
    (["memory.bandwith_GBps=1"], r"Did you mean memory\.bandwidth_GBps"),
    (["compute.dense_tflops.bf16=98900"], r":\d+: compute\.dense_tflops\.bf16: 98900 contradicts .* = 989.43. Set 989.43"),
    (["compute.sm_count=66"], "--rescale"),
    (["memory.bandwidth_GBps=9600", "power.tdp_W=many"], r"power\.tdp_W: must be a number"),
    (["id=my gpu"], "id"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_a_refused_edit_leaves_the_file_as_it_was(mine, changes, message):
    before, stamp = mine.read_bytes(), mine.stat().st_mtime_ns
    with pytest.raises(PerfModelError, match=message):
        set_fields(mine, changes)
    assert (mine.read_bytes(), mine.stat().st_mtime_ns) == (before, stamp)


def test_fields_are_validated_together(mine):
    """Neither would pass alone: half the SMs and half of each peak."""
    halves = [f"compute.dense_tflops.{t}={q.value / 2}" for t, q in load_gpu(mine).compute.dense_tflops if q is not None]
    set_fields(mine, ["compute.sm_count=66", *halves])
    assert load_gpu(mine).sm_count == 66


def test_rescale_writes_what_the_what_if_says(mine):
    edit = set_fields(mine, ["compute.sm_count=66"], rescale=True)
    what_if = load_gpu("h200", ["compute.sm_count=66"])
    assert [d.field for d in differences(what_if, load_gpu(mine))] == ["id", "name"]
    assert tuple(edit.notes) == what_if.notes


def test_setting_the_same_value_changes_nothing_twice(mine):
    set_fields(mine, ["memory.bandwidth_GBps=9600"])
    stamp = mine.stat().st_mtime_ns
    assert set_fields(mine, ["memory.bandwidth_GBps=9600"]).diff == ""
    assert mine.stat().st_mtime_ns == stamp


def test_a_bundled_gpu_is_not_edited(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = find_gpu("h200").read_bytes()
    with pytest.raises(PerfModelError, match=r"bundled.*spec new --from h200"):
        set_fields("h200", ["memory.bandwidth_GBps=9600"])
    assert find_gpu("h200").read_bytes() == before


def test_an_alias_is_refused_rather_than_changed_in_two_places(mine):
    text = mine.read_text()
    bf16, fp16 = find_line(mine, "    bf16: {value: 989.4"), find_line(mine, "    fp16: {value: 989.4")
    mine.write_text(text.replace(fp16, fp16.replace("{", "&peak {", 1)).replace(bf16, "    bf16: *peak"))
    before = mine.read_bytes()
    assert load_gpu(mine).peak_flops("bf16") == 989.4e12
    with pytest.raises(PerfModelError, match=r"cannot be edited in place.*Aliases"):
        set_fields(mine, ["compute.dense_tflops.bf16=990"])
    assert mine.read_bytes() == before


def test_a_broken_field_can_be_mended_by_setting_it(mine):
    mine.write_text(mine.read_text().replace("value: 4800", "value: -4800"))
    with pytest.raises(PerfModelError):
        load_gpu(mine)
    set_fields(mine, ["memory.bandwidth_GBps=4800"])
    assert load_gpu(mine).dram_bandwidth == 4.8e12


def test_links_and_permissions_are_kept(mine, tmp_path):
    mine.chmod(0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(mine)
    set_fields(link, ["memory.bandwidth_GBps=9600"])
    assert link.is_symlink()
    assert mine.stat().st_mode & 0o777 == 0o640
    assert load_gpu(mine).dram_bandwidth == 9.6e12


QUANTITIES = sorted(p for p, kind in field_kinds().items() if issubclass(kind, Quantity))


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(gpu=st.sampled_from(gpu_ids()), path=st.sampled_from(QUANTITIES), value=st.floats(0.01, 1e5, allow_nan=False), data=st.data())
def test_property_only_the_value_changes(gpu, path, value, data):
    """A value put anywhere into any file: it reads back, all else reads as before, and every comment is still there."""
    lines = find_gpu(gpu).read_text().splitlines()
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(lines)))
        lines.insert(at, " " * data.draw(st.integers(0, 6)) + "# note: {a comment}")
    text = "\n".join(lines) + "\n"
    new = edited_text(text, [Change(path, value)])
    before, after = load_yaml("", text), load_yaml("", new)
    *parents, last = path.split(".")
    for key in parents:
        before, after = before.get(key, {}), after[key]
    assert after[last] == {"value": value, "source": "given by the user", "status": "user"}
    assert {k: v for k, v in after.items() if k != last} == {k: v for k, v in before.items() if k != last}
    comments = [line for line in text.splitlines() if line.lstrip().startswith("#")]
    assert [line for line in new.splitlines() if line.lstrip().startswith("#")] == comments
    assert sum(a != b for a, b in zip(text.splitlines(), new.splitlines(), strict=False)) >= 1


SCALARS = st.one_of(st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20))


@settings(deadline=None, max_examples=150)
@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), st.one_of(SCALARS, st.lists(SCALARS, max_size=3)), min_size=1, max_size=4)
)
def test_property_rendered_yaml_reads_back(mapping):
    from ruamel.yaml import YAML

    assert YAML(typ="safe", pure=True).load(f"top: {render(mapping)}\n") == {"top": mapping}


@pytest.mark.parametrize(
    ("text", "keys", "value", "want"),
    [
        ("a: 1\n", ["a"], 2, "a: 2\n"),
        ("a: 1", ["b"], 2, "a: 1\nb: 2\n"),
        ("a:  # c\nb: 2\n", ["a"], 1, "a: 1  # c\nb: 2\n"),
        ("a:\n  b: 1 # c\n\n# d\nz: 2\n", ["a", "c"], 3, "a:\n  b: 1 # c\n  c: 3\n\n# d\nz: 2\n"),
        ("a: {b: 1}\n", ["a", "c"], 3, "a: {b: 1, c: 3}\n"),
        ("a: {}\n", ["a", "c"], 3, "a: {c: 3}\n"),
        ("a: {b: 1}\n", ["a", "b", "c"], 3, "a: {b: {c: 3}}\n"),
        ("a:\nb: 1\n", ["a", "c"], 3, "a: {c: 3}\nb: 1\n"),
        ("a:\n    b:\n        c: 1\n", ["a", "b", "d"], "x y", 'a:\n    b:\n        c: 1\n        d: "x y"\n'),
    ],
)
def test_put_by_hand(text, keys, value, want):
    assert put(text, keys, value) == want
