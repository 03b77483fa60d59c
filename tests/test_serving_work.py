"""What a GPU has to do for a step: sizes worked out by hand, and laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import load_model
from perfmodel.errors import PerfModelError
from perfmodel.serving.formats import formats_of, precision_of
from perfmodel.serving.memory import USABLE, WORKSPACE, cache_room, longest_context, memory_bytes, most_sequences
from perfmodel.serving.parallel import Parallel, allowed
from perfmodel.serving.work import stack, work_of

ONE = Parallel()
LLAMA, DEEPSEEK, GPT_OSS, QWEN35 = (load_model(name) for name in ("llama-3.1-8b", "deepseek-v3", "gpt-oss-120b", "qwen3.5-397b-a17b"))


def one(value):
    return float(np.squeeze(value))


class TestWork:
    def test_weights_of_llama_by_hand(self):
        work = work_of(LLAMA, ONE, "bf16")
        layer = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336
        assert one(work.dense_weights) == 32 * layer
        assert one(work.weight_bytes) == 2 * 32 * layer + 2 * 2 * 128_256 * 4096  # embedding and head

    def test_caches_by_hand(self):
        assert one(work_of(LLAMA, ONE, "bf16").cache_bytes(np.array([1.0]))) == 32 * 2 * 8 * 128 * 2
        assert one(work_of(DEEPSEEK, ONE, "fp8-block", cache="fp8").cache_bytes(np.array([10.0]))) == 61 * (512 + 64) * 10
        windowed = 18 * 2 * 8 * 64 * 2  # of each token; half of the layers keep 128 tokens
        assert one(work_of(GPT_OSS, ONE, "mxfp4-w4a16").cache_bytes(np.array([1000.0]))) == windowed * (1000 + 128)

    def test_key_value_heads_are_copied_beyond_their_number(self):
        shares = [one(work_of(LLAMA, Parallel(tp=tp), "bf16").cache_bytes(np.array([1.0]))) for tp in (1, 8, 16)]
        assert shares[0] == 8 * shares[1]
        assert shares[1] == shares[2]

    def test_latent_caches_are_whole_on_each_rank(self):
        whole, split = (work_of(DEEPSEEK, Parallel(tp=tp), "fp8-block") for tp in (1, 8))
        assert one(whole.cache_bytes(np.array([9.0]))) == one(split.cache_bytes(np.array([9.0])))

    def test_a_recurrent_state_does_not_grow(self):
        work = work_of(QWEN35, ONE, "bf16")
        assert one(work.state_bytes) == 45 * 64 * 128 * 128 * 4
        grown = one(work.cache_bytes(np.array([2000.0]))) - one(work.cache_bytes(np.array([1000.0])))
        assert grown == 1000 * 15 * 2 * 2 * 256 * 2

    def test_experts_are_shared_out(self):
        whole, spread = work_of(DEEPSEEK, ONE, "fp8"), work_of(DEEPSEEK, Parallel(tp=1, dp=8, ep=8), "fp8")
        experts = 58 * 256 * 3 * 7168 * 2048
        assert one(whole.weight_bytes) - one(spread.weight_bytes) == pytest.approx(experts * 7 / 8, rel=1e-3)

    def test_every_bundled_model_counts_its_parameters(self):
        for name in ("kimi-k2", "minimax-m2.5", "nemotron-3-super", "deepseek-v4-pro", "llama-4-maverick"):
            model = load_model(name)
            work = work_of(model, ONE, "fp8")
            embedding_and_head = one(work.head_bytes) * 2
            parameters = one(work.weight_bytes) - embedding_and_head + 2 * model.vocab * model.hidden
            assert parameters == pytest.approx(model.params_total, rel=5e-3), name

    def test_stack_and_take(self):
        works = [work_of(model, ONE, "fp8") for model in (LLAMA, DEEPSEEK)]
        both = stack(works)
        assert both.read.shape == (4, 2)
        assert one(both.take(np.array([1])).dense_bytes) == one(works[1].dense_bytes)


class TestParallel:
    @pytest.mark.parametrize(
        ("model", "parallel", "field"),
        [
            (LLAMA, Parallel(tp=3), "tp"),
            (LLAMA, Parallel(tp=2, ep=2), "ep"),
            (LLAMA, Parallel(dp=2), "dp"),
            (DEEPSEEK, Parallel(tp=8, ep=3), "ep"),
            (DEEPSEEK, Parallel(pp=62), "pp"),
            (DEEPSEEK, Parallel(tp=0), "tp"),
        ],
    )
    def test_what_no_engine_runs_is_refused(self, model, parallel, field):
        with pytest.raises(PerfModelError) as error:
            parallel.check(model)
        assert error.value.field == field

    def test_gpus(self):
        parallel = Parallel(tp=2, dp=4, pp=3, ep=8)
        assert (parallel.gpus, parallel.ranks, parallel.moe_tp) == (24, 8, 1)
        assert allowed(parallel, DEEPSEEK)

    def test_a_cache_in_four_bits_has_scales(self):
        wide, narrow = (one(work_of(LLAMA, ONE, "bf16", cache=cache).cache_bytes(np.array([1000.0]))) for cache in ("bf16", "nvfp4"))
        assert narrow / wide == 4.5 / 16


class TestFormats:
    def test_four_bit_experts_leave_the_rest_in_bf16(self):
        assert formats_of(DEEPSEEK, "nvfp4") == ("nvfp4", "bf16", "fp8")
        assert formats_of(LLAMA, "nvfp4") == ("nvfp4", "nvfp4", "fp8")
        assert formats_of(DEEPSEEK, "fp8-block").cache == "fp8"
        assert formats_of(GPT_OSS, "mxfp4-w4a16", "fp8") == ("mxfp4-w4a16", "bf16", "fp8")

    def test_precisions(self):
        assert [precision_of(form) for form in ("bf16", "fp8-block", "nvfp4", "int4-w4a16", "mxfp4-w4a8")] == [
            "bf16",
            "fp8",
            "fp4",
            "int4",
            "fp4",
        ]


class TestMemory:
    def test_sequences_that_fit_by_hand(self):
        work = work_of(LLAMA, ONE, "bf16")
        capacity = np.array([85e9])
        a_token = 32 * 2 * 8 * 128 * 2
        room = 85e9 * USABLE - WORKSPACE - one(work.weight_bytes)
        assert one(cache_room(work, capacity)) == pytest.approx(room)
        assert one(most_sequences(work, capacity, np.array([1000.0]))) == room // (a_token * 1000)

    def test_nothing_fits_beside_weights_that_do_not(self):
        work = work_of(DEEPSEEK, ONE, "fp8-block")
        assert one(most_sequences(work, np.array([85e9]), np.array([1.0]))) == 0

    @settings(deadline=None, max_examples=30)
    @given(st.integers(1, 500))
    def test_the_longest_context_fits_and_one_more_token_does_not(self, sequences):
        work, capacity = work_of(LLAMA, ONE, "bf16"), np.array([85e9])
        longest = longest_context(work, capacity, np.array([float(sequences)]))
        assert one(most_sequences(work, capacity, longest)) >= sequences
        assert one(most_sequences(work, capacity, longest + 1)) < sequences

    def test_parts_of_the_memory(self):
        work = work_of(LLAMA, Parallel(pp=2), "bf16")
        parts = memory_bytes(work, np.array([10.0]), np.array([100.0]))
        assert one(parts["weights"]) == one(work.weight_bytes) / 2
        assert one(parts["cache"]) == 10 * 100 * 16 * 2 * 8 * 128 * 2
