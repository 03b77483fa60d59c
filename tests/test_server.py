"""The HTTP API: what Python and the command say, in JSON; mistakes named, files out of reach, limits kept."""

import json
import re
import sys
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import perfmodel
from perfmodel.api import gaps
from perfmodel.gap_request import MOST_ROWS, GapRequest
from perfmodel.gap_result import GapResult
from perfmodel.server import limits
from perfmodel.server.answers import answers
from perfmodel.server.app import create_app
from perfmodel.server.openapi import EXAMPLES, request_schemas

GAP = {"model": "gpt-oss-20b", "gpu": "b200", "format": "nvfp4", "tokens": [1, 64, 4096]}
CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 4, "vocab_size": 1000, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    "intermediate_size": 6144, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip


def said(name: str, body: object) -> tuple[int, dict]:
    """Status and object that an endpoint answers a body with, in this process."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    ((status, answer),) = answers([(name, raw)], log=lambda line: pytest.fail(line))
    return status, json.loads(answer)


@pytest.fixture(scope="module")
def client():
    with TestClient(create_app()) as one:
        yield one


class TestAnswers:
    def test_a_gap_is_the_commands(self, run):
        words = ("gap", "gpt-oss-20b", "--gpu", "b200", "--format", "nvfp4", "--tokens", "1,64,4096", "--set", "memory.bandwidth_GBps=9600")
        assert said("gap", {**GAP, "changes": ["memory.bandwidth_GBps=9600"]}) == (200, json.loads(run(*words, "--json")[1]))

    def test_a_gap_has_its_type(self):
        GapResult.model_validate(perfmodel.gap("deepseek-v3", "h200", tokens=[3], ep=8, against=4000.0))

    @pytest.mark.parametrize("routing", ["uniform", "zipf:1", "powerlaw:1.2", "balanced"])
    def test_rows_do_not_know_each_other(self, routing):
        """To the last bit: a server computes the questions of several clients together."""
        request = GapRequest(model="qwen3-30b-a3b", gpu="h100", routing=routing, ep=4)
        several = [[1], [17, 300], [5000], [64]]
        assert gaps(request, several) == [gaps(request, [tokens])[0] for tokens in several]

    def test_questions_asked_together_are_answered_as_each_alone(self):
        bodies = [{**GAP, "tokens": [t]} for t in (1, 9, 300)] + [{**GAP, "tokens": []}, {**GAP, "gpu": "b20"}, {**GAP, "gpu": "h200"}]
        jobs = [("gap", json.dumps(body).encode()) for body in bodies] + [("gap", b"["), ("gpu", b"b200")]
        assert answers(jobs, pytest.fail) == [answers([job], pytest.fail)[0] for job in jobs]

    def test_predict_is_a_step_without_tokens_and_a_layer_with(self, run):
        step = {"model": "deepseek-v3", "gpu": "h200", "batch": 64, "tp": 8}
        out = run("predict", "deepseek-v3", "--gpu", "h200", "--phase", "decode", "--batch", "64", "--tp", "8", "--json")[1]
        assert said("predict", step) == (200, json.loads(out))
        out = run("predict", "gpt-oss-20b", "--gpu", "b200", "--tokens", "64", "--json")[1]
        assert said("predict", {"model": "gpt-oss-20b", "gpu": "b200", "tokens": [64]}) == (200, json.loads(out))

    def test_a_plan_is_the_commands(self, run):
        out = run(
            "plan", "gpt-oss-20b", "--gpu", "h200", "--gpus", "2", "--tpot-ms", "20", "--set", "memory.bandwidth_GBps=9600", "--json"
        )[1]
        body = {"model": "gpt-oss-20b", "gpu": "h200", "gpus": 2, "tpot_ms": 20, "changes": ["memory.bandwidth_GBps=9600"]}
        assert said("plan", body) == (200, json.loads(out))

    def test_a_simulation_is_the_commands(self, run):
        words = ("--gpus", "2", "--isl", "100", "--osl", "20", "--requests", "50", "--rates", "1,2", "--json")
        body = {"model": "qwen3-30b-a3b", "gpu": "h100", "gpus": 2, "isl": 100, "osl": 20, "requests": 50, "rates": [1, 2]}
        assert said("simulate", body) == (200, json.loads(run("simulate", "qwen3-30b-a3b", "--gpu", "h100", *words)[1]))

    def test_a_config_in_the_request_is_the_model_of_its_file(self, tmp_path):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG))
        there = perfmodel.gap(tmp_path, "h100", tokens=[64])
        status, here = said("gap", {"model": CONFIG, "gpu": "h100", "tokens": [64]})
        assert (status, here["rows"], here["layer"]) == (200, there["rows"], there["layer"])

    def test_a_gpu_in_the_request_is_the_one_of_its_id(self):
        gpu = said("gpu", b"b200")[1]
        assert said("gap", {**GAP, "gpu": gpu})[1] == said("gap", GAP)[1]
        faster = {**gpu, "memory": {**gpu["memory"], "bandwidth_GBps": 9600}}
        asked = ["memory.bandwidth_GBps=9600"]
        assert said("gap", {**GAP, "gpu": faster})[1]["rows"] == said("gap", {**GAP, "changes": asked})[1]["rows"]

    def test_the_examples_are_answered(self):
        names = {"GapRequest": "gap", "PredictRequest": "predict", "PlanRequest": "plan", "SpecRequest": "validate"}
        for kind, name in names.items():
            for body in EXAMPLES[kind].values():
                assert said(name, body)[0] == 200
        assert said("simulate", {**EXAMPLES["SimulationRequest"]["Poisson arrivals"], "requests": 20})[0] == 200


class TestMistakes:
    @pytest.mark.parametrize(
        ("words", "body", "field"),
        [
            (("gpt-oss-20b", "--gpu", "b20"), {**GAP, "gpu": "b20"}, "gpu"),
            (("gpt-oss-20b", "--gpu", "b200", "--tokens", "0"), {**GAP, "tokens": [0]}, "tokens"),
            (("gpt-oss-20b", "--gpu", "b200", "--format", "fp5"), {**GAP, "format": "fp5"}, "format"),
            (("gpt-oss-20b", "--gpu", "b200", "--ep", "7"), {**GAP, "ep": 7}, "ep"),
            (("gpt-oss-20b", "--gpu", "b200", "--routing", "zipf:x"), {**GAP, "routing": "zipf:x"}, "routing"),
            (
                ("gpt-oss-20b", "--gpu", "b200", "--set", "memory.bandwidth=9"),
                {**GAP, "changes": ["memory.bandwidth=9"]},
                "memory.bandwidth",
            ),
        ],
    )
    def test_messages_are_the_commands(self, run, words, body, field):
        code, _, message = run("gap", *words)
        status, problem = said("gap", body)
        assert (code, status) == (2, 422)
        assert "perfmodel: " + problem["message"] == message.strip()
        assert problem["field"] == field
        assert problem["mend"]

    def test_a_plan_that_no_gpu_keeps_is_a_mistake_too(self, run):
        status, problem = said("plan", {"model": "gpt-oss-20b", "gpu": "h200", "tpot_ms": 1e-3})
        assert (status, "perfmodel: " + problem["message"]) == (
            422,
            run("plan", "gpt-oss-20b", "--gpu", "h200", "--tpot-ms", "0.001")[2].strip(),
        )

    @pytest.mark.parametrize(
        ("raw", "words"),
        [
            (b"{", "line 1: the body is no JSON"),
            (b'{\n\n"model": x}', "line 3: the body is no JSON"),
            (b'{"model": "\xff"}', "not UTF-8"),
            (b"[1]", "no JSON object"),
            (b'{"a":' * 5000 + b"1" + b"}" * 5000, "too deep"),
            (b'{"a":' * 60 + b"1" + b"}" * 60, "nested deeper"),
            (b'{"tokens": [' + b"9" * 5000 + b"]}", "number too long"),
            (b'{"model": "\\ud800", "gpu": "b200"}', "no such model"),
            (b'{"model": "gpt-oss-20b", "gpu": "b200", "against": NaN}', "positive number"),
            (b'{"model": "gpt-oss-20b", "gpu": "b200", "kernal": "auto"}', "Did you mean kernel"),
            (b'{"model": "gpt-oss-20b", "gpu": {"id": "x"}}', "gpu.name: field required"),
            (b'{"model": {"hidden_size": -4}, "gpu": "b200"}', "config.json"),
            (b'{"model": 5, "gpu": "b200"}', "is no model"),
            (b'{"gpu": "b200"}', "model: field required"),
            (b'{"model": "gpt-oss-20b", "gpu": "b200", "changes": {"a": 1}}', "list of at most 64 texts"),
        ],
    )
    def test_hostile_bodies(self, raw, words):
        for name in ("gap", "predict", "plan", "simulate"):
            status, problem = said(name, raw)
            assert status == 422
            if name == "gap":
                assert words in problem["message"]

    @pytest.mark.parametrize(
        ("name", "body"),
        [
            ("plan", {"gpu": "h200", "gpus": 4096}),
            ("plan", {"gpu": ["h200"] * 9}),
            ("simulate", {"gpu": "h100", "gpus": 1, "rate": 1.0, "isl": 10, "osl": 10, "requests": 5_000_000}),
            ("simulate", {"gpu": "h100", "gpus": 1, "isl": 10, "osl": 10, "rates": [1.0] * 21}),
        ],
    )
    def test_too_much_for_a_server(self, name, body):
        status, problem = said(name, {"model": "gpt-oss-20b", **body})
        assert (status, "more than this server computes" in problem["message"]) == (422, True)


OPENED: list[str] | None = None
sys.addaudithook(lambda event, args: OPENED.append(str(args[0])) if OPENED is not None and event in ("open", "os.listdir") else None)


class TestFiles:
    @pytest.mark.parametrize("form", ["{}", "counts:{}", "./{}", "layer:{}", "file://{}"])
    def test_no_field_of_any_request_reaches_a_file(self, form, tmp_path):
        """Every field that may hold text gets a path to a file that is there: it is refused, and nothing opens the file."""
        global OPENED
        secrets = [tmp_path / name for name in ("config.json", "secret.yaml", "secret.csv", "secret.npy")]
        for secret in secrets:
            secret.write_text("16\n16\n")
        plan, simulation = EXAMPLES["PlanRequest"]["two GPUs within a limit"], {**EXAMPLES["SimulationRequest"]["Poisson arrivals"]}
        base = {"gap": GAP, "predict": {"model": "gpt-oss-20b", "gpu": "b200"}, "plan": plan, "simulate": {**simulation, "requests": 5}}
        schemas = request_schemas()
        kinds = {"gap": "GapRequest", "predict": "StepRequest", "plan": "PlanRequest", "simulate": "SimulationRequest"}
        for name, body in base.items():
            said(name, body)  # what is read once, is read now
            for field in [*schemas[kinds[name]]["properties"], "trace", "prices"]:
                for secret in secrets:
                    word = form.format(secret)
                    for value in (word, [word], {"file": word}):
                        OPENED = []
                        status, _ = said(name, {**body, field: value})
                        opened, OPENED = OPENED, None
                        assert status == 422, (name, field, value)
                        assert not [path for path in opened if str(tmp_path) in path], (name, field, value)

    def test_what_text_the_requests_hold_is_known(self):
        """A new field of a request type that holds text needs a look: may it name a file? Then `inputs.FILES` has to name it."""
        known = {
            "model", "gpu", "format", "kernel", "routing", "launch", "comm", "clock", "placement", "changes", "phase", "cache_format",
            "backend", "kv_format", "mode", "arrivals", "lengths", "speculative", "dispatch", "spec", "diff",
        }  # fmt: skip
        schemas = [schema for schema in request_schemas().values() if "properties" in schema]
        texts = {name for schema in schemas for name, field in schema["properties"].items() if '"string"' in json.dumps(field)}
        assert texts == known


class TestHttp:
    def test_health_page_and_reference(self, client):
        assert client.get("/health").json()["status"] == "ok"
        for page in ("/", "/docs"):
            html = client.get(page).text
            assert "<html" in html
            assert 'src="http' not in html
        assert "/v1/gap" in client.get("/docs").text

    def test_the_catalogue(self, client):
        assert "b200" in [gpu["id"] for gpu in client.get("/v1/gpus").json()["gpus"]]
        assert client.get("/v1/gpus/h200").json()["memory"]["bandwidth_GBps"]["status"] == "datasheet"
        assert "deepseek-v3" in [model["model"] for model in client.get("/v1/models").json()["models"]]
        assert client.get("/v1/models/gpt-oss-20b").json()["experts"] == 32
        assert "trtllm-gen" in [profile["id"] for profile in client.get("/v1/profiles").json()["profiles"]]
        assert client.get("/v1/specs/schema").json()["title"]

    def test_what_is_not_there(self, client):
        reply = client.get("/v1/gpus/b20")
        assert (reply.status_code, "Did you mean b200" in reply.json()["message"]) == (404, True)
        assert (client.get("/nope").status_code, client.get("/nope").json()["mend"]) == (404, "GET /openapi.json lists what there is.")
        assert client.get("/v1/gap").status_code == 405
        assert client.get("/v1/gpus/..%2F..%2Fetc%2Fpasswd").status_code == 404

    def test_a_gap(self, client):
        reply = client.post("/v1/gap", json=GAP)
        assert (reply.status_code, reply.json()) == (200, json.loads(json.dumps(perfmodel.gap(**GAP))))
        assert reply.headers["content-type"] == "application/json"

    def test_a_body_that_is_too_large(self, client):
        reply = client.post("/v1/gap", json={**GAP, "tokens": list(range(1, 300_000))})
        assert (reply.status_code, reply.json()["message"].startswith("the body is larger than 1024 KiB")) == (413, True)
        reply = client.post("/v1/gap", content=b"", headers={"content-length": str(2**40)})
        assert reply.status_code == 413

    def test_every_way_to_fail_has_the_one_shape(self, client):
        for path, methods in client.get("/openapi.json").json()["paths"].items():
            for method, facts in methods.items():
                assert facts["summary"], path
                failures = {status: answer for status, answer in facts["responses"].items() if status != "200"}
                shapes = {answer["content"]["application/json"]["schema"]["$ref"] for answer in failures.values()}
                assert shapes <= {"#/components/schemas/Problem"}, path
                assert "500" in failures or path in ("/health", "/v1/specs/schema"), path
                assert method == "get" or facts["requestBody"]["content"]["application/json"]["examples"], path

    def test_the_reference_can_be_used_without_eyes(self, client):
        html = client.get("/docs").text
        for tag in re.findall(r"<(?:textarea|nav)[^>]*>", html):
            assert "aria-label=" in tag
        assert html.count("<input ") == html.count("<label>")

    def test_the_limits_are_those_of_the_documentation(self):
        page = (Path(__file__).parents[1] / "docs" / "server.md").read_text()
        plan, simulated = limits.MOST_PLANNED, limits.MOST_SIMULATED
        assert (
            f"at most {MOST_ROWS:,} token counts; of plans {plan['gpus']:,} GPUs of each of {limits.MOST_KINDS} kinds "
            f"in {limits.MOST_FORMATS} formats; of simulations {simulated['requests']:,} requests, "
            f"{limits.MOST_RATES} rates, {simulated['gpus']:,} GPUs."
        ) in page
        assert f"bodies over {limits.SMALL_BODY >> 10} KiB (specifications: {limits.SMALL_SPEC >> 10} KiB)" in page
        assert f"a body over {limits.MOST_BODY >> 20} MiB" in page

    def test_every_reference_in_openapi_is_there(self, client):
        api = client.get("/openapi.json").json()
        names = {part.split('"')[0] for part in json.dumps(api).split("#/components/schemas/")[1:]}
        assert names <= set(api["components"]["schemas"])
        assert api["components"]["schemas"]["PlanRequest"]["properties"]["gpus"]["anyOf"][0]["maximum"] == limits.MOST_PLANNED["gpus"]
        assert "trace" not in api["components"]["schemas"]["SimulationRequest"]["properties"]
