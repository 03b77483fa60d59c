"""Plans as launch commands of serving engines. What a plan says and an engine has no flag for is in a comment."""

from __future__ import annotations

import re
from collections.abc import Callable

from perfmodel.errors import PerfModelError, did_you_mean
from perfmodel.planning.results import Plan, PlanResult, Side
from perfmodel.serving.memory import USABLE
from perfmodel.workload.model import ModelSpec

ROLES = ("both", "prefill", "decode")
NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


def repository(model: ModelSpec) -> str:
    """The Hugging Face repository that a model's source names, else its id."""
    found = re.match(r"https://huggingface\.co/([^/]+/[^/]+)/", model.source)
    return found.group(1) if found else model.id


def check_engine(engine: str) -> None:
    """Raises PerfModelError for an engine that is not known here."""
    if engine not in ENGINES:
        raise PerfModelError("no such engine", field="flags", value=engine, mend=did_you_mean(engine, ENGINES))


def launch(result: PlanResult, engine: str, plan: Plan | None = None) -> str:
    """The commands that start each kind of instance of `plan` (the best one), with how many of each. Raises PerfModelError."""
    check_engine(engine)
    plan = plan or result.plans[0]
    write, length = ENGINES[engine], result.isl + result.osl
    head = f"# {result.weights} on {plan.gpus} x {plan.gpu}, {plan.format}: the weights have to be stored so"
    if plan.prefill is None or plan.decode is None:
        one = Side(tp=plan.tp, pp=plan.pp, ep=plan.ep, dp=plan.dp, instances=plan.instances, gpus=plan.gpus)
        return "\n".join([head, _count(one, "for prompts and answers"), write(result.weights, plan, one, "both", length)])
    first, second = write(result.weights, plan, plan.prefill, "prefill", length), write(result.weights, plan, plan.decode, "decode", length)
    router = f"# A router in front: {ROUTERS[engine]}"
    return "\n".join([head, _count(plan.prefill, "for prompts"), first, _count(plan.decode, "for answers"), second, router])


def _count(side: Side, what: str) -> str:
    return f"# {side.instances} instance{'s' if side.instances > 1 else ''} {what}, {side.gpus // side.instances} GPUs each"


def _requests(plan: Plan, side: Side, role: str) -> int:
    """Requests at a time of one attention rank: what each engine's limit counts."""
    return 8 if role == "prefill" else max(-(-plan.batch // side.dp), 1)


def _vllm(weights: str, plan: Plan, side: Side, role: str, length: int) -> str:
    words = [f"vllm serve {weights}", f"--tensor-parallel-size {side.tp}"]
    words += [f"--pipeline-parallel-size {side.pp}"] if side.pp > 1 else []
    words += [f"--data-parallel-size {side.dp}"] if side.dp > 1 else []
    words += ["--enable-expert-parallel"] if side.ep > 1 else []
    words += [f"--max-num-seqs {_requests(plan, side, role)}", f"--max-model-len {length}", f"--gpu-memory-utilization {USABLE}"]
    words += ["--kv-cache-dtype fp8"] if plan.kv_format.startswith("fp8") else []
    words += [f"--kv-transfer-config '{NIXL}'"] if role != "both" else []
    return _wrapped(words)


def _sglang(weights: str, plan: Plan, side: Side, role: str, length: int) -> str:
    """--tp counts all ranks of a stage; --max-running-requests all requests of the instance."""
    words = [f"python -m sglang.launch_server --model-path {weights}", f"--tp-size {side.tp * side.dp}"]
    words += [f"--dp-size {side.dp} --enable-dp-attention"] if side.dp > 1 else []
    words += [f"--ep-size {side.ep}"] if side.ep > 1 else []
    words += [f"--pp-size {side.pp}"] if side.pp > 1 else []
    words += [f"--max-running-requests {_requests(plan, side, role) * side.dp}", f"--context-length {length}"]
    words += [f"--mem-fraction-static {USABLE}"]
    words += ["--kv-cache-dtype fp8_e4m3"] if plan.kv_format.startswith("fp8") else []
    words += [f"--disaggregation-mode {role}"] if role != "both" else []
    return _wrapped(words)


def _trtllm(weights: str, plan: Plan, side: Side, role: str, length: int) -> str:
    """--tp_size counts all ranks of a stage; data-parallel attention is set in the file of further options, for all of them or none."""
    name = "extra.yaml" if role == "both" else f"extra-{role}.yaml"
    words = [f"trtllm-serve {weights} --backend pytorch", f"--tp_size {side.tp * side.dp}"]
    words += [f"--pp_size {side.pp}"] if side.pp > 1 else []
    words += [f"--ep_size {side.ep}"] if side.ep > 1 else []
    words += [f"--max_batch_size {_requests(plan, side, role)}", f"--max_num_tokens {max(8192, length)}", f"--max_seq_len {length}"]
    words += [f"--kv_cache_free_gpu_memory_fraction {USABLE}", f"--extra_llm_api_options {name}"]
    options = [f"enable_attention_dp: {'true' if side.dp > 1 else 'false'}"]
    options += ["kv_cache_config: {dtype: fp8}"] if plan.kv_format.startswith("fp8") else []
    options += ["cache_transceiver_config: {backend: DEFAULT}"] if role != "both" else []
    notes = [f"# TensorRT-LLM has attention ranks of one GPU only, this plan has {side.tp}."] if side.dp > 1 and side.tp > 1 else []
    file = [f"cat > {name} <<END", *options, "END"]
    return "\n".join([*notes, *file, _wrapped(words)])


def _wrapped(words: list[str]) -> str:
    return " \\\n  ".join(words)


ENGINES: dict[str, Callable[[str, Plan, Side, str, int], str]] = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}
ROUTERS = {"vllm": "vllm-router, or Dynamo", "sglang": "sglang_router --pd-disaggregation", "trtllm": "trtllm-serve disaggregated"}
