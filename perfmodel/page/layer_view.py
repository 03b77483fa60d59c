"""One scenario of a MoE layer: its controls, and the answer beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nicegui import ui

from perfmodel.errors import PerfModelError
from perfmodel.page import words
from perfmodel.page.answers import fitted, layer_gap, offers_of
from perfmodel.page.figures import roofline, time_by_cause
from perfmodel.page.layer_controls import LayerControls
from perfmodel.page.layer_table import breakdown, legend
from perfmodel.page.parts import Notice, block, button, save_png, text
from perfmodel.page.state import LayerState
from perfmodel.page.work import compute
from perfmodel.report.gap import row_at

if TYPE_CHECKING:
    from perfmodel.page.view import Page


class LayerView:
    """Controls and answer of the scenario `side`, a or b, of a page."""

    def __init__(self, page: Page, side: str) -> None:
        self.page, self.side = page, side
        self.result: dict[str, Any] | None = None
        self.asked = 0
        self.moved = False
        """Whether the GPU was changed since the last answer: then formats and kernels that do not run on it give way."""
        self.shares = True
        with block("section", "scenario").props(f'aria-label="Scenario {side.upper()}"'):
            with block("div", "top"):
                self._draw_top()
            with block("div", "inputs card"):
                self.controls = LayerControls(self)
            self.body = block("div", "body")
            self.body.set_visibility(False)
            with self.body:
                self._draw_body()
        ui.timer(0, self.ask, once=True)

    @property
    def state(self) -> LayerState:
        """The scenario as it is asked for."""
        state = self.page.state.a if self.side == "a" else self.page.state.b
        return state or self.page.state.a

    def change(self, **fields: str) -> None:
        """Take over what the user changed, and answer anew."""
        changed = replace(self.state, **fields)
        if changed == self.state:
            return
        self.moved = self.moved or "gpu" in fields
        self.page.keep(**{self.side: changed})
        if "gpu" in fields:
            self.page.texts.turn()
        if set(fields) == {"at"} and self.result is not None:
            self.show()
        else:
            ui.timer(0, self.ask, once=True)

    async def ask(self) -> None:
        """Compute and show; an answer that a later question has overtaken is dropped."""
        self.asked += 1
        mine, spec, config = self.asked, self.page.state.spec, self.page.state.config
        try:
            state = self.state
            offers = await compute(lambda: offers_of(state, spec))
            if mine != self.asked:
                return
            if self.moved and offers is not None:
                state = fitted(state, offers)
                self.page.keep(**{self.side: state})
            self.moved = False
            self.controls.refresh(offers)
            result = await compute(lambda: layer_gap(state, spec, config))
        except PerfModelError as error:
            if mine == self.asked:
                self._refuse(error)
            return
        if mine == self.asked:
            self.result = result
            self.show()

    def _refuse(self, error: PerfModelError) -> None:
        self.result = None
        self.notice.show(words.said(error))
        self._visible(False)
        self.page.compared()

    def row(self) -> dict[str, Any] | None:
        """The explained row, where there is an answer."""
        return None if self.result is None else row_at(self.result, self.state.at)

    def _draw_top(self) -> None:
        """The result in a sentence and its figures, or what is wrong."""
        self.notice = Notice()
        self.result_card = block("div", "result card")
        with self.result_card:
            text("p", f"Scenario {self.side.upper()}", "only-compared")
            self.headline = text("h2", "Computing …", "headline").props("aria-live=polite")
            self.conditions = text("p", "", "muted")
            self.tiles = block("dl", "tiles")

    def _draw_body(self) -> None:
        """Plots and tables."""
        with block("div", "card"):
            with block("div", "cardhead"):
                text("h3", "Where the time goes")
                self.mode = ui.toggle({"share": "%", "time": "µs"}, value="share", on_change=self._toggle).props(
                    'dense no-caps unelevated aria-label="Unit of the plot"'
                )
                button("PNG", self._png_time, icon="image", hint="Save the plot")
                button("CSV", self._csv, icon="table_rows", hint="Save all rows")
            text("p", "A column for each token count, its time in µs above it. Choose a column to see it explained.", "muted")
            self.bars = ui.plotly({"data": [], "layout": {}}).classes("plot").on("plotly_click", self._clicked)
            self.legend = block("ul", "legend")
        self.detail = block("div", "card")
        with block("div", "card"):
            with block("div", "cardhead"):
                text("h3", "Roofline")
                button("PNG", self._png_roofline, icon="image", hint="Save the plot")
            text("p", "How close each token count comes to the roof of memory bandwidth and tensor peak.", "muted")
            self.roof = ui.plotly({"data": [], "layout": {}}).classes("plot").on("plotly_click", self._clicked)
        self.notes = block("ul", "notes")

    def _visible(self, answered: bool) -> None:
        for part in (self.result_card, self.body):
            part.set_visibility(answered)
            part.classes(remove="stale")

    def show(self) -> None:
        """Show the answer that is there."""
        row, result = self.row(), self.result
        if row is None or result is None:
            return
        self.notice.clear()
        self._visible(True)
        self.headline.text = words.headline(row, result)
        self.conditions.text = words.conditions(row, result)
        self._fill_tiles(row, result)
        self.controls.show(result, row)
        self._draw_plots(row, result)
        self.detail.clear()
        with self.detail:
            breakdown(row)
        self.notes.clear()
        with self.notes:
            for note in result["notes"]:
                text("li", words.in_labels(note))
        self.page.compared()

    def _draw_plots(self, row: dict[str, Any], result: dict[str, Any]) -> None:
        self.bars.update_figure(time_by_cause(result, row["tokens"], shares=self.shares))
        self.bars.props(f'role=img aria-label="Time by cause for each token count; at {row["tokens"]} tokens see the table below"')
        self.roof.update_figure(roofline(result, row["tokens"]))
        self.roof.props(f'role=img aria-label="Roofline; at {row["tokens"]} tokens {row["tflops"]:.4g} TFLOPS"')
        self.legend.clear()
        with self.legend:
            legend(result)

    def _fill_tiles(self, row: dict[str, Any], result: dict[str, Any]) -> None:
        self.tiles.clear()
        with self.tiles:
            for what, figure, remark in words.tiles(row, result):
                with block("div", "tile"):
                    text("dt", what)
                    text("dd", figure, "value")
                    text("dd", remark, "remark")

    def _toggle(self, event: Any) -> None:
        self.shares = event.value == "share"
        self.show()

    def _clicked(self, event: Any) -> None:
        points = event.args.get("points") or [{}]
        known = [str(row["tokens"]) for row in self.result["rows"]] if self.result else []
        data = points[0].get("customdata") or [None]
        if str(data[-1]) in known:
            self.change(at=str(data[-1]))

    def _png_time(self) -> None:
        row = self.row()
        if row is not None and self.result is not None:
            save_png(
                time_by_cause(self.result, row["tokens"], shares=self.shares),
                self._title("where the time goes, µs above each column"),
                self._name("time"),
            )

    def _png_roofline(self) -> None:
        row = self.row()
        if row is not None and self.result is not None:
            save_png(roofline(self.result, row["tokens"]), self._title("roofline"), self._name("roofline"))

    def _csv(self) -> None:
        if self.result is not None:
            ui.download.content(words.gap_csv(self.result), f"{self._name('gap')}.csv", "text/csv")

    def _title(self, what: str) -> str:
        assert self.result is not None
        return f"{self.result['model']} on {words.gpu_name(self.result['gpu'])}, {self.result['format']}: {what}"

    def _name(self, what: str) -> str:
        assert self.result is not None
        return words.file_name(self.result["model"], self.result["gpu"], what)
