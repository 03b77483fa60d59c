"""`perfmodel diagnose` as a command, and files that are no report: each is told with its line and its mend, without a traceback."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from perfmodel.cli import main
from perfmodel.diagnose import read
from perfmodel.diagnose.ncu import parse_ncu
from perfmodel.diagnose.result import diagnose
from perfmodel.errors import PerfModelError

DATA = Path(__file__).parent / "data" / "diagnose"
RAW, DETAILS, METRICS, SUM, TRACE = (
    (DATA / f"h200_{name}.csv").read_text()
    for name in ("ncu_raw", "ncu_details", "ncu_metrics", "nsys_cuda_gpu_kern_sum", "nsys_cuda_gpu_trace")
)
LINES = RAW.splitlines(keepends=True)
NO_UNITS = LINES[0] + "".join(LINES[2:])
CUT = RAW[: RAW.index('"17","775"') + 300]
TINY = '"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n"0","k","{}"\n'
BAD = {
    "empty": ("", None, "is empty", "--csv --page raw"),
    "other": ("name,value\na,1\n", None, "printed no table", "--csv --page raw"),
    "text": ("  Section: GPU Speed Of Light Throughput\n    Duration  us  1.0\n", None, "details page as text", "--csv"),
    "session": ('Launch Settings\n"Launch Attribute","Value"\n', None, "session page", "--page raw"),
    "source": ('"#","Address","Source"\n"1","0x0","MOV"\n', None, "source page", "--page raw"),
    "no kernel": ("==PROF== Connected\n==WARNING== No kernels were profiled.\n", None, "no kernel was profiled", "filters"),
    "no rights": ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n", None, "may not read", "root"),
    "no units": (NO_UNITS, 2, "row of units is missing", "--page raw"),
    "no rows": ("".join(LINES[:2]), None, "holds no kernel", "filter"),
    "cut": (CUT, 20, "line is cut", "to the end"),
    "cut details": (DETAILS[: DETAILS.index("Elapsed Cycles") + 8], 4, "line is cut", "to the end"),
    "commas": (TINY.format("1234,5"), 3, "decimal commas", "LC_ALL=C"),
    "German thousands": (TINY.format("1.234.567"), 3, "decimal commas", "LC_ALL=C"),
    "semicolons": (RAW.replace('","', '";"'), 1, "semicolons", "spreadsheets"),
    "no time": ('"ID","Kernel Name","launch__grid_size"\n"","",""\n"0","k","132"\n', 3, "has no time", "--set full"),
    "n/a": (TINY.format("n/a"), 3, "has no time", "--set full"),
    "unit": (TINY.replace('"ns"', '"fortnight"').format("1"), 3, "unit that is not known", "--print-units base"),
    "api summary": (SUM.replace("Instances", "Num Calls"), 2, "another summary", "cuda_gpu_kern_sum"),
    "cut summary": (SUM[: SUM.index("gatherTopK")], 4, "line is cut", "kern_sum"),
    "words": (SUM.replace("309088", "many"), 2, "no number", "LC_ALL=C"),
    "negative": (TRACE.replace(",7456,", ",-7456,"), 2, "no number from 0", "LC_ALL=C"),
    "less than nothing": (TINY.format("-1000"), 3, "impossible", "--page raw"),
    "beyond all counters": (TINY.format("9" * 45), 3, "impossible", "--page raw"),
    "twice": (TINY.replace('"gpu__', '"gpu__time_duration.sum","gpu__').replace('"ns"', '"ns","ns"').format('1","2'), None, "twice", "raw"),
    "two reports": (RAW + RAW, len(LINES) + 1, "second report begins", "one report at a time"),
    "two reports of details": (DETAILS + DETAILS, len(DETAILS.splitlines()) + 1, "second report begins", "one report at a time"),
    "endless time": (SUM.replace("309088", "9e305"), 2, "no number", "LC_ALL=C"),
    "no trace": (TRACE.splitlines()[0] + "\n", None, "holds no kernel", "-t cuda"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(name, tmp_path):
    text, line, problem, mend = BAD[name]
    path = tmp_path / "report.csv"
    path.write_text(text)
    with pytest.raises(PerfModelError, match=problem) as caught:
        diagnose(path)
    assert caught.value.line == line
    assert caught.value.file == path
    assert mend in str(caught.value)


@pytest.mark.parametrize(
    ("name", "start", "mend"),
    [
        ("a.ncu-rep", b"anything", "ncu -i a.ncu-rep --csv --page raw"),
        ("a.csv", b"NVR\x00\x01", "ncu -i a.csv --csv --page raw"),
        ("a.nsys-rep", b"NVIDIA T", "nsys stats --report cuda_gpu_kern_sum"),
        ("a.csv", b"SQLite format 3\x00", "nsys stats"),
        ("a.qdstrm", b"U3w[END]", "QdstrmImporter"),
        ("a.csv", b'\xff\xfe"\x00I\x00', "--log-file"),
        ("a.csv", b'"\x00I\x00D\x00"\x00', "--log-file"),
        ("a.csv", b"\x80\x81\x82", "UTF-8"),
    ],
)
def test_binary_files(name, start, mend, tmp_path):
    path = tmp_path / name
    path.write_bytes(start)
    with pytest.raises(PerfModelError) as caught:
        diagnose(path)
    assert mend in str(caught.value)


def test_what_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(PerfModelError, match="cannot read"):
        diagnose(tmp_path / "none.csv")
    with pytest.raises(PerfModelError, match="is a folder"):
        diagnose(tmp_path)
    path = tmp_path / "large.csv"
    path.write_text(RAW)
    monkeypatch.setattr(read, "MOST_BYTES", 1000)
    with pytest.raises(PerfModelError, match="larger than") as caught:
        diagnose(path)
    assert "--launch-count" in str(caught.value)


def test_a_pipe_of_the_shell_is_read_whole_and_a_named_one_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PerfModelError, match="is a pipe"):
        diagnose(tmp_path / "pipe")
    read, write = os.pipe()
    os.write(write, TINY.format("100000").encode())
    os.close(write)
    assert diagnose(f"/dev/fd/{read}")["total_us"] == pytest.approx(100.0)
    os.close(read)


DEVICES = '"ID","Kernel Name","device__attribute_display_name","gpu__time_duration.sum"\n"","","","ns"\n'


def test_launches_of_several_gpus_are_said_to_be_mixed(tmp_path):
    (tmp_path / "a.csv").write_text(DEVICES + '"0","k","NVIDIA H200","100000"\n"1","k","NVIDIA L40S","100000"\n')
    assert "the launches are of NVIDIA H200 and NVIDIA L40S" in " ".join(diagnose(tmp_path / "a.csv")["notes"])


def test_a_slice_of_a_gpu_is_not_held_against_the_whole(tmp_path):
    (tmp_path / "a.csv").write_text(DEVICES + '"0","k","NVIDIA H100 80GB HBM3 MIG 1g.10gb","100000"\n')
    result = diagnose(tmp_path / "a.csv")
    assert result["gpu"] is None
    assert "MIG 1g.10gb is not in the catalogue" in result["notes"][0]
    assert diagnose(tmp_path / "a.csv", gpu="h100")["gpu"] == "h100"


@pytest.mark.parametrize("text", [RAW, DETAILS, METRICS, SUM, TRACE], ids=["raw", "details", "metrics", "sum", "trace"])
def test_wherever_a_file_is_cut_it_is_read_or_refused(text, tmp_path):
    path = tmp_path / "report.csv"
    refused = 0
    for part in range(25):
        path.write_text(text[: len(text) * part // 25 + part])
        with suppress(PerfModelError):
            json.dumps(diagnose(path), allow_nan=False)
            refused -= 1
        refused += 1
    assert refused > 5


def test_units_in_either_form_and_lines_of_others():
    base = TINY.format("1,368,032")
    automatic = TINY.replace('"ns"', '"ms"').format("1.368032")
    old = TINY.replace('"ns"', '"nsecond"').format("1368032")
    around = "==PROF== Connected\nmy program\n" + base + "==PROF== Disconnected\nbye\n"
    times = [parse_ncu(text)[0].metrics["gpu__time_duration.sum"] for text in (base, automatic, old, around)]
    assert times == pytest.approx([1368032.0] * 4)
    rates = TINY.replace("gpu__time_duration.sum", "sm__cycles_elapsed.avg.per_second")
    for unit, value in (("hz", "1,980,000,000"), ("Ghz", "1.98"), ("cycle/nsecond", "1.98"), ("cycle/us", "1980")):
        assert parse_ncu(rates.replace('"ns"', f'"{unit}"').format(value))[0].metrics.popitem()[1] == pytest.approx(1.98e9)


def run(capsys, *words):
    """Exit code, stdout and stderr of the command."""
    try:
        main(["diagnose", *map(str, words)])
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    return code, *capsys.readouterr()


def test_json(capsys):
    code, out, _ = run(capsys, DATA / "h200_ncu_raw.csv", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["schema"] == "perfmodel.diagnose/1"
    assert len(result["kernels"]) == 24


def test_tables(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    code, out, _ = run(
        capsys, DATA / "h200_ncu_raw.csv", "--top", 6, "--model", "layer:hidden=7168,inter=2048,experts=16,topk=1", "--tokens", 1024
    )
    assert code == 0
    for words in ("grouped gemm", "memory (DRAM 92 %)", "atomics stand in line", "and 18 more", "predicted", "saves up to"):
        assert words in out
    code, out, _ = run(capsys, DATA / "h200_nsys_cuda_gpu_trace.csv")
    assert code == 0
    assert "launch gaps: nothing runs in 86 % of the time" in out
    code, out, _ = run(capsys, "--thresholds")
    assert code == 0
    assert "memory-throttle stalls" in out


def test_the_documented_examples_are_what_is_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "124")
    (tmp_path / "report.csv").write_text("".join([*LINES[:2], *(line for line in LINES if line.startswith('"16"'))]))
    (tmp_path / "trace.csv").write_text(TRACE)
    page = (Path(__file__).parents[1] / "docs" / "diagnose.md").read_text().replace("\\\n", " ")
    examples = re.findall(r"^\$ perfmodel diagnose (.+)\n((?:.+\n)+?)```", page, re.MULTILINE)
    assert len(examples) == 2
    for words, shown in examples:
        code, out, _ = run(capsys, *words.split())
        assert code == 0
        assert [line.rstrip() for line in out.splitlines()] == shown.splitlines()


def test_plot(tmp_path, capsys):
    picture = tmp_path / "use.svg"
    assert run(capsys, DATA / "h200_ncu_raw.csv", "--plot", picture)[0] == 0
    assert "<svg" in picture.read_text()[:1000]
    code, _, err = run(capsys, DATA / "h200_nsys_cuda_gpu_trace.csv", "--plot", picture)
    assert code == 2
    assert "no kernel has counters" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no report given"),
        (["x.csv", "--tokens", "64"], "--tokens: goes with --model"),
        (["x.csv", "--ep", "2"], "--ep: goes with --model"),
        (["x.csv", "--model", "gpt-oss-20b"], "--tokens: is missing"),
        (["x.csv", "--plot", "a.txt"], "a.txt"),
        ([DATA / "h200_ncu_raw.csv", "--gpu", "h2000"], "h200"),
        ([DATA / "h200_ncu_details.csv", "--model", "gpt-oss-20b", "--tokens", "64"], "--gpu: a prediction needs the GPU"),
        ([DATA / "h200_ncu_raw.csv", "--model", "gpt-oss-20b", "--tokens", "64", "--ops", "left"], "--ops: is no grouped GEMM"),
    ],
)
def test_bad_words(words, said, capsys):
    code, _, err = run(capsys, *words)
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_no_traceback_from_the_command(tmp_path):
    (tmp_path / "cut.csv").write_text(CUT)
    done = subprocess.run(
        [sys.executable, "-m", "perfmodel", "diagnose", str(tmp_path / "cut.csv")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"perfmodel: {tmp_path}/cut.csv:20: the line is cut")
