"""A user's own measurements: how they are read, what they pull and how far, in predict, plan, simulate and validation."""

import json
import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

import perfmodel
from perfmodel.cli import main
from perfmodel.errors import PerfModelError
from perfmodel.hardware import load_gpu
from perfmodel.planning.prices import load_prices
from perfmodel.serving.anchored import anchored_of, left_out
from perfmodel.serving.anchoring import Anchoring, Posterior, Prior, distances, in_words, load_of, load_priors
from perfmodel.serving.anchors import Anchor, as_anchors, read_anchors
from perfmodel.serving.deployment import serving_format
from perfmodel.serving.links import network_notes
from perfmodel.serving.parallel import Parallel
from perfmodel.validation.serving import anchored as scoring
from perfmodel.validation.serving.predict import Services
from perfmodel.validation.serving.rows import Service
from perfmodel.validation.serving.validate import ServingValidation
from perfmodel.workload import load_model

HEADER = "model,gpu,tp,isl,osl,concurrency,ttft_ms,tpot_ms\n"
FIELDS = {"model": "gpt-oss-20b", "gpu": "h100", "tp": 1, "isl": 1024, "osl": 256, "concurrency": 16}
PRIOR = Prior(pair=1.0, configuration=2.0, load=2.0, reach=3.0, noise=1.0)


def one(*residual, same=True, load=None):
    """Measurements at one load, or at several."""
    loads = load_of(np.full(len(residual), 8.0), 1024.0, 512.0) if load is None else load
    return Posterior(PRIOR, np.array(residual), loads, np.full((len(residual),) * 2, same))


class TestProcess:
    here = load_of(8.0, 1024.0, 512.0)

    def test_one_measurement_by_hand(self):
        pull = one(0.5).at(np.array([[True]]), self.here)
        assert pull.factor[0] == pytest.approx(math.exp(9 / 10 * 0.5))  # (1 + 4 + 4) of 10
        assert pull.shrink[0] == pytest.approx(math.sqrt((10 - 81 / 10) / 10))

    def test_another_configuration_shares_the_pair_alone(self):
        pull = one(0.5).at(np.array([[False]]), self.here)
        assert pull.factor[0] == pytest.approx(math.exp(1 / 10 * 0.5))
        assert pull.shrink[0] == pytest.approx(math.sqrt((10 - 1 / 10) / 10))

    def test_three_doublings_away(self):
        pull = one(0.5).at(np.array([[True]]), load_of(64.0, 1024.0, 512.0))
        assert pull.factor[0] == pytest.approx(math.exp((5 + 4 * math.exp(-1)) / 10 * 0.5))

    def test_what_a_load_does_not_know_is_no_distance(self):
        assert distances(load_of(8.0, np.nan, 2.0), load_of([8.0, 32.0], 5.0, 16.0)) == pytest.approx(np.array([[3.0, math.sqrt(13)]]))

    def test_two_alike_measurements_pull_further_and_leave_less(self):
        once, twice = (one(*[0.5] * n).at(np.full((1, n), True), self.here) for n in (1, 2))
        assert once.factor[0] < twice.factor[0] < math.exp(0.5)
        assert twice.shrink[0] < once.shrink[0]

    def test_a_figure_that_was_not_measured_is_left_alone(self):
        pull = one(np.nan).at(np.array([[True]]), self.here)
        assert (pull.factor[0], pull.shrink[0], *pull.interval(0.5, 2.0)) == (1.0, 1.0, 0.5, 2.0)

    def test_what_three_times_the_spread_does_not_hold_is_wild(self):
        assert one(0.5, 9.0, -10.0).wild.tolist() == [False, False, True]

    def test_a_wild_measurement_pulls_the_less_the_wilder_it_is(self):
        at = np.array([[True]]), self.here
        assert math.log(one(9.0).at(*at).factor[0]) == pytest.approx(9 / 10 * 9.0)
        assert math.log(one(20.0).at(*at).factor[0]) == pytest.approx(9 / (10 + 20**2 - 9 * 10) * 20.0)

    def test_the_bundled_priors_pull_most_of_the_way(self):
        for prior in load_priors().values():
            assert 0.7 < 1 - prior.noise**2 / prior.variance < 0.99
            assert prior.pair**2 < 0.5 * prior.variance

    def test_in_words(self):
        said = in_words(Anchoring(own=2, similar=1, ttft=0.9, tpot=1.123), ["tpot"])
        assert said == "anchored on 2 of your measurements and 1 of similar services, TPOT x 1.12"


class TestFiles:
    def test_a_csv_and_its_lines(self, tmp_path):
        file = tmp_path / "a.csv"
        file.write_text("# mine\n" + HEADER + "gpt-oss-20b, h100, 2, 1024, 256, 16, , 4.5\n\ngpt-oss-20b,h100,,8,8,1,20,\n")
        first, second = read_anchors(file)
        assert (first.tp, first.ttft_ms, first.tpot_ms, first.line) == (2, None, 4.5, 3)
        assert (second.tp, second.ttft_ms, second.tpot_ms, second.line, second.place) == (1, 20.0, None, 5, f"{file}:5")

    def test_yaml(self, tmp_path):
        file = tmp_path / "a.yaml"
        file.write_text("anchors:\n- {model: gpt-oss-20b, gpu: h100, isl: 8, osl: 8, concurrency: 1, tpot_ms: 5}\n")
        assert [(row.tpot_ms, row.line) for row in read_anchors(file)] == [(5.0, 2)]

    @pytest.mark.parametrize(
        ("text", "line", "field", "word"),
        [
            ("model,gpu,tp,isl,osl,concurency,tpot_ms\n", 1, "concurency", "Did you mean concurrency"),
            ("model,gpu,isl,osl,tpot_ms\n", 1, "concurrency", "missing"),
            ("model,model\n", 1, "model", "twice"),
            (HEADER, None, None, "no measurement"),
            (HEADER + "gpt-oss-20b,h100,1,1024,256,16\n", 2, None, "8 values"),
            (HEADER + "gpt-oss-20b,h100,two,1024,256,16,,5\n", 2, "tp", "two"),
            (HEADER + "gpt-oss-20b,h100,1,1024,256,16,,-5\n", 2, "tpot_ms", "-5"),
            (HEADER.replace(",", ";"), 1, None, "semicolons"),
            (HEADER + "gpt-oss-20b,h100,1,1024,256,16,,1e-300\n", 2, "tpot_ms", "1e-300"),
            (HEADER + "gpt-oss-20b,h100,1,1024,256,16,,nan\n", 2, "tpot_ms", "nan"),
            (HEADER + "gpt-oss-20b,h100,1,1024,256,16,,\n", 2, "tpot_ms", "nothing was measured"),
            (HEADER.replace("tp,", "mode,") + "a,h100,disaggregated,1,1,1,,5\n", 2, "prefill_tp", "disaggregated"),
            (HEADER.replace("tp,", "prefill_tp,") + "a,h100,1,1,1,1,,5\n", 2, "prefill_tp", "disaggregated"),
        ],
    )
    def test_what_is_wrong_is_named(self, tmp_path, text, line, field, word):
        file = tmp_path / "a.csv"
        file.write_text(text)
        with pytest.raises(PerfModelError) as error:
            read_anchors(file)
        assert (error.value.line, error.value.field) == (line, field)
        assert word in str(error.value)

    @pytest.mark.parametrize("given", [5, [5], "none.csv", [{"model": "x"}], [FIELDS]])
    def test_python_gets_an_error_of_ours(self, given):
        with pytest.raises(PerfModelError):
            as_anchors(given)

    @pytest.mark.parametrize(("change", "field"), [({"gpu": "h1000"}, None), ({"tp": 3}, "tp"), ({"format": "fp9"}, "FORMAT")])
    def test_what_only_the_model_knows_is_told_with_the_line(self, tmp_path, change, field):
        anchor = Anchor(**{**FIELDS, "tpot_ms": 5.0, **change}).model_copy(update={"file": "a.csv", "line": 7})
        with pytest.raises(PerfModelError) as error:
            perfmodel.predict("gpt-oss-20b", "h100", anchors=[anchor])
        assert (str(error.value.file), error.value.line) == ("a.csv", 7)
        assert field is None or error.value.field == field

    def test_a_config_that_is_not_there_is_told_with_the_line_that_names_it(self, tmp_path):
        file = tmp_path / "a.csv"
        file.write_text(HEADER + "./none.json,h100,1,1024,256,16,,5\n")
        with pytest.raises(PerfModelError, match=r"none\.json: cannot read") as error:
            perfmodel.predict("gpt-oss-20b", "h100", anchors=file)
        assert (error.value.file, error.value.line) == (str(file), 2)

    def test_weights_that_do_not_fit_ask_for_the_ranks(self):
        anchor = Anchor(**{**FIELDS, "model": "deepseek-v3", "tpot_ms": 5.0})
        with pytest.raises(PerfModelError, match="does not fit 1 x h100"):
            perfmodel.predict("deepseek-v3", "h100", anchors=[anchor], tp=8)


class TestPredict:
    def step(self, *anchors, **options):
        return perfmodel.predict("gpt-oss-20b", "h100", batch=16, context=1152, anchors=[{**FIELDS, **a} for a in anchors], **options)

    def test_pulled_towards_what_was_measured(self):
        plain, pulled, wild = self.step(), self.step({"tpot_ms": 9.0}), self.step({"tpot_ms": 50.0})
        assert plain.anchored is None
        assert pulled.latency_us == pytest.approx(plain.latency_us * pulled.anchored.tpot)
        assert (pulled.anchored.own, pulled.anchored.similar) == (1, 0)
        assert sum(op.us for op in pulled.ops) == pytest.approx(pulled.latency_us)
        width, before = (result.interval_us[1] / result.interval_us[0] for result in (pulled, plain))
        assert width < before**0.7
        assert 1.0 < wild.anchored.tpot < pulled.anchored.tpot
        assert "is it the same service?" in " ".join(wild.notes)

    def test_far_measurements_do_not_flood_the_notes(self):
        notes = self.step(*({"tpot_ms": 50.0, "concurrency": c} for c in range(10, 20))).notes
        assert sum("is it the same service?" in note for note in notes) == 4
        assert notes[-1] == "6 more measured figures are as far from the predicted ones"

    def test_the_order_of_measurements_does_not_matter_and_none_widens(self):
        some = [{"tpot_ms": ms, "concurrency": c, "tp": tp} for ms, c, tp in ((9.0, 1, 1), (5.0, 16, 2), (50.0, 500, 1), (5.0, 16, 1))]
        steps = [self.step(*some[:count]) for count in range(5)]
        widths = [step.interval_us[1] / step.interval_us[0] for step in steps]
        assert widths == sorted(widths, reverse=True)
        again = self.step(*reversed(some))
        assert again.latency_us == pytest.approx(steps[-1].latency_us, rel=1e-12)
        assert again.interval_us == pytest.approx(steps[-1].interval_us, rel=1e-12)

    def test_other_ranks_pull_less_and_other_backends_or_gpus_nothing(self):
        own, other = (self.step({"tpot_ms": 50.0, "tp": tp}).anchored.tpot for tp in (1, 2))
        assert 1.0 < other < own
        left = self.step({"tpot_ms": 50.0, "backend": "vllm"}, {"tpot_ms": 50.0, "gpu": "h200"}, backend="sglang")
        assert left.anchored is None
        assert any("2 of your 2 measurements" in note for note in left.notes)

    def test_a_prompt_follows_ttft_and_no_offset(self):
        plain, pulled = (self.step(*a, phase="prefill") for a in ((), ({"tpot_ms": 50.0},)))
        assert pulled.latency_us == plain.latency_us
        assert plain.latency_us == perfmodel.predict("gpt-oss-20b", "h100", phase="prefill", context=1152).latency_us
        assert any("no prompt was measured alone" in note for note in plain.notes)
        assert self.step({"ttft_ms": 9999.0}, phase="prefill").latency_us > plain.latency_us

    def test_a_what_if_keeps_the_pull_of_the_real_gpu(self):
        pulls = [self.step({"tpot_ms": 9.0}, changes=c).anchored.tpot for c in ((), "memory.bandwidth_GBps=6700")]
        assert pulls[0] == pulls[1]

    def test_notes_count_what_is_left_out(self):
        anchor = Anchor(**{**FIELDS, "tpot_ms": 5.0})
        held = anchored_of([anchor], load_model("gpt-oss-20b"), load_gpu("h100"), None)
        assert left_out([anchor], [held]) == []
        assert left_out([], []) == []


class TestPlan:
    LOAD: ClassVar = {"gpus": 4, "isl": 1024, "osl": 256, "top": 1, "backend": "vllm"}

    def anchor(self, plan):
        """The plan as if it had been measured to be as it is predicted."""
        found = {
            name: getattr(plan, name) for name in ("gpu", "format", "mode", "tp", "pp", "ep", "dp", "concurrency", "ttft_ms", "tpot_ms")
        }
        found |= {"model": "gpt-oss-20b", "isl": 1024, "osl": 256, "instances": plan.instances}
        if plan.prefill is not None:
            found |= {f"prefill_{name}": getattr(plan.prefill, name) for name in ("tp", "pp", "ep", "dp", "instances")}
            found["instances"] = plan.decode.instances
        return found

    @pytest.mark.parametrize("mode", ["aggregated", "disaggregated"])
    def test_a_plan_that_was_measured_as_predicted_stays_and_narrows(self, mode):
        plain = perfmodel.plan("gpt-oss-20b", "h100", mode=mode, tpot_ms=8.0, **self.LOAD)
        best = plain.plans[0]
        again = perfmodel.plan("gpt-oss-20b", "h100", mode=mode, tpot_ms=8.0, anchors=[self.anchor(best)], **self.LOAD).plans[0]
        assert (again.ttft_ms, again.tpot_ms) == pytest.approx((best.ttft_ms, best.tpot_ms), rel=1e-6)
        assert (again.anchored.own, again.anchored.tpot) == (1, pytest.approx(1.0))
        assert again.interval.tpot_ms[1] / again.interval.tpot_ms[0] < 0.8 * best.interval.tpot_ms[1] / best.interval.tpot_ms[0]

    def test_a_slow_measurement_makes_other_ranks_win(self):
        plain = perfmodel.plan("gpt-oss-20b", "h100", mode="aggregated", tpot_ms=8.0, **self.LOAD).plans[0]
        slow = {**self.anchor(plain), "tpot_ms": 30.0}
        other = perfmodel.plan("gpt-oss-20b", "h100", mode="aggregated", tpot_ms=8.0, anchors=[slow], **self.LOAD).plans[0]
        assert plain.anchored is None
        assert other.tokens_per_s_per_gpu < plain.tokens_per_s_per_gpu
        assert other.anchored.own == 0

    def test_half_the_rate_draws_half_of_what_is_over_idle(self):
        options = {"mode": "aggregated", "gpus": 1, "isl": 1024, "osl": 256, "top": 1}
        more, less = (perfmodel.plan("gpt-oss-20b", "h100", rate=rate, **options).plans[0] for rate in (0.2, 0.1))
        assert (more.batch, more.instances, more.most_requests_per_s) == (less.batch, less.instances, less.most_requests_per_s)
        idle = load_prices().power.idle.value * load_gpu("h100").tdp
        assert more.watts_per_gpu - idle == pytest.approx(2 * (less.watts_per_gpu - idle))
        assert more.watts_per_gpu > 1.01 * idle


class TestCommands:
    def test_simulate_follows_tpot(self, tmp_path, capsys):
        file = tmp_path / "a.csv"
        file.write_text(HEADER + "gpt-oss-20b,h100,1,1024,256,16,,10\n")
        load = ["--gpu", "h100", "--concurrency", "16", "--isl", "1024", "--osl", "256", "--requests", "64", "--json"]
        results = []
        for anchor in ([], ["--anchor", str(file)]):
            main_(["simulate", "gpt-oss-20b", *load, *anchor])
            results.append(json.loads(capsys.readouterr().out))
        plain, pulled = results
        assert plain["anchored"] is None
        assert pulled["anchored"]["own"] == 1
        assert 1.1 < pulled["tpot_ms"]["p50"] / plain["tpot_ms"]["p50"] <= pulled["anchored"]["tpot"] * 1.02

    def test_a_rate_finds_its_load(self):
        anchors = [{**FIELDS, "ttft_ms": 900.0}]
        options = {"gpus": 1, "isl": 1024, "osl": 256, "requests": 64, "anchors": anchors, "rate": 2.0}
        found = perfmodel.simulate("gpt-oss-20b", "h100", **options)
        assert found["anchored"]["ttft"] > 1.2
        assert found["ttft_ms"]["p50"] > 1.2 * perfmodel.simulate("gpt-oss-20b", "h100", **{**options, "anchors": ()})["ttft_ms"]["p50"]

    def test_tables_say_so(self, tmp_path, capsys):
        file = tmp_path / "a.csv"
        file.write_text(HEADER + "gpt-oss-20b,h100,1,1024,256,16,,5\n")
        for words in (["plan", "--gpus", "1", "--isl", "1024", "--osl", "256"], ["predict", "--phase", "decode", "--batch", "16"]):
            main_([words[0], "gpt-oss-20b", "--gpu", "h100", "--anchor", str(file), *words[1:]])
            assert "anchored on 1 of your measurements" in " ".join(capsys.readouterr().out.split())

    def test_a_layer_has_no_anchors(self, capsys):
        with pytest.raises(SystemExit):
            main(["predict", "gpt-oss-20b", "--gpu", "h100", "--anchor", "a.csv"])
        assert "--phase" in capsys.readouterr().err


class TestWords:
    def test_mistaken_types_get_an_error_of_ours(self, tmp_path):
        grid = {"model": ["gpt-oss-20b"], "gpu": ["b200"]}
        for call in (
            lambda: perfmodel.predict("gpt-oss-20b", "h100", format=5),
            lambda: perfmodel.predict("gpt-oss-20b", "h100", cache_format=5),
            lambda: perfmodel.sweep(5, tmp_path / "a.parquet"),
            lambda: perfmodel.sweep(grid, None),
            lambda: perfmodel.sweep(grid, tmp_path / "a.parquet", scheduler=5),
        ):
            with pytest.raises(PerfModelError):
                call()

    def test_a_single_change_is_one(self):
        fast = perfmodel.predict("gpt-oss-20b", "h100", changes="memory.bandwidth_GBps=9000")
        assert fast.latency_us == perfmodel.predict("gpt-oss-20b", "h100", changes=("memory.bandwidth_GBps=9000",)).latency_us

    def test_engines_meet_mxfp4_weights_with_fp8(self):
        assert serving_format("mxfp4-w4a16", load_gpu("b200")) == "mxfp4-w4a8"
        assert serving_format("mxfp4-w4a16", load_gpu("h100")) == "mxfp4-w4a16"
        assert serving_format("nvfp4", load_gpu("b200")) == "nvfp4"

    def test_gpus_without_a_network_say_so_beyond_what_is_joined(self):
        gpu = load_gpu("rtx-5090")
        assert gpu.network_bandwidth is None
        assert network_notes(gpu, 1) == ()
        assert "names no network" in network_notes(gpu, 4096)[0]
        assert network_notes(load_gpu("h200"), 4096) == ()


SERVICE = Service(
    line=2, model="gpt-oss-20b", gpu="h100", backend="vllm", version="", precision="fp4", mode="aggregated", prompt=1024, output=256,
    clients=4, decode=Parallel(), decoders=None, prefill=None, prefillers=None, ttft=0.1, tpot=0.01, origin="dump", measured="",
)  # fmt: skip


def held(clients, factor, used=False):
    """A configuration under several loads, measured at `factor` times what is predicted."""
    rows = [replace(SERVICE, clients=c, line=i, ttft=factor * 0.1, tpot=factor * 0.01) for i, c in enumerate(clients)]
    count = len(rows)
    return ServingValidation(
        Services.of(rows), [""] * count, np.full(count, 0.1), np.full(count, 0.01), np.full(count, used), 0.0
    )  # fmt: skip


class TestValidation:
    @pytest.mark.parametrize(("rows", "count", "chosen"), [(4, 1, [2]), (5, 1, [2]), (9, 3, [1, 4, 7]), (4, 3, [0, 2, 3])])
    def test_anchors_are_the_middles_of_equal_parts(self, rows, count, chosen):
        assert scoring.choose(np.arange(rows), count).tolist() == chosen

    def test_a_constant_factor_is_mostly_found(self):
        found = scoring.validate_anchored(held([1, 2, 4, 8, 16], 1.3), 1).summary()
        assert (found["anchors"], found["configurations"], found["overall"]["n"], found["overall"]["scored"]) == (1, 1, 5, 4)
        tpot = found["overall"]["tpot"]
        assert tpot["plain"]["median_ape"] == pytest.approx(0.3 / 1.3)
        assert tpot["median_ape"] < 0.25 * tpot["plain"]["median_ape"]
        assert found["by_backend"]["sglang"]["tpot"]["median_ape"] is None

    def test_rows_of_an_anchors_load_are_not_scored(self):
        assert scoring.validate_anchored(held([1, 2, 4, 4, 4, 8], 1.3), 1).summary()["overall"]["scored"] == 3

    def test_few_rows_have_no_anchors(self):
        assert scoring.validate_anchored(held([1, 2, 4], 1.3), 1).summary()["overall"]["scored"] == 0

    def test_fitted_rows_are_told_apart(self):
        found = scoring.validate_anchored(held([1, 2, 4, 8], 1.3, used=True), 3).summary()
        assert (found["overall"]["scored"], found["not_fitted"]["scored"]) == (1, 0)

    def test_the_fit_finds_spreads_that_were_drawn(self):
        """24 configurations of 4 loads, apart by 0.3 each, rows by 0.05, in which neighbouring loads differ by no more."""
        draw = np.random.default_rng(0)
        kinds = [
            (tp, gpu, backend) for tp in (1, 2) for gpu in ("h100", "h200", "b200", "b300") for backend in ("vllm", "sglang", "trtllm")
        ]
        rows = [replace(SERVICE, decode=Parallel(tp=tp), gpu=g, backend=b, clients=2**c) for tp, g, b in kinds for c in range(4)]
        residual = np.repeat(draw.normal(0, 0.3, 24), 4) + draw.normal(0, 0.05, 96)
        prior = scoring.fit_prior(Services.of(rows), residual, 2.0)
        assert math.hypot(prior.pair, prior.configuration, prior.load) == pytest.approx(0.3, rel=0.35)
        apart = prior.noise**2 + prior.load**2 * (1 - math.exp(-1 / prior.reach))
        assert math.sqrt(apart) == pytest.approx(0.05, rel=0.3)
        assert f"noise: {prior.noise}" in scoring.priors_text({"ttft": prior, "tpot": prior}, 96)


def main_(words):
    """The command, which may end by an exit of 0."""
    try:
        main(words)
    except SystemExit as end:
        assert not end.code  # noqa: PT017
