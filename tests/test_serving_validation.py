"""Measured services: how rows are read, which are flagged, how offsets and folds are made."""

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.cli import main
from perfmodel.serving.engine import Calibration, Engine
from perfmodel.serving.parallel import Parallel
from perfmodel.validation.serving import rows as reading
from perfmodel.validation.serving import validate as validating
from perfmodel.validation.serving.calibrate import as_json, engine_text
from perfmodel.validation.serving.fit import apply_offsets, chosen_rows, fit_offsets, fit_serving, row_weights
from perfmodel.validation.serving.flags import flag_services
from perfmodel.validation.serving.predict import Services, format_of
from perfmodel.validation.serving.rows import Service

SERVICE = Service(
    line=2, model="gpt-oss-120b", gpu="b200", backend="vllm", version="0.19.0", precision="fp4", mode="aggregated",
    prompt=1024, output=1024, clients=16, decode=Parallel(tp=2), decoders=None, prefill=None, prefillers=None,
    ttft=0.1, tpot=0.005, origin="dated", measured="2026-01-20",
)  # fmt: skip


def row(**changed):
    """A row of the file."""
    both = {
        "model_path": "deepseek-ai/DeepSeek-R1",
        "system": "h200_sxm",
        "backend": "sglang",
        "backend_version": "0.5",
        "precision": "fp8",
    }
    sizes = {"isl": 1024, "osl": 512, "batch_size": 7, "silicon_ttft_ms": 100.0, "silicon_tpot_ms": 10.0, "mode": "agg"}
    ranks = {f"{side}{name}": None for side in ("", "prefill_", "decode_") for name in
             ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "num_workers", "batch_size")}  # fmt: skip
    source = {"silicon_data_source": "source_file=2026-03-25.csv; silicon_concurrency=64; measured=2026-01-14T00:00:00Z"}
    return ranks | both | sizes | source | changed


class TestRows:
    def test_a_row_in_our_words(self):
        found = reading._service(row(tp_size=8, moe_tp_size=8, moe_ep_size=1, pp_size=1), 5)
        assert (found.model, found.gpu, found.clients, found.line, found.origin) == ("deepseek-r1", "h200", 64, 5, "dated")
        assert (found.decode, found.measured, found.mode) == (Parallel(tp=8), "2026-01-14", "aggregated")
        assert (found.ttft, found.tpot) == (0.1, 0.01)

    @pytest.mark.parametrize(
        ("ranks", "parallel"),
        [
            ((8, None, 1, 8), Parallel(tp=8, ep=8)),
            ((16, 1, 4, 4), Parallel(tp=4, ep=4)),  # tp x ep
            ((1, 64, 8, 8), Parallel(dp=8, ep=8)),
            ((4, 4, 1, 16), Parallel(dp=4, ep=4)),  # counted twice
            ((2, None, 1, 8), Parallel(tp=2, dp=4, ep=8)),  # attention ranks forgotten
            ((2, 0, 0, 0), Parallel(tp=2)),
        ],
    )
    def test_ranks_as_the_file_writes_them(self, ranks, parallel):
        names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
        assert reading._service(row(**dict(zip(names, ranks, strict=True))), 2).decode == parallel

    def test_a_load_that_is_not_said_is_the_batch(self):
        assert reading._service(row(silicon_data_source="source_file=/x/y.csv"), 2).clients == 7

    def test_an_unknown_model_is_named_with_its_line(self):
        with pytest.raises(reading.PerfModelError) as error:
            reading._service(row(model_path="new/one"), 9)
        assert (error.value.line, error.value.value) == (9, "new/one")


class TestFlags:
    def test_each_reason(self):
        r1 = replace(SERVICE, model="deepseek-r1")
        apart = replace(r1, mode="disaggregated", clients=9)
        qwen, gpt = replace(SERVICE, model="qwen3-32b", gpu="gb200"), replace(SERVICE, model="gpt-oss-120b", clients=512)
        rows = [
            SERVICE,
            apart,
            replace(apart, clients=8),
            replace(apart, decoders=2),
            replace(SERVICE, gpu="gb200", decode=Parallel(tp=16)),
            replace(r1, backend="trtllm"),
            replace(r1, backend="trtllm", measured="2025-12-15"),
            replace(r1, origin="gap"),
            replace(SERVICE, model="llama-3.1-8b", backend="vllm", origin="gap"),
            replace(qwen, clients=2),
            replace(qwen, clients=1),
            replace(gpt, backend="vllm"),
            replace(gpt, backend="trtllm"),
        ]
        expected = ["", "workers-unknown", "", "", "not-aggregated", "unlabelled-mtp", "", "other-benchmark", "other-benchmark"]
        expected += ["early-blackwell", "", "hidden-limit", ""]
        assert flag_services(rows) == expected
        assert set(expected) - {""} <= set(reading.names().flags)

    def test_the_faster_of_twins_that_differ(self):
        assert flag_services([SERVICE, replace(SERVICE, tpot=0.0036)]) == ["", "faster-twin"]
        assert flag_services([SERVICE, replace(SERVICE, tpot=0.0038)]) == ["", ""]
        assert flag_services([SERVICE, replace(SERVICE, tpot=0.003, origin="dump")]) == ["", ""]  # nothing hidden there


class TestFit:
    def test_a_configuration_is_on_one_side(self):
        rows = [replace(SERVICE, decode=Parallel(tp=tp), clients=clients) for tp in (1, 2, 4, 8, 16) for clients in (1, 8)]
        rows += [replace(SERVICE, model="glm-5", clients=clients) for clients in range(1, 11)]  # a family of one configuration
        usable = np.ones(20, bool)
        chosen = chosen_rows(rows, usable)
        assert chosen.sum() == 2
        assert chosen[:10].reshape(5, 2).all(axis=1).tolist() == [False, True, False, False, False]  # the middle of 1, 16, 2, 4, 8
        usable[2] = False
        assert chosen_rows(rows, usable).sum() == 1  # flagged rows are not fitted

    def test_decoders_that_a_row_does_not_say(self):
        apart = replace(SERVICE, mode="disaggregated", clients=64)
        large = replace(apart, decode=Parallel(dp=32, ep=32))
        rows = [apart, replace(apart, clients=2), replace(apart, decoders=7), large, SERVICE]
        assert Services.of(rows).decoding.instances.tolist() == [4, 2, 7, 1, 1]

    def test_rows_of_a_large_configuration_count_less(self):
        rows = [SERVICE] * 48 + [replace(SERVICE, backend="sglang")]
        assert row_weights(rows)[[0, -1]].tolist() == [0.5, 1.0]

    def test_offsets_find_what_groups_have_in_common_and_are_drawn_to_nothing(self):
        rows = [SERVICE] * 60 + [replace(SERVICE, backend="sglang", model="glm-5")] * 60
        residual = np.concatenate([np.full(60, 0.3), np.full(60, -0.3)])
        offsets = fit_offsets(rows, "ttft", residual, np.ones(120))
        found = apply_offsets(rows, "ttft", offsets)
        assert 0.25 < found[0] < 0.3
        assert -0.3 < found[-1] < -0.25
        few = apply_offsets(rows[:1], "ttft", fit_offsets(rows[:1], "ttft", residual[:1], np.ones(1)))
        assert 0 < few[0] < 0.15

    def test_the_fit_finds_the_services_that_an_engine_made(self):
        rows = [
            replace(SERVICE, model=model, precision=precision, gpu=gpu, clients=clients, prompt=prompt, decode=Parallel(tp=tp))
            for model, precision in (("llama-3.1-70b", "fp8"), ("gpt-oss-120b", "fp4"))
            for gpu in ("h200", "b200")
            for clients in (1, 16, 128)
            for prompt in (1024, 8192)
            for tp in (1, 4)
        ]
        truth = replace(Engine(), bandwidth=0.6, layer_us=50.0, prompt_layer_us=200.0)
        made = Services.of(rows).predict(truth, {})
        services = Services.of([replace(one, ttft=float(made[0][i]), tpot=float(made[1][i])) for i, one in enumerate(rows)])
        found = fit_serving(services, np.arange(len(rows)), rounds=1)
        ttft, tpot = validating.predict_services(services, found)
        assert np.median(np.abs(tpot / services.tpot - 1)) < 0.02
        assert np.median(np.abs(ttft / services.ttft - 1)) < 0.05

    def test_the_file_is_read_as_it_was_written(self, tmp_path, monkeypatch):
        from perfmodel.serving import engine

        calibration = Calibration(Engine(), {"tpot": {"model=a": 0.1}}, {"vllm": {"burst": 0.2}}, {"aggregated": {"tpot": (0.8, 1.2)}})
        path = tmp_path / "engines.yaml"
        path.write_text(engine_text(calibration, {"rows": 3}))
        monkeypatch.setattr(engine, "FILE", path)
        engine.load_calibration.cache_clear()
        try:
            assert as_json(engine.load_calibration()) == as_json(calibration)
            assert engine.load_calibration().engine_of("vllm").burst == 0.2
            assert engine.load_calibration().engine_of().burst == Engine().burst
        finally:
            engine.load_calibration.cache_clear()


class TestValidate:
    def test_a_pair_is_in_one_fold_alone(self):
        models = ("glm-5", "gpt-oss-120b", "kimi-k2.5", "deepseek-r1")
        rows = [replace(SERVICE, gpu=gpu, model=model) for gpu in ("h100", "h200", "b200") for model in models]
        folds = validating.pair_folds([*rows, *rows])
        assert (folds[:12] == folds[12:]).all()
        assert len(set(folds.tolist())) == validating.FOLDS

    def test_formats_of_gpus(self):
        assert format_of(SERVICE) == "mxfp4-w4a8"
        assert format_of(replace(SERVICE, gpu="h100")) == "mxfp4-w4a16"
        assert format_of(replace(SERVICE, model="deepseek-r1")) == "nvfp4"

    def test_a_summary_counts_what_is_scored(self):
        rows = [SERVICE, replace(SERVICE, clients=4), replace(SERVICE, precision="bf16")]
        services = Services.of(rows)
        held = validating.ServingValidation(
            services, ["", "faster-twin", ""], services.ttft * 1.5, services.tpot * 0.9, np.array([True, False, False]), 0.2
        )
        found = held.summary()
        assert (found["overall"]["n"], found["overall"]["scored"]) == (3, 2)
        assert found["overall"]["flagged_by"] == {"faster-twin": 1}
        assert found["overall"]["tpot"]["median_ape"] == pytest.approx(0.1)
        assert found["not_fitted"]["scored"] == 1
        assert found["by_format"]["bf16"]["ttft"]["median_ape"] == pytest.approx(0.5)
        assert found["by_format"]["int4"]["tpot"]["median_ape"] is None
        assert validating.interval_factors(held)["aggregated"]["tpot"] == [1.111, 1.111]

    def test_each_mode_has_an_interval_of_its_own(self):
        rows = [SERVICE, replace(SERVICE, mode="disaggregated", decoders=1)]
        edges = validating.edges_of(rows, "ttft")
        assert edges.shape == (2, 2)
        assert edges[1, 0] / edges[0, 0] < edges[1, 1] / edges[0, 1]  # queues before prefill instances are guessed


class TestRealRows:
    def test_distinct_rows_and_how_many_are_scored(self):
        pytest.importorskip("aiconfigurator_core")
        rows = reading.read_services()
        flags = flag_services(rows)
        assert len(rows) == 3889  # of 5,221
        assert sum(not flag for flag in flags) / len(rows) > 0.8


@pytest.mark.parametrize(
    "words",
    [
        ["validate", "serving", "--gpu", "h100"],
        ["validate", "serving", "--rows", "x.parquet"],
        ["calibrate", "--op", "serving", "--kernel", "marlin"],
    ],
)
def test_options_that_would_be_ignored_are_refused(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "does not go with" in capsys.readouterr().err
