"""Counters of Nsight Compute, read from a stand-in for it."""

import sys
from dataclasses import replace

import pytest
from runs_examples import ABOUT, POINTS, a_run

from perfmodel.errors import MissingRequirementError, PerfModelError
from perfmodel.report.runs import heard_line
from perfmodel.validation.runs import ncu
from perfmodel.validation.runs.counters import add_up, counted, parse_ncu

NCU = """==PROF== Connected to process 1
==PROF== Profiling "quantise": 0%....100% - 1 pass
"ID","Process ID","Process Name","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","1","python","quantise","Command line profiler metrics","dram__bytes_read.sum","byte","1,000"
"0","1","python","quantise","Command line profiler metrics","gpu__time_duration.sum","ns","100"
"0","1","python","quantise","Command line profiler metrics","sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active","%","0"
"1","1","python","gemm","Command line profiler metrics","dram__bytes_read.sum","Kbyte","249,820.160"
"1","1","python","gemm","Command line profiler metrics","dram__bytes_write.sum","byte","n/a"
"1","1","python","gemm","Command line profiler metrics","gpu__time_duration.sum","us","0.3"
"1","1","python","gemm","Command line profiler metrics","sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active","%","80"
"""


class TestCounters:
    def test_what_ncu_prints(self):
        first, second = parse_ncu(NCU)
        assert first["dram__bytes_read.sum"] == 1000
        assert second["dram__bytes_read.sum"] == pytest.approx(249_820_160)
        assert "dram__bytes_write.sum" not in second

    def test_the_kernels_of_a_call_as_one(self):
        whole = add_up(parse_ncu(NCU))
        assert whole["dram__bytes_read.sum"] == pytest.approx(249_821_160)
        assert whole["gpu__time_duration.sum"] == pytest.approx(400)
        assert whole["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"] == pytest.approx(60)  # 80 % of 300 of 400 ns
        assert counted(whole)["tensor_pct"] == pytest.approx(60)

    def test_a_counter_that_one_kernel_lacks_is_no_counter_of_the_call(self):
        tensor = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
        quantise, gemm = parse_ncu(NCU)
        assert "dram__bytes_write.sum" not in add_up([quantise | {"dram__bytes_write.sum": 7.0}, gemm])
        del gemm["gpu__time_duration.sum"]
        assert list(add_up([quantise, gemm])) == ["dram__bytes_read.sum"]  # without times nothing weighs the percentages
        assert add_up([gemm])[tensor] == 80
        assert add_up([]) == {}

    def test_a_kernel_without_any_counter_is_a_kernel(self):
        nothing = '"2","1","python","gather","Command line profiler metrics","dram__bytes_read.sum","byte","n/a"\n'
        assert parse_ncu(NCU + nothing)[2] == {}
        assert add_up(parse_ncu(NCU + nothing)) == {}

    @pytest.mark.parametrize(
        ("text", "problem"), [("==ERROR== no kernels", "printed no table"), (NCU.replace('"ns"', '"fortnight"'), "a unit")]
    )
    def test_other_output(self, text, problem):
        with pytest.raises(PerfModelError, match=problem):
            parse_ncu(text)

    def test_it_runs_itself_under_ncu(self, tmp_path, monkeypatch):
        fake = tmp_path / "ncu"
        fake.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write('kernel: numba-x ' + sys.argv[-1] + '\\n')\nprint({NCU!r})\n")
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        runner = ncu.CounterRunner(ABOUT, ncu.find_ncu(), "quick")
        found = runner.measure(POINTS[0], ())
        assert found["kernel"] == f"numba-x {POINTS[0].name}"
        assert found["dram_read_bytes"] == pytest.approx(249_821_160)

    def test_where_counters_cannot_be_read(self, monkeypatch):
        monkeypatch.setenv("PATH", "")
        with pytest.raises(MissingRequirementError, match="Nsight Compute"):
            ncu.find_ncu()
        with pytest.raises(MissingRequirementError, match="may not read"):
            ncu.read_output(POINTS[0], "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "")
        with pytest.raises(PerfModelError, match="did not run the point"):
            ncu.read_output(POINTS[0], "", "perfmodel: no")
        empty = "\n".join(line for line in NCU.splitlines() if line.endswith(('"n/a"', 'Value"')))
        with pytest.raises(PerfModelError, match="no counter of every kernel"):
            ncu.read_output(POINTS[0], empty, "kernel: numba-x")

    def test_bytes_that_were_not_counted_are_said(self):
        counted_run = a_run(us=None, dram_read_bytes=3e6, dram_write_bytes=1e6)
        assert str(heard_line("gemm", "measured", counted_run, "")) == "gemm: 4.0 MB of DRAM"
        assert "not counted" in str(heard_line("gemm", "measured", a_run(us=None, dram_read_bytes=3e6), ""))

    def test_gemms_are_counted_once(self):
        held = replace(POINTS[0], hold_s=1.5)
        assert ncu.countable([POINTS[0], held, *POINTS[1:]]) == POINTS[:2]
