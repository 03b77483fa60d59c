"""The simulation against cases computed by hand, its laws, and the closed form of the same service."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from perfmodel.errors import PerfModelError
from perfmodel.hardware import load_gpu
from perfmodel.serving.engine import load_calibration
from perfmodel.serving.memory import most_sequences
from perfmodel.serving.steady import Load, aggregated
from perfmodel.serving.step import Batch, decode
from perfmodel.simulation.request import SimulationRequest
from perfmodel.simulation.run import execute, simulate
from perfmodel.simulation.state import SUMS
from perfmodel.units import MICROSECOND
from perfmodel.workload import load_model

MODEL, GPU = "qwen3-30b-a3b", "h100"


def outcome(model=MODEL, form="bf16", **options):
    request = SimulationRequest(**{"gpus": 2, "isl": 1000, "osl": 200, "seed": 1, **options})
    request.check()
    return execute(request, load_model(model), load_gpu(GPU), form)


def steps(done, *batches):
    """Seconds of the steps that hold these (sequences, context, prompt)."""
    arrays = [Batch(*(np.array([float(x)]) for x in (n, c, p, 0))) for n, c, p in batches]
    return [float(done.decoding.deployment.seconds(batch)[0]) for batch in arrays]


def first_s():
    return load_calibration().engine.first_us * MICROSECOND


def test_one_request_alone():
    done = outcome(rate=1.0, requests=1)
    s, (prompt,) = done.state, steps(done, (0, 0, 1000))
    assert s.first[0] - s.arrival[0] == pytest.approx(first_s() + prompt, rel=1e-3)
    decoded = sum(steps(done, *((1, 1001 + k, 0) for k in range(199))))
    assert s.done[0] - s.first[0] == pytest.approx(decoded, rel=5e-3)


def test_two_requests_at_once_share_steps():
    done = outcome(concurrency=2, requests=2, osl=3)
    s = done.state
    engine = done.decoding.deployment.engine
    prompt, mixed, alone, both, later = steps(done, (0, 0, 1000), (1, 1001, 1000), (1, 1001, 0), (2, 1001.5, 0), (1, 1002, 0))
    pace = alone + engine.interference * (mixed - alone)
    assert s.first - first_s() == pytest.approx([prompt, prompt + mixed], rel=5e-3)
    # the first has its second token from the mixed step, its third from the shared one, which is the second's second
    assert s.done - first_s() == pytest.approx([prompt + pace + both, prompt + pace + both + later], rel=5e-3)


def test_an_answer_of_one_token_ends_with_its_prompt():
    done = outcome(rate=5.0, requests=50, osl=1)
    assert np.array_equal(done.state.first, done.state.done)
    assert simulate(MODEL, GPU, gpus=2, isl=100, osl=1, rate=5.0, requests=20)["tpot_ms"] is None


def test_prompts_in_chunks_take_more_steps():
    done = outcome(rate=0.01, requests=3, chunk=256, osl=2)
    assert done.state.sums[SUMS.index("prompts")] == 3 * 4
    assert done.state.sums[SUMS.index("prompt_tokens")] == 3000


def test_cached_prefix_is_not_computed():
    done = outcome(rate=1.0, requests=10, prefix_cache=0.75)
    assert done.state.sums[SUMS.index("prompt_tokens")] == 2500
    assert (outcome(rate=1.0, requests=10, prefix_cache=1.0).load.lengths.cached == 999).all()


def test_speculation_gains_tokens_by_the_geometric_sum():
    done = outcome(rate=0.01, requests=2, speculative="2:0.5", osl=176)  # 1 + 0.5 + 0.25 tokens a step: 175 tokens in 100 steps
    assert done.state.sums[SUMS.index("steps")] == 200


@pytest.mark.parametrize("accepted", ["1:0", "3:0"])
def test_speculation_that_never_hits_only_costs(accepted):
    plain, drafted = outcome(rate=2.0, requests=50), outcome(rate=2.0, requests=50, speculative=accepted)
    assert drafted.state.done.sum() > plain.state.done.sum()


LOADS = [
    {"rate": 8.0},
    {"rate": 30.0, "arrivals": "gamma:3", "lengths": "lognormal:1"},
    {"concurrency": 2000, "chunk": 8192, "osl": 600, "max_sequences": 4096},
    {"rate": 20.0, "gpus": 4, "tp": 1, "chunk": 300, "lengths": "uniform:0.1"},
    {"rate": 20.0, "gpus": 6, "tp": 1, "mode": "disaggregated", "prefill_gpus": 3},
    {"concurrency": 64, "gpus": 4, "mode": "disaggregated", "prefill_gpus": 2, "lengths": "lognormal:0.5"},
    {"rate": 20.0, "tp": 1, "dp": 2, "ep": 2, "speculative": "2:0.6", "prefix_cache": 0.3, "dispatch": "round-robin"},
    {"concurrency": 1500, "chunk": 4096, "osl": 900, "tp": 1, "max_sequences": 4096, "lengths": "lognormal:0.3"},
]


@pytest.mark.parametrize("load", LOADS)
def test_laws(load):
    done = outcome(requests=2500, **load)
    s, wall = done.state, done.state.done.max() - done.state.arrival.min()
    assert np.isfinite(s.done).all()
    assert (s.first >= s.arrival + first_s()).all()
    assert (s.done >= s.first).all()
    assert (s.busy <= wall * (1 + 1e-9)).all()
    assert s.sums[SUMS.index("peak")] <= done.decoding.room * done.decoding.parallel.dp * (1 + 1e-9)
    assert s.running.sum() == s.waiting.sum() == s.prompts.sum() == 0
    assert np.abs(s.held).max() < 1e-3
    assert np.abs(s.total).max() < 1e-3


def test_full_memory_puts_requests_back_and_all_are_served():
    result = simulate(MODEL, GPU, gpus=2, tp=1, isl=1000, osl=900, concurrency=600, chunk=8192, requests=3000)
    assert result["completed"] == 3000
    assert result["preempted"] > 0
    assert 0 < result["kv_full_share"] <= 1
    assert result["memory"]["cache_peak_GB"] <= result["memory"]["cache_room_GB"]


def test_layers_that_forget_fill_less():
    """gpt-oss keeps 128 tokens in half of its layers."""
    done = outcome("gpt-oss-20b", "mxfp4-w4a16", gpus=1, concurrency=500, requests=1500, isl=3000, osl=2000, chunk=8192, max_sequences=2048)
    peak = done.state.sums[SUMS.index("peak")]
    assert np.isfinite(done.state.done).all()
    assert peak <= done.decoding.room
    assert peak < 500 * float(done.decoding.deployment.work.cache_bytes(np.array([5000.0]))[0]) * 1.01


@pytest.mark.parametrize("kind", ["poisson", "gamma:3", "constant"])
def test_more_load_never_lowers_the_mean_ttft(kind):
    means = [
        simulate(MODEL, GPU, gpus=2, isl=1000, osl=200, rate=r, arrivals=kind)["ttft_ms"]["mean"] for r in (2.0, 8.0, 16.0, 24.0, 40.0)
    ]
    assert all(more >= 0.97 * less for less, more in pairwise(means))


CLOSED = [
    (MODEL, GPU, "bf16", 2, 1, {}), (MODEL, GPU, "bf16", 2, 16, {}), (MODEL, GPU, "bf16", 2, 128, {}),
    ("gpt-oss-120b", "b200", "mxfp4", 1, 64, {}), ("deepseek-v3", "h200", "fp8-block", 8, 64, {}),
    ("deepseek-v3", "h200", "fp8-block", 8, 128, {"tp": 1, "dp": 8, "ep": 8}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpu", "form", "gpus", "clients", "split"), CLOSED)
def test_closed_loop_agrees_with_the_closed_form(model, gpu, form, gpus, clients, split, monkeypatch):
    plain = replace(load_calibration(), offsets={})  # these are no part of the equations
    monkeypatch.setattr("perfmodel.simulation.deploy.load_calibration", lambda: plain)
    request = SimulationRequest(
        gpus=gpus, isl=2000, osl=500, concurrency=clients, lengths="uniform:0.8", requests=10 * clients + 20, **split
    )
    done = execute(request, load_model(model), load_gpu(gpu), form)
    d = done.decoding.deployment
    load = Load(*(np.array([x]) for x in (float(clients), 1800.0, 0.0, 450.0)))
    most = most_sequences(d.work, np.array([load_gpu(gpu).dram_capacity]), np.array([2250.0]))
    form_ = aggregated(d.work, d.rates, replace(d.engine, burst=0.0), load, most)
    s, later = done.state, np.arange(done.state.first.size) >= clients
    tpot = ((s.done - s.first) / (s.output - 1))[later].mean()
    assert tpot == pytest.approx(form_.tpot[0], rel=0.15)
    wait = 2.0 if clients >= 64 else 1.3  # prompts that wait for each other are not in the closed form
    assert 1 / wait < (s.first - s.arrival)[later].mean() / form_.ttft[0] < wait


def test_least_loaded_leaves_a_busy_instance_alone(tmp_path):
    """A long answer on the first instance, short ones after each other: taken in turn, every other one joins the long."""
    rows = "".join(f"{10_000 * (i + 1)},100,50\n" for i in range(4))
    (tmp_path / "t.csv").write_text(f"timestamp,input_length,output_length\n0,100,30000\n{rows}")
    load = {"isl": None, "osl": None, "gpus": 2, "tp": 1, "trace": str(tmp_path / "t.csv")}
    least, turns = (outcome(dispatch=word, **load).state for word in ("least-loaded", "round-robin"))
    alone = (least.done - least.first)[1:]
    assert alone == pytest.approx(alone[0], rel=1e-6)
    assert ((turns.done - turns.first)[1:] > 1.05 * alone[0]).tolist() == [False, True, False, True]


def test_mean_step_is_a_step():
    result = simulate(MODEL, GPU, gpus=2, isl=1000, osl=200, rate=8.0)
    assert sum(result["step_us"].values()) == pytest.approx(result["step"]["us"], rel=0.05)


def test_decode_table_holds_single_sequences():
    done = outcome(rate=0.001, requests=1, osl=2)
    d = done.decoding.deployment
    assert float(d.seconds(decode(np.array([1.0]), np.array([1001.0])))[0]) == pytest.approx(
        done.state.done[0] - done.state.first[0], rel=1e-3
    )


@pytest.mark.parametrize("rates", [5, "12", {1.0: 2.0}])
def test_what_is_no_list_of_rates_is_refused(rates):
    with pytest.raises(PerfModelError, match="rates: is no list of numbers"):
        simulate(MODEL, GPU, gpus=1, isl=10, osl=10, rates=rates)


def test_a_trace_may_be_a_path(tmp_path):
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,10,5\n1,20,5\n")
    assert simulate(MODEL, GPU, gpus=1, trace=tmp_path / "t.csv")["completed"] == 2
