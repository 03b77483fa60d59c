"""The strict CSV reader: right files are read exactly, wrong ones are refused with line, column, value and mend."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import PerfModelError
from perfmodel.validation import reader
from perfmodel.validation.reader import read_measurements

HEADER = "gpu,kernel,format,num_tokens,hidden,inter,topk,num_experts,tp,ep,routing,latency_us"
ROW = "h200,trtllm-cutlass,bf16,64,7168,2048,8,256,1,1,balanced,5010"


@pytest.fixture
def write(tmp_path):
    def to_file(content, name="mine.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to_file


def row(**changes):
    cells = dict(zip(HEADER.split(","), ROW.split(","), strict=True)) | changes
    return ",".join(str(cell) for cell in cells.values())


def refuse(path, *words):
    with pytest.raises(PerfModelError) as caught:
        read_measurements(path)
    message = str(caught.value)
    assert str(path) in message
    for word in words:
        assert str(word) in message, message
    return message


def test_a_layer_is_read_as_written(write):
    rows = read_measurements(write(f"{HEADER}\n{ROW}\n"))
    assert rows.kind == "layer"
    assert rows.latency.tolist() == pytest.approx([5010e-6], rel=1e-15)
    assert rows.row(0) == {
        "line": 2, "gpu": "h200", "kernel": "trtllm-cutlass", "format": "bf16", "num_tokens": 64, "hidden": 7168, "inter": 2048, "topk": 8,
        "num_experts": 256, "tp": 1, "ep": 1, "routing": "balanced", "latency_us": 5010.0, "gated": True, "source": None, "launch": None,
        "caches": "cold",
    }  # fmt: skip


def test_a_grouped_gemm_is_read_as_written(write):
    text = "gpu,kernel,format,experts,n,k,tokens_per_expert,latency_us\nh200,marlin,mxfp4-w4a16,16,4096,7168,64,228.42\n"
    rows = read_measurements(write(text))
    assert rows.kind == "grouped-gemm"
    assert rows.row(0)["tokens_per_expert"] == 64
    assert rows.row(0)["latency_us"] == 228.42


@pytest.mark.parametrize(
    "content",
    [
        f"\ufeff{HEADER}\n{ROW}\n",
        f"{HEADER}\r\n{ROW}\r\n",
        f"{HEADER}\r{ROW}\r",
        f"{HEADER}\n{ROW}",
        f"\n# a remark\n{HEADER}\n\n{ROW}\n\n",
        f"{HEADER}\n" + ROW.replace(",", " , ") + "\n",
        f"{HEADER}\n" + ",".join(f'"{cell}"' for cell in ROW.split(",")),
    ],
    ids=["bom", "crlf", "cr", "no end of line", "blank lines", "spaces", "quotes"],
)
def test_the_same_row_in_other_clothes(write, content):
    rows = read_measurements(write(content))
    assert len(rows) == 1
    assert rows.row(0) | {"line": 0} == read_measurements(write(f"{HEADER}\n{ROW}\n", "plain.csv")).row(0) | {"line": 0}


def test_optional_columns_in_any_order(write):
    rows = read_measurements(write(f"launch,{HEADER},source,gated\neager,{ROW},sglang 0.5.14,false\n,{ROW},,\n"))
    assert [rows.row(i)["gated"] for i in range(2)] == [False, True]
    assert [rows.row(i)["launch"] for i in range(2)] == ["eager", None]
    assert [rows.row(i)["source"] for i in range(2)] == ["sglang 0.5.14", None]


def test_columns_named_in_also_are_left_alone(write):
    rows = read_measurements(write(f"# title: T\n# source: S\n# note: one\n# note: two\n# also: mood, weather\n{HEADER},mood\n{ROW},nan\n"))
    assert (rows.about.title, rows.about.source, rows.about.notes) == ("T", "S", ("one", "two"))
    assert "mood" not in rows.row(0)
    assert rows.row(0)["line"] == 7


def test_a_missing_file_and_a_folder(tmp_path):
    refuse(tmp_path / "nowhere.csv", "No such file")
    refuse(tmp_path, "Is a directory")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["holds no header", "gpu,kernel"]),
        (b"\n\n", ["holds no header"]),
        (HEADER + "\n", ["holds no rows"]),
        (HEADER.replace(",ep", "") + "\n", [":1", "columns are missing: ep"]),
        (HEADER + ",ep\n" + ROW + ",1", [":1: ep", "twice"]),
        (HEADER + ",gatd\n" + ROW + ",1", ["no such column: 'gatd'", "Did you mean gated?", "# also: gatd"]),
        (HEADER.replace(",", ";") + "\n", ["not separated by commas"]),
        (HEADER.replace(",", "\t") + "\n", ["not separated by commas"]),
        (f"{HEADER}\n{ROW},9\n", [":2", "13 cells where the header has 12"]),
        (f"{HEADER}\n{ROW}\nh200,marlin\n", [":3", "2 cells"]),
        (f"{HEADER}\n{ROW}\n".encode("utf-16"), [":1", "UTF-8"]),
        (f"{HEADER}\n{ROW}\n".encode() + row(kernel="caf\xe9").encode("latin-1"), [":3", "UTF-8"]),
        (f'{HEADER}\n"{ROW}\n', ["broken CSV"]),
        (f"{HEADER}\n" + "9" * 70_000, [":2", "longer than"]),
        (b"\x00" * 100_000, ["longer than"]),
    ],
)
def test_a_broken_file_is_refused(write, content, words):
    refuse(write(content), *words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_tokens": -3}, ["num_tokens", "'-3'", "whole number"]),
        ({"num_tokens": 0}, ["num_tokens", "'0'"]),
        ({"hidden": "7168.0"}, ["hidden", "'7168.0'"]),
        ({"hidden": "many"}, ["hidden", "'many'"]),
        ({"inter": "1e3"}, ["inter"]),
        ({"inter": "1_000"}, ["inter"]),
        ({"inter": "²"}, ["inter"]),
        ({"inter": 10**10}, ["inter"]),
        ({"ep": ""}, ["ep", "is empty"]),
        ({"latency_us": "nan"}, ["latency_us", "'nan'", "positive number"]),
        ({"latency_us": "inf"}, ["latency_us"]),
        ({"latency_us": "1e999"}, ["latency_us"]),
        ({"latency_us": "-1"}, ["latency_us"]),
        ({"latency_us": "0"}, ["latency_us"]),
        ({"latency_us": "xyz"}, ["latency_us", "'xyz'"]),
        ({"latency_us": "1_0"}, ["latency_us"]),
        ({"gpu": "h20O"}, ["gpu", "'h20O'", "Did you mean"]),
        ({"format": "nvpf4"}, ["format", "'nvpf4'", "Did you mean nvfp4"]),
        ({"routing": "ballanced"}, ["routing", "Did you mean balanced?"]),
        ({"routing": "powerlaw:x"}, ["routing", "powerlaw"]),
        ({"kernel": ""}, ["kernel", "is empty"]),
        ({"kernel": "k" * 300}, ["kernel", "200 characters"]),
    ],
)
def test_a_wrong_cell_is_named_with_its_line(write, changes, words):
    refuse(write(f"# a remark\n{HEADER}\n{ROW}\n\n{row(**changes)}\n{row(latency_us='also wrong')}\n"), ":5", *words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"topk": 300}, ["topk", "300", "over the number of experts"]), ({"ep": 7}, ["ep", "7", "does not divide"])],
)
def test_sizes_that_contradict_each_other(write, changes, words):
    refuse(write(f"{HEADER}\n{ROW}\n\n{row(**changes)}\n"), ":4", *words)


def test_the_first_mistake_is_named_in_whatever_column(write):
    refuse(write(f"{HEADER}\n{row(latency_us='x')}\n{row(gpu='y')}\n"), ":2: latency_us", "'x'")


@pytest.mark.parametrize(("column", "cell"), [("gated", "yes"), ("gated", "True"), ("launch", "eagre")])
def test_wrong_options(write, column, cell):
    refuse(write(f"{HEADER},{column}\n{ROW},{cell}\n"), f":2: {column}", repr(cell))


def test_chunks_make_no_difference(write, monkeypatch):
    text = HEADER + "\n" + "\n".join(row(num_tokens=n + 1, latency_us=n + 0.5) for n in range(25)) + "\n"
    path = write(text)
    whole = read_measurements(path)
    monkeypatch.setattr(reader, "CHUNK", 4)
    parts = read_measurements(path)
    assert [whole.row(i) for i in range(25)] == [parts.row(i) for i in range(25)]
    assert whole.lines.tolist() == list(range(2, 27))
    refuse(write(text + row(num_tokens=-1)), ":27", "num_tokens")


def test_a_large_file_is_not_held_as_text(write, monkeypatch):
    import tracemalloc

    monkeypatch.setattr(reader, "CHUNK", 1000)
    path = write(HEADER + "\n" + (ROW + "\n") * 50_000)
    tracemalloc.start()
    rows = read_measurements(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(rows) == 50_000
    # 16 columns of 8 bytes, twice while they are copied, are 13 MB; 600,000 texts of 50 bytes would be 30 MB more
    assert peak < 20e6, peak


cells = st.one_of(st.text(max_size=12), st.sampled_from(ROW.split(",")), st.integers().map(str), st.floats().map(str))


def read_or_refused(path):
    """The number of rows, or the message."""
    try:
        return len(read_measurements(path))
    except PerfModelError as error:
        return str(error)


def is_honest(path, outcome):
    return outcome > 0 if isinstance(outcome, int) else str(path) in outcome


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.lists(cells, min_size=11, max_size=13), max_size=4), head=st.sampled_from([HEADER, HEADER + ",source", "gpu", ""]))
def test_any_cells_are_read_or_refused(tmp_path_factory, rows, head):
    path = tmp_path_factory.mktemp("fuzz") / "x.csv"
    path.write_bytes("\n".join([head, *(",".join(cells) for cells in rows)]).encode("utf-8", "surrogatepass"))
    assert is_honest(path, read_or_refused(path))


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "x.csv"
    path.write_bytes(f"{HEADER}\n{ROW}\n".encode() + content)
    assert is_honest(path, read_or_refused(path))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 10**9), st.floats(1e-6, 1e12)), min_size=1, max_size=20))
def test_numbers_survive_the_reading(tmp_path_factory, numbers):
    path = tmp_path_factory.mktemp("round") / "x.csv"
    path.write_text("\n".join([HEADER, *(row(num_tokens=n, latency_us=repr(t)) for n, t in numbers)]))
    rows = read_measurements(path)
    assert rows.sizes["num_tokens"].tolist() == [n for n, _ in numbers]
    assert rows.latency.tolist() == pytest.approx([t * 1e-6 for _, t in numbers], rel=1e-15)
