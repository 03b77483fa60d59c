"""Plans in a terminal: a table with a line a plan, what binds the best one and what would help it."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfmodel.planning.results import Plan, PlanResult
from perfmodel.planning.services import UNITS, WORDS
from perfmodel.report.gap import changed
from perfmodel.report.numbers import number
from perfmodel.serving.anchoring import in_words


def render(result: PlanResult, console: Console) -> None:
    """Print the plans, the best plan's bounds, and the notes."""
    formats = " or ".join(dict.fromkeys(plan.format for plan in result.plans))
    console.print(Text(f"{result.model} in {formats}: prompts of {result.isl:,} tokens, answers of {result.osl:,}", style="bold"))
    if result.changes:
        console.print(Text(f"on GPUs{changed(result.changes)}", style="bold"))
    console.print(Text(f"{result.searched:,} configurations; the best of each GPU and mode, most tokens a GPU first"))
    console.print(_table(result))
    for line in facts(result):
        console.print(Text(line))
    for line in result.notes:
        console.print(Text(f"note: {line}", style="yellow"))


def _table(result: PlanResult) -> Table:
    """Columns that hold figures never wrap; ways to share a model do where the terminal is narrow."""
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("GPUs", no_wrap=True)
    table.add_column("instances", min_width=12)
    for name in ("batch", "TTFT\nms", "TPOT\nms", "tok/s\n/GPU", "tok/s\n/user", f"{result.currency}\n/Mtok", "W\n/GPU"):
        table.add_column(name, justify="right", no_wrap=True)
    several = len({plan.format for plan in result.plans}) > 1
    for plan in result.plans:
        cost = "-" if plan.cost_per_million_tokens is None else number(plan.cost_per_million_tokens)
        figures = (plan.batch, plan.ttft_ms, plan.tpot_ms, plan.tokens_per_s_per_gpu, plan.tokens_per_s_per_user)
        ways = instances(plan) + (f", {plan.format}" if several else "")
        table.add_row(f"{plan.gpus} {plan.gpu}", ways, *(number(x) for x in figures), cost, number(plan.watts_per_gpu))
    return table


def instances(plan: Plan) -> str:
    """`4 x tp8`, or `2P tp4 + 3D tp1 dp16 ep16`."""
    if plan.prefill is None or plan.decode is None:
        return f"{plan.instances} x {_ways(plan)}"
    return f"{plan.prefill.instances}P {_ways(plan.prefill)} + {plan.decode.instances}D {_ways(plan.decode)}"


def _ways(side: object) -> str:
    counts = [(name, getattr(side, name)) for name in ("tp", "pp", "dp", "ep")]
    return " ".join(f"{name}{count}" for name, count in counts if name == "tp" or count > 1)


def facts(result: PlanResult) -> list[str]:
    """Sentences on the best plan: its interval, what binds it, what would help it, its step, what the limits cost."""
    return [*_best(result), *_limits(result)]


def _best(result: PlanResult) -> list[str]:
    plan = result.plans[0]
    (low, high), (ttft, tpot) = plan.interval.tokens_per_s_per_gpu, (plan.interval.ttft_ms, plan.interval.tpot_ms)
    lines = [
        f"80 % interval of the best plan ({plan.interval.status}): {number(low)} to {number(high)} tokens/s/GPU, "
        f"TTFT {number(ttft[0])} to {number(ttft[1])} ms, TPOT {number(tpot[0])} to {number(tpot[1])} ms."
    ]
    if plan.anchored is not None:
        lines.append(f"The best plan is {in_words(plan.anchored)}.")
    if plan.binds:
        lines.append(f"The best plan is bound by {', '.join(plan.binds)}.")
    if plan.helps:
        lines.append("It would gain: " + ", ".join(f"{100 * help_.gain:+.0f} % from {help_.change}" for help_ in plan.helps) + ".")
    top = sorted(plan.step.items(), key=lambda item: -item[1])
    lines.append("Its decode step: " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in top if share >= 0.005) + ".")
    return lines


def _limits(result: PlanResult) -> list[str]:
    return [
        f"Without the limit on {WORDS[effect.limit]} ({effect.value:g}{UNITS[effect.limit]}): {number(effect.without)} tokens/s/GPU "
        f"({100 * effect.gain:+.0f} %)."
        for effect in result.limits
    ]
