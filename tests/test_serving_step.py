"""Time of a step and steady states: hand-computed roofs, and laws."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import load_gpu, load_model
from perfmodel.errors import PerfModelError
from perfmodel.serving.engine import OF_BACKENDS, Engine, groups_of, load_calibration
from perfmodel.serving.memory import most_sequences
from perfmodel.serving.parallel import Parallel
from perfmodel.serving.predict import as_json, predict
from perfmodel.serving.steady import Load, Side, aggregated, disaggregated, most_sharing
from perfmodel.serving.step import OPS, Batch, decode, rates_of, step_ops, step_time
from perfmodel.serving.work import work_of

LLAMA, DEEPSEEK = load_model("llama-3.1-70b"), load_model("deepseek-v3")
H200, B200 = load_gpu("h200"), load_gpu("b200")
ENGINE = Engine()


def vector(value):
    return np.array([float(value)])


def load(clients, prompt=900.0, output=900.0):
    return Load(vector(clients), vector(prompt), vector(0), vector(output))


def deployed(model=LLAMA, gpu=H200, form="fp8", parallel=Parallel(tp=4)):  # noqa: B008  (frozen)
    return work_of(model, parallel, form, cache="fp8"), rates_of(gpu, form)


class TestStep:
    def test_a_lone_token_reads_the_weights(self):
        work, rates = deployed()
        ops = step_ops(work, rates, ENGINE, decode(vector(1), vector(1)))
        assert ops["dense"][0] == pytest.approx(work.dense_bytes[0] / (H200.dram_bandwidth * ENGINE.bandwidth), rel=1e-3)
        assert tuple(ops) == OPS
        assert ops["experts"][0] == 0

    def test_a_long_prompt_is_tensor_work(self):
        work, rates = deployed()
        ops = step_ops(work, rates, ENGINE, Batch(vector(0), vector(0), vector(8192), vector(0)))
        assert ops["dense"][0] == pytest.approx(2 * work.dense_weights[0] * 8192 / (H200.peak_flops("fp8") * ENGINE.tensor), rel=1e-2)

    def test_all_experts_are_active_with_many_tokens(self):
        work, rates = deployed(DEEPSEEK, form="fp8-block", parallel=Parallel(tp=8, ep=8))
        engine = replace(ENGINE, imbalance=1e-4, tile=0.02)
        read = step_ops(work, rates, engine, decode(vector(256), vector(1)))["experts"][0]
        every = 58 * 32 * work.expert_bytes[0] / (H200.dram_bandwidth * engine.expert_bandwidth)
        assert read == pytest.approx(every, rel=0.02)

    def test_attention_of_a_prompt_is_quadratic(self):
        work, rates = deployed()
        short, long = (step_ops(work, rates, ENGINE, Batch(vector(0), vector(0), vector(n), vector(0)))["attention"][0] for n in (1e5, 2e5))
        assert long == pytest.approx(4 * short, rel=1e-6)

    def test_prompts_that_share_a_step_see_themselves_alone(self):
        work, rates = deployed()
        alone = step_ops(work, rates, ENGINE, Batch(vector(0), vector(0), vector(1000), vector(0)))["attention"][0]
        eight = step_ops(work, rates, ENGINE, Batch(vector(0), vector(0), vector(8000), vector(0), vector(8)))["attention"][0]
        assert eight == pytest.approx(8 * alone)

    def test_one_gpu_talks_to_nobody(self):
        work, rates = deployed(parallel=Parallel())
        assert step_ops(work, rates, ENGINE, decode(vector(64), vector(1000)))["communication"][0] == 0

    @settings(deadline=None, max_examples=40)
    @given(st.integers(1, 2000), st.integers(1, 100_000), st.sampled_from([1, 2, 4, 8]))
    def test_more_to_do_is_never_faster(self, sequences, context, tp):
        work, rates = deployed(DEEPSEEK, form="fp8-block", parallel=Parallel(tp=tp))
        time = step_time(work, rates, ENGINE, decode(vector(sequences), vector(context)))
        assert step_time(work, rates, ENGINE, decode(vector(sequences + 1), vector(context))) >= time
        assert step_time(work, rates, ENGINE, decode(vector(sequences), vector(2 * context))) >= time
        assert step_time(work, rates, ENGINE, Batch(vector(sequences), vector(context), vector(512), vector(0))) >= time

    @settings(deadline=None, max_examples=20)
    @given(st.integers(1, 500), st.floats(1.1, 4.0))
    def test_more_bandwidth_is_never_slower(self, sequences, times):
        work, _ = deployed(DEEPSEEK, form="fp8-block", parallel=Parallel(tp=8))
        faster = load_gpu("h200", [f"memory.bandwidth_GBps={4800 * times:.0f}"])
        slow, fast = (
            step_time(work, rates_of(gpu, "fp8-block"), ENGINE, decode(vector(sequences), vector(2000))) for gpu in (H200, faster)
        )
        assert fast <= slow


class TestMicroBatches:
    def ops(self, tokens, parts, link=1.0):
        work = work_of(load_model("deepseek-v3"), Parallel(dp=16, ep=16), "fp8-block", micro_batches=parts)
        rates = rates_of(H200, "fp8-block")
        rates = replace(rates, link=rates.link * link, network=rates.network * link)
        return work, {name: float(us[0]) for name, us in step_ops(work, rates, ENGINE, decode(vector(tokens), vector(4096))).items()}

    def test_one_is_the_batch_itself_and_two_launch_twice(self):
        _, whole = self.ops(128, 1)
        _, halves = self.ops(128, 2)
        layers = whole["overhead"] - ENGINE.step_us * 1e-6 - 128 * 16 * ENGINE.sequence_us * 1e-6
        assert halves["overhead"] == pytest.approx(whole["overhead"] + layers)
        assert halves["dense"] >= whole["dense"]

    def test_what_is_left_of_communication(self):
        """All that is longer than the rest, and at least the first half of the first layer."""
        work, halves = self.ops(2048, 2, link=100.0)
        _, half = self.ops(1024, 1, link=100.0)
        assert halves["communication"] == pytest.approx(half["communication"] / work.layers[0])
        _, slow = self.ops(2048, 2, link=1e-3)
        _, slow_half = self.ops(1024, 1, link=1e-3)
        assert slow["communication"] == pytest.approx(2 * slow_half["communication"] - sum(slow.values()) + slow["communication"])

    @pytest.mark.parametrize(("tokens", "faster"), [(1, False), (1024, True)])
    def test_they_pay_with_large_batches_only(self, tokens, faster):
        whole, halves = (sum(self.ops(tokens, parts)[1].values()) for parts in (1, 2))
        assert (halves < whole) == faster


class TestSteady:
    def test_one_client_waits_for_nobody(self):
        work, rates = deployed()
        found = aggregated(work, rates, ENGINE, load(1), vector(100))
        alone = step_time(work, rates, ENGINE, decode(vector(1), vector(1350)))
        assert found.tpot[0] == pytest.approx(alone[0], rel=1e-3)
        assert found.ttft[0] > found.prefill[0]

    @settings(deadline=None, max_examples=25)
    @given(st.integers(1, 300))
    def test_more_clients_wait_longer_and_serve_more(self, clients):
        work, rates = deployed()
        few, many = (aggregated(work, rates, ENGINE, load(n), vector(10_000)) for n in (clients, clients * 2))
        assert many.tpot >= few.tpot
        assert many.ttft >= few.ttft
        assert 2 * (few.ttft + 449 * few.tpot) >= (many.ttft + 449 * many.tpot) * 0.999  # requests a second: clients / latency

    def test_a_full_cache_makes_requests_wait(self):
        work, rates = deployed()
        free, full = (aggregated(work, rates, ENGINE, load(256), vector(most)) for most in (1000, 64))
        assert full.running[0] <= 64 * (1 + 1e-6)
        assert full.ttft[0] > 10 * free.ttft[0]
        assert full.tpot[0] < free.tpot[0]

    def test_decoders_of_their_own_are_not_disturbed(self):
        work, rates = deployed()
        side = Side(work, rates, vector(1), vector(1000))
        apart, together = disaggregated(side, side, ENGINE, load(64, 7000)), aggregated(work, rates, ENGINE, load(64, 7000), vector(1000))
        assert apart.tpot < together.tpot

    def test_more_decoders_are_faster(self):
        work, rates = deployed()
        prefill = Side(work, rates, vector(4), vector(1000))
        one, four = (disaggregated(prefill, Side(work, rates, vector(n), vector(1000)), ENGINE, load(512)) for n in (1, 4))
        assert four.tpot < one.tpot

    @pytest.mark.parametrize("backend", [None, "sglang", "trtllm", "vllm"])
    def test_the_equation_of_the_documentation_holds(self, backend):
        """TPOT = decode(B) / (1 - i (1 - burst / 2) r m), prompts one a step."""
        engine, (work, rates), asked = load_calibration().engine_of(backend), deployed(), load(32, 9000)
        found = aggregated(work, rates, engine, asked, vector(10_000))
        context = vector(9450)
        alone = step_time(work, rates, engine, decode(found.running, context))
        added = step_time(work, rates, engine, Batch(found.running, context, asked.prompt, vector(0))) - alone
        arriving = 31 / (found.ttft + 900 * found.tpot)
        busy = engine.interference * (1 - engine.burst / 2) * arriving * added
        assert 0.1 < busy[0] < 0.9
        assert found.tpot[0] == pytest.approx((alone / (1 - busy))[0], rel=1e-3)
        assert found.running[0] == pytest.approx((32 * 900 * found.tpot / (found.ttft + 900 * found.tpot))[0], rel=1e-3)

    @settings(deadline=None, max_examples=25)
    @given(st.integers(100, 6000), st.floats(1.05, 3.0), st.integers(1, 32))
    def test_longer_prompts_wait_longer_and_more_bandwidth_less(self, prompt, times, clients):
        work, rates = deployed()
        wide = replace(rates, bandwidth=rates.bandwidth * times)
        plain, long = (aggregated(work, rates, ENGINE, load(clients, p), vector(10_000)) for p in (prompt, prompt * times))
        fast = aggregated(work, wide, ENGINE, load(clients, prompt), vector(10_000))
        assert long.ttft >= plain.ttft * 0.999
        assert long.tpot >= plain.tpot * 0.999
        assert fast.ttft + 899 * fast.tpot <= (plain.ttft + 899 * plain.tpot) * 1.001

    @settings(deadline=None, max_examples=50)
    @given(st.integers(1, 1000), st.sampled_from([(1000, 100), (8000, 1000)]), st.sampled_from([None, (1, 1), (2, 4)]))
    def test_saturated_or_not_more_clients_are_never_served_faster_nor_less(self, clients, lengths, apart):
        work, rates = deployed()

        def steady(count):
            asked = load(count, *lengths)
            if apart is None:
                return aggregated(work, rates, ENGINE, asked, vector(10_000))
            first, second = (Side(work, rates, vector(n), vector(10_000)) for n in apart)
            return disaggregated(first, second, ENGINE, asked)

        few, many = steady(clients), steady(clients * 1.1)
        assert many.ttft >= few.ttft * 0.999
        assert many.tpot >= few.tpot * 0.999
        assert 1.1 * (few.ttft + lengths[1] * few.tpot) >= (many.ttft + lengths[1] * many.tpot) * 0.999

    def test_bursts_wait_longer_and_disturb_less(self):
        work, rates = deployed()
        calm, burst = (aggregated(work, rates, replace(ENGINE, burst=share), load(32, 9000), vector(10_000)) for share in (1e-4, 0.5))
        assert burst.ttft > calm.ttft
        assert burst.tpot < calm.tpot

    def test_prompts_that_arrive_during_a_step_share_the_next(self):
        work, _ = deployed()
        assert most_sharing(work, load(64, prompt=1000)).tolist() == [8]
        assert most_sharing(work, load(3, prompt=1000)).tolist() == [3]
        assert most_sharing(work, load(64, prompt=9000)).tolist() == [1]


class TestCalibration:
    def test_groups_of_a_service(self):
        words = {"backend": "vllm", "model": "gpt-oss-120b"}
        assert groups_of(words, "ttft") == ["backend=vllm", "model=gpt-oss-120b", "backend=vllm model=gpt-oss-120b"]
        assert groups_of(words, "tpot") == []  # what a model's decode differs by is of one GPU
        on = words | {"gpu": "h200"}
        assert groups_of(on, "tpot") == ["backend=vllm gpu=h200", "model=gpt-oss-120b gpu=h200", "backend=vllm model=gpt-oss-120b gpu=h200"]
        assert groups_of({}, "tpot") == []

    def test_a_backend_has_numbers_of_its_own_and_all_else_in_common(self):
        found = load_calibration()
        for backend, own in found.backends.items():
            assert set(own) == set(OF_BACKENDS)
            assert found.engine_of(backend) == replace(found.engine, **own)
        assert found.engine_of("nobody's") == found.engine

    def test_an_unknown_service_has_no_offset(self):
        assert load_calibration().factor("tpot", {"model": "nobody's"}) == 1.0

    def test_the_bundled_numbers_are_physical(self):
        engine = load_calibration().engine
        for name in ("bandwidth", "cache_bandwidth", "expert_bandwidth", "tensor", "tensor_fp4", "expert_tensor", "attention", "link"):
            assert 0 < getattr(engine, name) <= 1, name


class TestPredict:
    def test_ops_add_up(self):
        result = predict("deepseek-v3", "h200", batch=64, tp=8)
        assert sum(op.us for op in result.ops) == pytest.approx(result.latency_us)
        assert result.interval_us[0] < result.latency_us < result.interval_us[1]
        assert as_json(result)["schema"] == "perfmodel.predict-model/1"

    def test_what_does_not_fit_says_so(self):
        result = predict("deepseek-v3", "h200", batch=1, tp=2, format="fp8-block")
        assert not result.fits
        assert result.most_sequences == 0

    @pytest.mark.parametrize(
        ("changed", "field"),
        [
            ({"phase": "both"}, "phase"),
            ({"batch": 0}, "batch"),
            ({"context": 1.5}, "context"),
            ({"tp": 3}, "tp"),
            ({"backend": "llama"}, "backend"),
        ],
    )
    def test_bad_input(self, changed, field):
        with pytest.raises(PerfModelError) as error:
            predict("deepseek-v3", "h200", **changed)
        assert error.value.field == field

    def test_each_attention_rank_runs_a_prompt(self):
        one, four = (predict("qwen3-30b-a3b", "h200", phase="prefill", format="bf16", context=4096, dp=dp, ep=dp) for dp in (1, 4))
        for result in (one, four):
            assert result.tokens_per_s_per_gpu * result.latency_us * 1e-6 == pytest.approx(4096)

    @pytest.mark.parametrize(("gpu", "dense"), [("gb10", "bf16"), ("v100", "fp16")])
    def test_gpus_without_links_or_bf16(self, gpu, dense):
        assert predict("gpt-oss-20b", gpu).dense_format == dense

    def test_a_gpu_without_a_link_runs_alone(self):
        assert predict("gpt-oss-20b", "gb10").latency_us > 0
        with pytest.raises(PerfModelError, match="names no link"):
            predict("gpt-oss-20b", "gb10", tp=2)

    def test_a_layer_is_no_model(self):
        with pytest.raises(PerfModelError, match="single layer"):
            predict("layer:hidden=1024,inter=512,experts=8,topk=2", "h200")

    def test_room_for_sequences(self):
        result = predict("llama-3.1-8b", "h100", batch=4, context=8192, format="bf16")
        work = work_of(load_model("llama-3.1-8b"), Parallel(), "bf16")
        assert result.most_sequences == int(most_sequences(work, vector(load_gpu("h100").dram_capacity), vector(8192))[0])
