"""Sentences and tables of the page: the answer first, in the reader's words, each figure with its unit."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import asdict
from typing import Any

from perfmodel.errors import PerfModelError
from perfmodel.page.inputs import CONFIG_NAME, SPEC_NAME
from perfmodel.planning.results import PlanResult
from perfmodel.report.numbers import number, percent
from perfmodel.report.plan import facts, instances

LABELS = {
    "model": "Model", "MODEL": "Model", "gpu": "GPU", "format": "Format of the weights", "kernel": "Kernel", "tokens": "Token counts",
    "ep": "Expert parallel (ep)", "tp": "Tensor parallel (tp)", "routing": "Routing", "launch": "Launch", "comm": "Communication",
    "isl": "Prompt (isl)", "osl": "Answer (osl)", "ttft_ms": "First token (TTFT)", "tpot_ms": "Each token (TPOT)", "rate": "Load",
    "gpus": "GPUs of a kind", "mode": "Instances",
}  # fmt: skip
"""What the page calls the arguments of the library and the options of the command."""
PLACES = {SPEC_NAME: "Your own GPU", CONFIG_NAME: "Your own model"}


def in_labels(message: str) -> str:
    """A message of the library that names options, `--gpus`, with the page's labels; whole commands, in backticks, stay."""
    message = re.sub(r"without (--[a-z-]+)", r"with \1 empty", message)
    return re.sub(r"`[^`]*`|--([a-z][a-z-]*)", lambda m: _label(m[1]) if m[1] else m[0], message)


def _label(option: str) -> str:
    name = option.replace("-", "_")
    return f"“{LABELS[name]}”" if name in LABELS else f"{option.replace('-', ' ')} (of the command perfmodel)"


def said(error: PerfModelError, *, where: bool = True) -> str:
    """An error in the page's words, with the pasted text and the line where that is not plain from the place of the message."""
    field = LABELS.get(error.field or "", error.field)
    words = in_labels(str(PerfModelError(error.problem, field=field, value=error.value, mend=error.mend)))
    if not where or error.file is None:
        return words
    line = "" if error.line is None else f", line {error.line}"
    return f"{PLACES.get(str(error.file), error.file)}{line}: {words}"


EDITED = " (edited)"
"""Follows the id of a bundled GPU that the user changed, wherever it is named: on the page, in files and their names."""


def gpu_name(gpu: str) -> str:
    """`b200` as people write it; "B200 (edited)" for an edited one."""
    name = gpu.removesuffix(EDITED)
    return name.upper().replace("-", " ") + gpu[len(name) :]


def file_name(*words: str) -> str:
    """`gpt-oss-20b-h200-edited-gap`: letters, digits, dots and hyphens, for every file system."""
    return re.sub(r"[^\w.]+", "-", "-".join(words), flags=re.ASCII)[:100]


def headline(row: dict[str, Any], result: dict[str, Any]) -> str:
    """`64 tokens on B200: 45 TFLOPS of 9,000; 62 % of the time is weight traffic`, and the largest saving where that is another cause."""
    worst, best = (max(row["losses"], key=lambda loss: loss[by]) for by in ("us", "saves_us"))
    share = percent(worst["us"] / row["latency_us"])
    tokens = "1 token" if row["tokens"] == 1 else f"{row['tokens']:,} tokens"
    return (
        f"{tokens} on {gpu_name(result['gpu'])}: {number(row['tflops'])} TFLOPS of {result['peak_tflops']:,.0f}; "
        f"{share} of the time is {worst['cause']}{'' if best is worst else _instead(best)}"
    )


def _instead(best: dict[str, Any]) -> str:
    return f", but what would help most is {best['cause']}: −{number(best['saves_us'])} µs"


def conditions(row: dict[str, Any], result: dict[str, Any]) -> str:
    """What the row holds for: model, format, kernel, routing, launch, ranks."""
    status = "" if row["kernel_status"] == "measured" else f" ({row['kernel_status']}: not measured on this GPU)"
    ranks = "".join(f", {name} {result[name]}" for name in ("ep", "tp") if result[name] > 1)
    comm = ("; communication left out" if result["comm"] == "exclude" else "; with communication") if ranks else ""
    return (
        f"{result['model']} in {result['format']}{ranks}, kernel {row['kernel']}{status}, {result['routing']} routing, "
        f"{result['launch']} launch{comm}"
    )


def tiles(row: dict[str, Any], result: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(what, figure, remark) of the figures that stand out."""
    low, high = row["interval_us"]
    best = max(row["losses"], key=lambda loss: loss["saves_us"])
    return [
        ("Time of the layer", f"{number(row['latency_us'])} µs", f"80 % interval {number(low)} to {number(high)} µs"),
        (
            "Reached",
            f"{number(row['tflops'])} TFLOPS",
            f"{percent(row['tflops'] / result['peak_tflops'])} of {result['peak_tflops']:,.0f} TFLOPS",
        ),
        ("Physical floor", f"{number(row['floor_us'])} µs", "no kernel can be faster on this GPU"),
        ("Would help most", f"−{number(best['saves_us'])} µs", f"without {best['cause']}"),
    ]


def comparison(a: dict[str, Any], b: dict[str, Any]) -> str:
    """Which of two rows is faster, and by how much, both for the same tokens or not."""
    first, second = a["latency_us"], b["latency_us"]
    ratio = max(first, second) / min(first, second)
    times = f"{number(first)} µs for A, {number(second)} µs for B"
    at = f"{a['tokens']:,} tokens" if a["tokens"] == b["tokens"] else f"{a['tokens']:,} tokens in A, {b['tokens']:,} in B"
    if ratio < 1.005:
        return f"A and B take the same time: {times} ({at})"
    return f"{'B' if second < first else 'A'} is {ratio:.3g} times as fast: {times} ({at})"


def gap_csv(result: dict[str, Any]) -> str:
    """The rows of a gap, a column a cause."""
    head = ["gpu", "model", "format", "kernel", "tokens", "latency_us", "interval_low_us", "interval_high_us", "tflops", "peak_tflops",
            "bound", "arithmetic_intensity_flop_per_byte", "floor_us", "ideal_us"]  # fmt: skip
    causes = [loss["cause"] for loss in result["rows"][0]["losses"]]
    lines: list[list[Any]] = [[*head, *(f"{cause} us" for cause in causes)]]
    for row in result["rows"]:
        fixed = [*(result[name] for name in ("gpu", "model", "format")), row["kernel"], row["tokens"], row["latency_us"],
                 *row["interval_us"], row["tflops"], result["peak_tflops"], row["bound"], row["arithmetic_intensity"],
                 row["floor_us"], row["ideal_us"]]  # fmt: skip
        lines.append([*fixed, *(loss["us"] for loss in row["losses"])])
    return _csv(lines)


PLAN_COLUMNS = (
    "gpu", "mode", "format", "gpus", "tp", "pp", "ep", "dp", "batch", "ttft_ms", "tpot_ms", "tokens_per_s_per_gpu",
    "tokens_per_s_per_user", "cost_per_million_tokens", "watts_per_gpu", "memory_GB_per_gpu",
)  # fmt: skip


def plan_csv(result: PlanResult) -> str:
    """The plans and then the Pareto fronts, a line each."""
    lines: list[list[Any]] = [["list", *PLAN_COLUMNS]]
    for name, plans in (("plan", result.plans), ("pareto", result.pareto)):
        lines += [[name, *(getattr(p, column) for column in PLAN_COLUMNS)] for p in plans]
    return _csv(lines)


def _csv(lines: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def scenario_yaml(states: dict[str, Any], spec: str, config: str) -> str:
    """The scenarios as YAML, with the texts that they rest on."""
    from ruamel.yaml import YAML
    from ruamel.yaml.scalarstring import LiteralScalarString

    data: dict[str, Any] = {name: {k: v for k, v in asdict(state).items() if v != ""} for name, state in states.items()}
    data |= {name: LiteralScalarString(text) for name, text in (("spec", spec), ("config", config)) if text}
    text = io.StringIO()
    YAML().dump(data, text)
    return text.getvalue()


def plan_headline(result: PlanResult) -> str:
    """`3 B200 serve gpt-oss-120b best: 8,333 tokens/s per GPU, 25 ms a token`."""
    best = result.plans[0]
    verb = "serves" if best.gpus == 1 else "serve"
    return (
        f"{best.gpus} {gpu_name(best.gpu)} {verb} {result.model} best: {number(best.tokens_per_s_per_gpu)} tokens/s per GPU, "
        f"{number(best.tpot_ms)} ms a token"
    )


def plan_facts(result: PlanResult) -> list[str]:
    """What binds the best plan and what would help it, as in the terminal."""
    return [f"{result.searched:,} configurations were searched.", *facts(result)]


def plan_rows(result: PlanResult) -> list[list[str]]:
    """The cells of the table of plans, in the order of PLAN_HEADS."""
    rows = []
    for p in result.plans:
        cost = "–" if p.cost_per_million_tokens is None else number(p.cost_per_million_tokens)
        figures = (p.batch, p.ttft_ms, p.tpot_ms, p.tokens_per_s_per_gpu, p.tokens_per_s_per_user)
        rows.append([f"{p.gpus} × {gpu_name(p.gpu)}", instances(p), p.format, *map(number, figures), cost, number(p.watts_per_gpu)])
    return rows


def plan_heads(result: PlanResult) -> list[tuple[str, str]]:
    """(name, unit) of the columns of the table of plans."""
    return [
        ("GPUs", ""), ("Instances", ""), ("Format", ""), ("Batch", "requests"), ("TTFT", "ms"), ("TPOT", "ms"), ("Per GPU", "tokens/s"),
        ("Per user", "tokens/s"), ("Cost", f"{result.currency}/Mtoken"), ("Power", "W/GPU"),
    ]  # fmt: skip
