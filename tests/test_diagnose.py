"""Diagnoses of real reports of an H200, held against what is known of each kernel."""

import csv
from pathlib import Path

import pytest

from perfmodel.diagnose.bounds import bound_of
from perfmodel.diagnose.counters import counters, dram_bytes, stalls, wanted
from perfmodel.diagnose.expected import Asked, expect
from perfmodel.diagnose.facts import Expected, Facts
from perfmodel.diagnose.findings import findings
from perfmodel.diagnose.ncu import parse_ncu
from perfmodel.diagnose.result import diagnose
from perfmodel.diagnose.thresholds import threshold, thresholds
from perfmodel.errors import PerfModelError
from perfmodel.hardware import load_gpu

DATA = Path(__file__).parent / "data" / "diagnose"
RAW, DETAILS, METRICS = (DATA / f"h200_ncu_{page}.csv" for page in ("raw", "details", "metrics"))
KNOWN = (
    ("dense_gemm", "compute", "tensor pipe"), ("dense_gemm", "memory", "DRAM"), ("dense_gemm", "latency", "SM pipes"),
    ("dense_gemm", "compute", "tensor pipe"), ("elementwise", "memory", "DRAM"), ("elementwise", "latency", "DRAM"),
    ("copy", "memory", "L2"), ("elementwise", "memory", "DRAM"), ("gather_scatter", "memory", "L2"),
    ("attention", "latency", "tensor pipe"), ("norm", "memory", "L2"), ("routing", "compute", "SM pipes"),
    ("routing", "latency", "L1 and shared memory"), ("elementwise", "memory", "DRAM"), ("gather_scatter", "latency", "DRAM"),
    ("grouped_gemm", "memory", "DRAM"), ("grouped_gemm", "compute", "tensor pipe"), ("grouped_gemm", "compute", "tensor pipe"),
    ("quantise", "latency", "DRAM"), ("grouped_gemm", "memory", "DRAM"), ("quantise", "latency", "L2"),
    ("grouped_gemm", "memory", "DRAM"), ("quantise", "memory", "DRAM"), ("grouped_gemm", "compute", "tensor pipe"),
)  # fmt: skip
"""Kind, bound and busiest unit of each launch of RAW; PROVENANCE.md says what each is."""
MATMUL, SPLIT, TINY, TRANSPOSE, STRIDE, SORT, SCATTER, DECODE = 0, 2, 5, 6, 7, 12, 14, 15


@pytest.fixture(scope="module")
def raw():
    return diagnose(RAW)


@pytest.fixture(scope="module")
def read():
    return [counters(launch) for launch in parse_ncu(RAW.read_text(), only=wanted())]


def causes(row):
    return [one["cause"] for one in row["findings"]]


class TestNsightCompute:
    def test_every_launch_is_what_it_is_known_to_be(self, raw):
        assert tuple((row["kind"], row["bound"], row["unit"]) for row in raw["kernels"]) == KNOWN
        assert raw["device"] == "NVIDIA H200"
        assert raw["gpu"] == "h200"

    def test_numbers_are_those_of_the_report(self, read):
        matmul = read[MATMUL]
        assert matmul["duration"] == pytest.approx(1.368032e-3)
        assert dram_bytes(matmul) == pytest.approx(1.250313e9 + 130.781184e6)
        assert matmul["sm_clock"] == pytest.approx(1.615675e9)
        # 2 x 8192^3 FLOP over 132 SMs of 4096 FLOP a cycle: 92 % of the cycles, which the tensor pipe is busy
        ideal = 2 * 8192**3 / (132 * 4096 * matmul["sm_clock"])
        assert matmul["tensor"] == pytest.approx(ideal / matmul["duration"], rel=0.02)

    def test_bytes_of_the_decode_gemm_are_its_weights(self, read):
        weights = 16 * 4096 * 7168 * 4.25 / 8
        assert read[DECODE]["dram_read"] == pytest.approx(weights, rel=0.01)

    @pytest.mark.parametrize(
        ("launch", "cause"),
        [
            (MATMUL, "low clock"), (MATMUL, "tensor pipe near its peak"), (1, "DRAM bandwidth not reached"), (2, "shorter than its launch"),
            (4, "DRAM bandwidth not reached"), (TINY, "too few CTAs"), (TINY, "shorter than its launch"),
            (TRANSPOSE, "uncoalesced accesses"),
            (STRIDE, "uncoalesced accesses"), (STRIDE, "DRAM near its peak"), (8, "uncoalesced accesses"), (9, "low occupancy"),
            (11, "registers spilled"), (SORT, "bank conflicts in shared memory"), (SORT, "threads diverge"),
            (SCATTER, "atomics stand in line"),
            (SCATTER, "warps wait for memory"), (DECODE, "DRAM near its peak"), (20, "SMs idle at the start or the end"),
        ],
    )  # fmt: skip
    def test_causes(self, raw, launch, cause):
        assert cause in causes(raw["kernels"][launch])

    def test_good_kernels_are_left_alone(self, raw):
        for launch in (MATMUL, DECODE, 17, 23):
            wrong = {"low occupancy", "uncoalesced accesses", "atomics stand in line", "too few CTAs", "tensor pipe idle"}
            assert not wrong & set(causes(raw["kernels"][launch])), launch

    def test_no_cure_saves_more_than_there_is(self, raw):
        for row in raw["kernels"]:
            for one in row["findings"]:
                assert one["saves_us"] is None or 0 <= one["saves_us"] <= row["us"]
                assert one["saves_us"] is None or one["after_us"] == pytest.approx(row["us"] - one["saves_us"])

    def test_what_the_dram_ceiling_leaves(self, raw):
        (found,) = (one for one in raw["kernels"][DECODE]["findings"] if one["cause"] == "DRAM near its peak")
        assert found["after_us"] == pytest.approx(raw["kernels"][DECODE]["dram_bytes"] / (4800e9 * 0.935) * 1e6)

    def test_the_details_page_says_the_same(self, raw):
        details = diagnose(DETAILS, gpu="h200")
        assert [row["id"] for row in details["kernels"]] == ["0", "5"]
        for row, same in zip(details["kernels"], (raw["kernels"][MATMUL], raw["kernels"][TINY]), strict=True):
            assert row["bound"] == same["bound"]
            assert row["us"] == pytest.approx(same["us"], rel=5e-3)
            assert row["dram_bytes"] == pytest.approx(same["dram_bytes"], rel=0.05)
            assert row["use"]["SM pipes"] == pytest.approx(same["use"]["SM pipes"], abs=1e-4)

    def test_a_few_metrics_are_enough_where_the_gpu_is_known(self):
        without, known = diagnose(METRICS), diagnose(METRICS, gpu="h200")
        assert {row["bound"] for row in without["kernels"]} == {"unknown"}
        assert any("--set full" in line for line in without["notes"])
        assert known["kernels"][0]["bound"] == "compute"
        assert known["kernels"][0]["use"]["DRAM"] == pytest.approx((1250049792 + 130356224) / 1360.288e-6 / 4800e9)

    def test_one_section_is_enough_for_a_bound(self, raw):
        copy, tiny = diagnose(DATA / "h200_ncu_basic.csv")["kernels"]
        assert (copy["bound"], copy["unit"], tiny["bound"]) == ("memory", "DRAM", "latency")
        assert copy["us"] == pytest.approx(raw["kernels"][4]["us"], rel=0.01)
        assert tiny["use"]["L1 and shared memory"] < 0.01  # of all cycles: an SM is active in few of them

    def test_a_details_page_does_not_say_which_pipe(self):
        found = {one["cause"]: one["evidence"] for one in diagnose(DETAILS, gpu="h200")["kernels"][0]["findings"]}
        assert "likely the tensor pipe" in found["SM pipes busy"]
        assert found["low clock"] == "1,620 MHz where the peak assumes 1,830"

    def test_another_gpu_than_the_report_names_is_said(self):
        assert any("NVIDIA H200" in line for line in diagnose(RAW, gpu="b200")["notes"])

    def test_a_clock_that_ncu_holds_is_said(self, tmp_path):
        lines = RAW.read_text().splitlines()
        place = lines[0].split(",").index('"sm__cycles_elapsed.avg.per_second"')
        rows = list(csv.reader(lines))
        for row in rows[2:]:
            row[place] = "1.590000"
        held = tmp_path / "held.csv"
        with held.open("w") as stream:
            csv.writer(stream, quoting=csv.QUOTE_ALL).writerows(rows)
        assert any("--clock-control none" in line for line in diagnose(held)["notes"])
        assert not any("--clock-control none" in line for line in diagnose(RAW)["notes"])


class TestScenario:
    LAYER = "layer:hidden=7168,inter=2048,experts=16,topk=1"

    @pytest.fixture
    def one(self, tmp_path):
        """A report of the W4A16 GEMM at 64 tokens an expert alone."""
        lines = RAW.read_text().splitlines()
        path = tmp_path / "one.csv"
        path.write_text("\n".join([*lines[:2], next(line for line in lines if line.startswith('"16"'))]) + "\n")
        return path

    def asked(self, **other):
        options = {"format": "mxfp4-w4a16", "kernel": "numba-wgmma", "routing": "balanced", "ops": ("gate_up",)}
        return Asked(self.LAYER, other.pop("tokens", 1024), **(options | other))

    def test_prediction_beside_measurement(self, one):
        (row,) = diagnose(one, asked=self.asked())["kernels"]
        assert row["op"] == "gate_up"
        assert row["predicted_us"] == pytest.approx(row["us"], rel=0.1)
        weights, tokens, out = 16 * 4096 * 7168 * 4.25 / 8, 1024 * 7168 * 2, 1024 * 4096 * 2
        assert row["predicted_dram_bytes"] == pytest.approx(weights + tokens + out)
        assert row["dram_bytes"] == pytest.approx(row["predicted_dram_bytes"], rel=0.03)
        assert "slower than the model expects" not in causes(row)

    def test_fewer_tokens_expect_less(self, one):
        (row,) = diagnose(one, asked=self.asked(tokens=16, kernel="numba-decode"))["kernels"]
        assert "slower than the model expects" in causes(row)

    def test_both_gemms_take_turns(self):
        result = diagnose(RAW, asked=self.asked(ops=("gate_up", "down")))
        assert [row["op"] for row in result["kernels"] if row["kind"] == "grouped_gemm"] == ["gate_up", "down"] * 3
        gemms = result["kinds"][0]
        layer = expect(self.asked(ops=("gate_up", "down")), load_gpu("h200"))
        assert gemms["predicted_us"] == pytest.approx(3 * sum(op.seconds for op in layer.gemms) * 1e6)

    def test_no_whole_number_of_layers_is_said(self, one):
        assert any("--ops" in line for line in diagnose(one, asked=self.asked(ops=("gate_up", "down")))["notes"])

    def test_what_does_not_fit(self, one):
        for wrong, field in (({"ops": ("up_gate",)}, "--ops"), ({"tokens": 0}, "tokens"), ({"format": "nvfp4"}, "FORMAT")):
            with pytest.raises(PerfModelError) as caught:
                diagnose(one, asked=self.asked(**({"kernel": "auto"} | wrong)))
            assert caught.value.field == field


class TestThresholds:
    def test_each_has_a_source_and_each_correction_a_reason(self):
        for name, one in thresholds().items():
            assert one.source, name
            assert (one.verdict is None) == (one.background is None), name
            assert one.verdict in (None, "kept") or one.why, name

    def test_throttle_stalls_say_nothing_of_bandwidth(self, read):
        """The background text takes 15 % of them for a bound of bandwidth: over it at 9 % of DRAM, none at 92 %."""

        def throttled(c):
            return sum(share for reason, share in stalls(c).items() if reason.endswith("throttle") and reason != "math_throttle")

        assert throttled(read[SPLIT]) > 0.15
        assert read[SPLIT]["dram"] < 0.10
        assert read[STRIDE]["dram"] > 0.90
        assert throttled(read[STRIDE]) < 0.001

    def test_sm_throughput_says_nothing_of_scheduling(self, read):
        assert read[STRIDE]["compute"] < 0.70
        assert read[STRIDE]["sm_active"] > 0.98 * read[STRIDE]["sm_elapsed"]

    def test_recorded_kernels_lie_on_the_sides_that_the_sources_name(self, read):
        """The figures of `thresholds.yaml`, from the report that it cites."""
        bound = [bound_of(c) for c in read]
        tensor = [c for c, b in zip(read, bound, strict=True) if b.kind == "compute" and b.unit == "tensor"]
        assert max(max(stalls(c).values()) for c in tensor) == pytest.approx(0.33, abs=5e-3)
        assert max(c["tensor"] for c in read) == pytest.approx(0.934, abs=5e-4)
        assert max(c["l2"] for c in read) == pytest.approx(0.966, abs=5e-4)
        assert read[MATMUL]["sm_clock"] / load_gpu("h200").tensor_peak_clock == pytest.approx(0.88, abs=5e-3)
        needed = {at: round(c["sectors_ideal"] / c["sectors"], 2) for at, c in enumerate(read) if c.get("sectors")}
        assert {at: share for at, share in needed.items() if share < 0.99} == {TRANSPOSE: 0.22, STRIDE: 0.22, 8: 0.36, 10: 0.45}
        atomic = {at: round((c["reductions"] + c["atomics"]) / c["sectors"], 2) for at, c in enumerate(read) if c.get("sectors")}
        assert {at: share for at, share in atomic.items() if share > 0.01} == {MATMUL: 1.0, 9: 1.0, SCATTER: 0.54}
        active = [(c["duration"], c["sm_active"] / c["sm_elapsed"]) for c in read]
        assert min(share for time, share in active if time > 50e-6) == pytest.approx(0.86, abs=5e-3)
        assert max(share for time, share in active if time < 10e-6) == pytest.approx(0.73, abs=5e-3)
        assert [at for at, c in enumerate(read) if c["threads"] < threshold("threads")] == [SORT]

    def test_occupancy_alone_says_nothing(self, read):
        assert read[MATMUL]["occupancy"] < 0.15
        assert read[MATMUL]["tensor"] > 0.9


class TestLaws:
    H200 = load_gpu("h200")

    def facts(self, expected=None, kind="elementwise", **c):
        c = {"duration": 1e-4, "compute": 0.2} | c
        return Facts(kind, c, bound_of(c), self.H200, expected)

    def test_the_busier_dram_is_the_less_there_is_to_save(self):
        saves = []
        for use in (0.62, 0.7, 0.79, 0.81, 0.9, 1.0):
            moved = use * 4800e9 * 1e-4
            (found,) = findings(self.facts(dram=use, dram_read=moved, dram_write=0.0))
            saves.append(found.saves)
        assert saves == sorted(saves, reverse=True)
        assert saves[-1] == 0.0
        assert saves[0] == pytest.approx(1e-4 * (1 - 0.62 / 0.935))

    def test_under_sixty_percent_latency_bounds(self):
        assert bound_of({"dram": 0.59, "compute": 0.59}).kind == "latency"
        assert bound_of({"dram": 0.61, "compute": 0.59}).kind == "memory"
        assert bound_of({"dram": 0.59, "compute": 0.61}).kind == "compute"
        assert bound_of({"compute": 0.9}).kind == "unknown"

    def test_a_tail_wave_costs_what_is_missing_of_it(self):
        (found,) = findings(self.facts(dram=0.3, waves=2.5))
        assert (found.cause, found.saves) == ("tail wave", pytest.approx(1e-4 * (1 - 2.5 / 3)))
        assert not findings(self.facts(dram=0.3, waves=3.0))

    def test_bytes_moved_twice(self):
        twice = Expected("down", 1e-4, 1e8)
        found = findings(self.facts(twice, dram=0.7, dram_read=2e8, dram_write=0.0))
        (again,) = (one for one in found if one.cause == "bytes moved more than once")
        assert again.saves == pytest.approx(0.5e-4)

    def test_fewer_bytes_save_no_more_than_the_next_unit_allows(self):
        twice = Expected("down", 1e-4, 1e8)
        found = findings(self.facts(twice, dram=0.8, compute=0.6, tensor=0.6, dram_read=2e8, dram_write=0.0))
        (again,) = (one for one in found if one.cause == "bytes moved more than once")
        assert again.saves == pytest.approx(1e-4 * (1 - 0.6 / 0.8))

    def test_uncoalesced_accesses_save_no_more_than_the_next_unit_allows(self):
        for needed, saves in ((0.7, 0.3e-4), (0.5, 0.4e-4), (0.25, 0.4e-4)):
            found = findings(self.facts(dram=0.5, l2=0.5, compute=0.3, sectors=1000.0, sectors_ideal=1000 * needed))
            assert next(one.saves for one in found if one.cause == "uncoalesced accesses") == pytest.approx(saves)

    def test_a_tensor_pipe_counted_over_active_cycles_is_taken_over_all(self):
        c = {"dram": 0.1, "compute": 0.2, "tensor_active": 0.8, "sm_elapsed": 1000.0}
        assert bound_of(c | {"sm_active": 500.0}).use["tensor"] == pytest.approx(0.4)
        assert bound_of(c | {"sm_active": 500.0, "tensor": 0.3}).use["tensor"] == 0.3
        assert "tensor" not in bound_of(c).use  # how long SMs were active is not known

    def test_a_matrix_product_without_tensor_cores(self):
        assert "tensor pipe idle" in [one.cause for one in findings(self.facts(kind="dense_gemm", dram=0.3, compute=0.9, tensor=0.0))]
        assert "tensor pipe idle" not in [one.cause for one in findings(self.facts(dram=0.3, compute=0.9, tensor=0.0))]

    def test_a_lower_clock_costs_in_proportion(self):
        found = findings(self.facts(dram=0.3, compute=0.93, tensor=0.93, sm_clock=0.8 * self.H200.tensor_peak_clock))
        assert next(one.saves for one in found if one.cause == "low clock") == pytest.approx(2e-5)


def test_the_threshold_of_near_is_that_of_ncu():
    assert threshold("near_peak") == 0.8
    assert "greater than 80.0%" in DETAILS.read_text()
