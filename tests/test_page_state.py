"""The page's words: they fit into an address and come back, and no word names a file."""

import asyncio
import csv
import io
import itertools
from dataclasses import replace

import pytest
from rich.console import Console

import perfmodel
from perfmodel.errors import PerfModelError
from perfmodel.page.answers import layer_gap, service_plan
from perfmodel.page.figures import roofline, time_by_cause
from perfmodel.page.inputs import gpu_of, model_of, read_config, read_spec
from perfmodel.page.state import LayerState, PageState, ServiceState, from_query, pack, service_of, to_query, unpack
from perfmodel.page.words import comparison, file_name, gap_csv, headline, in_labels, plan_csv, plan_facts, said
from perfmodel.report.gap import row_at
from perfmodel.report.plan import render
from perfmodel.workload import model_ids, moe_ids


def parse(query: str) -> dict[str, str]:
    from urllib.parse import parse_qsl

    return dict(parse_qsl(query, keep_blank_values=True))


@pytest.mark.parametrize(
    "state",
    [
        PageState(),
        PageState(a=LayerState(model="deepseek-v3", gpu="h200", format="", ep="8", at="4096"), b=LayerState(gpu="yours"), spec="id: é\n"),
        PageState(view="service", service=ServiceState(gpu="h100", tpot_ms="", rate=""), config='{"a": 1}'),
    ],
)
def test_an_address_holds_the_whole_page(state):
    assert from_query(parse(to_query(state))) == state


def test_a_short_address_leaves_the_rest_as_it_is():
    state = from_query({"gpu": "h200", "b.gpu": "b200", "nonsense": "1"})
    assert state.a == LayerState(gpu="h200")
    assert state.b == LayerState(gpu="b200")
    assert from_query({}) == PageState()


def test_a_service_starts_from_what_was_looked_at():
    assert from_query({"view": "service"}).service == ServiceState()
    assert from_query({"view": "service", "model": "gpt-oss-20b"}).service == ServiceState(model="gpt-oss-20b")
    assert from_query({"view": "service", "gpu": "yours", "plan.gpu": "h100"}).service == ServiceState(gpu="h100")
    assert from_query({"gpu": "h200"}).service is None  # until it is opened
    a, b = LayerState(model="deepseek-v3", gpu="yours"), LayerState(gpu="h100")
    assert service_of(a, None) == ServiceState(model="deepseek-v3", gpu="yours")
    assert service_of(a, b).gpu == "yours,h100"
    assert service_of(b, b).gpu == "h100"


@pytest.mark.parametrize("packed", ["!!!", "AAAA", pack("id: b200\n" * 100)[:-8], pack("0" * 2**20)], ids=["sign", "zlib", "cut", "bomb"])
def test_an_altered_text_is_refused(packed):
    with pytest.raises(PerfModelError, match="spec: cannot be read"):
        unpack(packed, "spec")


@pytest.mark.parametrize("word", ["../../etc/passwd", "/etc/passwd", "gpu_specs/b200.yaml", "b200.yaml", "yours.yaml", "~", "", "b200\0"])
def test_no_word_names_a_file(word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b200.yaml", "yours.yaml"):  # such files are there, and not looked at
        (tmp_path / name).write_text("id: [\n")
    with pytest.raises(PerfModelError, match="no such GPU"):
        gpu_of(word, "")
    with pytest.raises(PerfModelError, match="no such model"):
        model_of(word, "")
    with pytest.raises(PerfModelError, match="no such kernel profile"):
        layer_gap(LayerState(kernel=word), "", "")
    with pytest.raises(PerfModelError, match="unknown format"):
        layer_gap(LayerState(format=word or "-"), "", "")
    with pytest.raises(PerfModelError, match="reads no files here"):
        layer_gap(LayerState(routing=f"counts:{word}"), "", "")


def test_a_spec_says_its_line_as_the_command_does(run, tmp_path):
    from perfmodel.hardware.catalog import bundled_gpu

    text = bundled_gpu("h200").read_text().replace("bandwidth_GBps: {value: 4800", "bandwith_GBps: {value: 4800", 1)
    file = tmp_path / "my-gpu.yaml"
    file.write_text(text)
    code, _, err = run("spec", "validate", file)
    with pytest.raises(PerfModelError) as error:
        read_spec(text)
    line = 1 + text.split("bandwith")[0].count("\n")
    assert (code, error.value.line) == (2, line)
    assert err == f"perfmodel: {tmp_path}/{error.value}\n"


def test_a_pasted_config_is_a_model():
    config = """{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
      "torch_dtype": "bfloat16", "tie_word_embeddings": false}"""
    pasted, bundled = read_config(config), perfmodel.load_model("mixtral-8x7b")
    assert (pasted.moe, pasted.layers) == (bundled.moe, bundled.layers)
    assert read_config(" layer:hidden=512,inter=256,experts=8,topk=2 ").moe.experts == 8
    for text, problem in (("{\n,", r"config.json:2: is not JSON"), ("", "is empty"), ("[1]", "holds no JSON object")):
        with pytest.raises(PerfModelError, match=problem):
            read_config(text)


def test_the_answer_is_the_libraries():
    state = LayerState(model="deepseek-v3", gpu="h200", format="", ep="8", tokens="64, 16", at="64")
    result = layer_gap(state, "", "")
    expected = perfmodel.gap("deepseek-v3", "h200", ep=8, tokens=[16, 64])
    assert result == expected
    row = row_at(result, "64")
    assert row == expected["rows"][1]
    assert row_at(result, "") == row_at(result, None) == expected["rows"][1]  # the middle one
    assert row_at(result, 16) == expected["rows"][0]
    worst = max(row["losses"], key=lambda loss: loss["us"])
    assert headline(row, result).startswith("64 tokens on H200: ")
    assert f" % of the time is {worst['cause']}" in headline(row, result)


def test_the_headline_names_what_would_help_most():
    """More than half of the time can be weight traffic whose cure saves next to nothing, where another cause hides behind it."""
    losses = [{"cause": "weight traffic", "us": 56.0, "saves_us": 3.0}, {"cause": "scheduling", "us": 30.0, "saves_us": 28.0}]
    row, result = {"tokens": 64, "latency_us": 100.0, "tflops": 45.0, "losses": losses}, {"gpu": "h200", "peak_tflops": 989.0}
    said = "64 tokens on H200: 45 TFLOPS of 989; 56 % of the time is weight traffic"
    assert headline(row, result) == f"{said}, but what would help most is scheduling: −28 µs"
    losses[0]["saves_us"] = 40.0
    assert headline(row, result) == said


def test_one_layer_is_offered_for_models_that_have_moe_layers():
    assert moe_ids() == [name for name in model_ids() if perfmodel.load_model(name).moe is not None]
    assert "llama-3.1-8b" not in moe_ids()


def test_messages_speak_of_the_pages_fields():
    error = PerfModelError("no two instances fit 2 GPUs", field="gpus", mend="Give more --gpus, another --mode, or a smaller --kv-format.")
    kv = "a smaller kv format (of the command perfmodel)"
    assert said(error) == f"GPUs of a kind: no two instances fit 2 GPUs. Give more “GPUs of a kind”, another “Instances”, or {kv}."
    assert in_labels("Run `perfmodel gap --routing X`.") == "Run `perfmodel gap --routing X`."
    with pytest.raises(PerfModelError) as wrong:
        read_spec("id: [\n")
    assert said(wrong.value).startswith("Your own GPU, line ")
    assert "my-gpu" not in said(wrong.value, where=False)
    for bad in (LayerState(tokens="1,x"), LayerState(tp="0")):
        with pytest.raises(PerfModelError) as wrong:
            layer_gap(bad, "", "")
        assert "--" not in said(wrong.value)
    result = service_plan(ServiceState(model="gpt-oss-20b", gpu="h200", mode="aggregated", rate=""), "", "")
    assert any("with “GPUs of a kind” empty, an instance" in in_labels(note) for note in result.notes)


def test_two_rows_are_compared():
    slow, fast = {"latency_us": 90.0, "tokens": 64}, {"latency_us": 45.0, "tokens": 64}
    assert comparison(slow, fast) == "B is 2 times as fast: 90 µs for A, 45 µs for B (64 tokens)"
    assert comparison(fast, slow) == "A is 2 times as fast: 45 µs for A, 90 µs for B (64 tokens)"
    assert comparison(slow, slow).startswith("A and B take the same time")


def test_rows_of_a_csv_add_up():
    lines = list(csv.DictReader(io.StringIO(gap_csv(layer_gap(LayerState(), "", "")))))
    assert [line["tokens"] for line in lines] == LayerState().tokens.split(",")
    for line in lines:
        lost = sum(float(value) for name, value in line.items() if name.endswith(" us"))
        assert float(line["ideal_us"]) + lost == pytest.approx(float(line["latency_us"]), rel=1e-9)


def test_columns_are_whole_and_labels_do_not_collide():
    result = layer_gap(LayerState(tokens=",".join(map(str, range(1, 301))), at="64"), "", "")
    for shares, tops in ((True, [100.0] * 300), (False, [row["latency_us"] for row in result["rows"]])):
        drawn = time_by_cause(result, 64, shares=shares)
        for place, top in enumerate(tops):
            height = sum(trace["y"][place] for trace in drawn["data"])
            assert 0.9 * top < height <= top * (1 + 1e-9)  # causes under 1 % everywhere are left out
        labels = [note["text"] for note in drawn["layout"]["annotations"]]
        assert len(labels) <= 13
        assert sum("<b>" in label for label in labels) == 1
    one = time_by_cause({**result, "rows": result["rows"][:1]}, 1, shares=True)
    (frame,), (bar, *_) = one["layout"]["shapes"], one["data"]
    assert bar["width"] < frame["x1"] - frame["x0"] < 1.2 * bar["width"]
    assert (frame["x0"] + frame["x1"]) / 2 == sum(one["layout"]["xaxis"]["range"]) / 2 == bar["x"][0]
    reached = roofline(result, 64)["data"][-1]
    assert reached["x"] == [row["arithmetic_intensity"] for row in result["rows"]]
    assert sum(map(bool, reached["text"])) <= 13


def test_a_service_is_the_planners():
    state = ServiceState(model="gpt-oss-20b", gpu="h200", mode="aggregated", rate="", tpot_ms="20", gpus="1")
    result = service_plan(state, "", "")
    assert result == perfmodel.plan("gpt-oss-20b", "h200", mode="aggregated", isl=4000, osl=500, tpot_ms=20.0, gpus=1)
    out = io.StringIO()
    render(result, Console(file=out, width=1000))
    assert all(line in out.getvalue() for line in plan_facts(result)[1:])  # the terminal's sentences, the limits among them
    assert any(line.startswith("Without the limit on TPOT (20 ms)") for line in plan_facts(result))
    lines = list(csv.DictReader(io.StringIO(plan_csv(result))))
    assert [line["list"] for line in lines] == ["plan"] * len(result.plans) + ["pareto"] * len(result.pareto)
    for bad in ({"gpu": ""}, {"isl": "many"}, {"rate": "-1"}, {"gpus": "100000"}, {"gpu": "h200,../x"}):
        with pytest.raises(PerfModelError):
            service_plan(ServiceState(**bad), "", "")


def test_an_edited_gpu_is_never_named_as_the_bundled_one():
    from perfmodel.hardware.catalog import bundled_gpu

    spec = bundled_gpu("h200").read_text().replace("bandwidth_GBps: {value: 4800", "bandwidth_GBps: {value: 9600", 1)
    result = layer_gap(LayerState(gpu="yours", format="", tokens="64"), spec, "")
    assert [line["gpu"] for line in csv.DictReader(io.StringIO(gap_csv(result)))] == ["h200 (edited)"]
    assert headline(result["rows"][0], result).startswith("64 tokens on H200 (edited): ")
    assert file_name(result["model"], result["gpu"], "gap") == "gpt-oss-20b-h200-edited-gap"
    renamed = layer_gap(LayerState(gpu="yours", format="", tokens="64"), spec.replace("id: h200", "id: mine", 1), "")
    assert renamed["gpu"] == "mine"


def test_an_edited_gpu_is_planned_beside_the_one_it_came_from():
    from perfmodel.hardware.catalog import bundled_gpu

    spec = bundled_gpu("h200").read_text().replace("bandwidth_GBps: {value: 4800", "bandwidth_GBps: {value: 9600", 1)
    state = ServiceState(model="gpt-oss-20b", gpu="h200,yours", mode="aggregated", rate="", tpot_ms="20", gpus="1")
    both, alone = service_plan(state, spec, ""), service_plan(ServiceState(**{**vars(state), "gpu": "h200"}), "", "")
    assert [p for p in both.plans if p.gpu == "h200"] == list(alone.plans)
    assert both.plans[0].gpu == "h200 (edited)"
    assert both.plans[0].tokens_per_s_per_gpu > alone.plans[0].tokens_per_s_per_gpu
    assert service_plan(replace(state, gpu="yours", gpus=""), spec, "").notes[-1].endswith(": 8 h200 (edited)")
    small = spec.replace("capacity_GB: {value: 150.8", "capacity_GB: {value: 1.5", 1)
    beside = service_plan(state, small, "")
    assert beside.plans == alone.plans
    assert any("does not fit" in note for note in beside.notes)


def test_other_requests_come_between_two_pages():
    """Drawing a page takes the event loop: many at a time must not keep /health waiting for all of them."""
    mount = pytest.importorskip("perfmodel.page.mount", reason="needs the extra `server`")
    order = []

    async def draw(scope, receive, send):
        order.append("page")

    async def health():
        while order.count("page") < 3:
            order.append("health")
            await asyncio.sleep(0)

    async def all_at_once():
        page = mount.PageMount("/", draw)
        scope = {"type": "http", "path": "/", "method": "GET"}
        await asyncio.gather(*(page.handle(scope, None, None) for _ in range(3)), health())

    asyncio.run(all_at_once())
    places = [at for at, name in enumerate(order) if name == "page"]
    assert len(places) == 3
    assert min(b - a for a, b in itertools.pairwise([-1, *places])) > 1
