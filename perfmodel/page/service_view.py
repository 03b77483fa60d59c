"""A whole service: what it must serve and within which limits, and the plans that do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nicegui import ui

from perfmodel.errors import PerfModelError
from perfmodel.formats import format_ids
from perfmodel.hardware.catalog import gpu_ids
from perfmodel.page import words
from perfmodel.page.answers import MOST_GPU_KINDS, service_plan
from perfmodel.page.figures import pareto
from perfmodel.page.parts import Notice, block, button, choice, entry, save_png, table, text
from perfmodel.page.state import YOURS, ServiceState, service_of
from perfmodel.page.work import compute
from perfmodel.planning.results import PlanResult
from perfmodel.workload import model_ids

if TYPE_CHECKING:
    from perfmodel.page.view import Page

MODES = {"auto": "whichever is best", "aggregated": "one kind of instance", "disaggregated": "prefill and decode apart"}


class ServiceView:
    """The form, and the answer beside it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.result: PlanResult | None = None
        self.asked = 0
        with block("section", "scenario").props('aria-label="Service"'):
            with block("div", "top"):
                self.notice = Notice()
                self.result_card = block("div", "result card")
                with self.result_card:
                    self.headline = text("h2", "Searching …", "headline").props("aria-live=polite")
                    self.facts = block("div", "facts")
            with block("div", "inputs card"):
                self._draw_form()
            self.body = block("div", "body")
            self.body.set_visibility(False)
            with self.body:
                self._draw_body()

    @property
    def state(self) -> ServiceState:
        """The service as it is asked for."""
        state = self.page.state
        return state.service or service_of(state.a, state.b)

    def change(self, **fields: str) -> None:
        """Take over what the user changed, and answer anew."""
        changed = replace(self.state, **fields)
        if changed != self.state:
            self.page.keep(service=changed)
            if "gpu" in fields:
                self.page.texts.turn()
            ui.timer(0, self.ask, once=True)

    def _draw_form(self) -> None:
        state, change = self.state, self.change
        with block("div", "fields"):
            self.model = choice("Model", self._models(), state.model, lambda v: change(model=v))
            chosen = [word for word in state.gpu.split(",") if word]
            offered = {name: name for name in (*self._gpus(), *chosen)} | self._gpus()
            self.gpu = ui.select(offered, label=f"GPUs, up to {MOST_GPU_KINDS} kinds", value=chosen, multiple=True,
                                 on_change=lambda event: change(gpu=",".join(event.value)))  # fmt: skip
            self.gpu.props(f"outlined dense use-chips max-values={MOST_GPU_KINDS}").classes("whole")
            with block("div", "links"):
                button("Paste a config.json", lambda: self.page.texts.open_config("a"), icon="content_paste")
                button("Edit a GPU", lambda: self.page.texts.open_spec(self.state.gpu.partition(",")[0], "a"), icon="tune")
            entry("Prompt (isl)", state.isl, lambda v: change(isl=v), unit="tokens", hint="Mean tokens of a prompt")
            entry("Answer (osl)", state.osl, lambda v: change(osl=v), unit="tokens", hint="Mean tokens of an answer")
            entry("First token (TTFT)", state.ttft_ms, lambda v: change(ttft_ms=v), unit="ms", hint="Most mean time; empty: no limit")
            entry("Each token (TPOT)", state.tpot_ms, lambda v: change(tpot_ms=v), unit="ms", hint="Most mean time; empty: no limit")
            entry("Load", state.rate, lambda v: change(rate=v), unit="requests/s", hint="Empty: as much as the GPUs serve")
            entry("GPUs of a kind", state.gpus, lambda v: change(gpus=v), unit="at most", hint="Empty: a node, or what the weights need")
            choice("Format of the weights", {"auto": "auto: the fastest", **{f: f for f in format_ids()}}, state.format,
                   lambda v: change(format=v))  # fmt: skip
            choice("Instances", MODES, state.mode, lambda v: change(mode=v))

    def _models(self) -> dict[str, str]:
        return ({YOURS: "your model"} if self.page.state.config else {}) | {name: name for name in model_ids()}

    def _gpus(self) -> dict[str, str]:
        return ({YOURS: "your GPU"} if self.page.state.spec else {}) | {name: name for name in gpu_ids()}

    def _draw_body(self) -> None:
        """Plans and fronts."""
        with block("div", "card"):
            with block("div", "cardhead"):
                text("h3", "The best plans")
                button("CSV", self._csv, icon="table_rows", hint="Save plans and Pareto fronts")
            text(
                "p",
                "Most tokens per GPU first, the best few of each GPU and mode. 3P + 1D: three instances run prompts, one decodes.",
                "muted",
            )
            self.plans = block("div")
        with block("div", "card"):
            with block("div", "cardhead"):
                text("h3", "Throughput against speed for a user")
                button("PNG", self._png, icon="image", hint="Save the plot")
            text("p", "The best that each GPU can do, limits not applied; stars are the plans above.", "muted")
            self.front = ui.plotly({"data": [], "layout": {}}).classes("plot tall").props('role=img aria-label="Pareto fronts"')
        self.notes = block("ul", "notes")

    def _visible(self, answered: bool) -> None:
        for part in (self.result_card, self.body):
            part.set_visibility(answered)
            part.classes(remove="stale")

    def use(self, **fields: str) -> None:
        """Plan for the user's own model, or their own GPU beside the chosen ones."""
        if "gpu" in fields:
            chosen = [word for word in self.state.gpu.split(",") if word]
            fields["gpu"] = ",".join(dict.fromkeys([*chosen, fields["gpu"]]))
        self.page.keep(service=replace(self.state, **fields))
        ui.timer(0, self.ask, once=True)

    def refresh(self) -> None:
        """Offer the user's own texts too, and show what is asked for."""
        chosen = [word for word in self.state.gpu.split(",") if word]
        for box, offered, value in ((self.model, self._models(), self.state.model), (self.gpu, self._gpus(), chosen)):
            offered = offered | {word: word for word in (value if isinstance(value, list) else [value]) if word not in offered}
            if box.options != offered or box.value != value:
                box.set_options(offered, value=value)

    async def ask(self) -> None:
        """Compute and show; an answer that a later question has overtaken is dropped."""
        self.refresh()
        self.asked += 1
        mine, state, spec, config = self.asked, self.state, self.page.state.spec, self.page.state.config
        self.body.classes(add="stale")
        try:
            result = await compute(lambda: service_plan(state, spec, config))
        except PerfModelError as error:
            if mine == self.asked:
                self.result = None
                self.notice.show(words.said(error))
                self._visible(False)
            return
        if mine == self.asked:
            self.result = result
            self._show(result)

    def _show(self, result: PlanResult) -> None:
        self.notice.clear()
        self._visible(True)
        self.headline.text = words.plan_headline(result)
        self.facts.clear()
        with self.facts:
            for line in words.plan_facts(result):
                text("p", line)
        self.plans.clear()
        with self.plans:
            table(words.plan_heads(result), words.plan_rows(result), label="The best plans", words=3)
        self.front.update_figure(pareto(result))
        self.notes.clear()
        with self.notes:
            for note in result.notes:
                text("li", words.in_labels(note))

    def _csv(self) -> None:
        if self.result is not None:
            ui.download.content(words.plan_csv(self.result), "plans.csv", "text/csv")

    def _png(self) -> None:
        if self.result is not None:
            title = f"{self.result.model}: prompts of {self.result.isl:,} tokens, answers of {self.result.osl:,}"
            save_png(pareto(self.result), title, "pareto")
