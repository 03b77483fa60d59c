"""The page: one layer, alone or against another, and a whole service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from typing import Any

from fastapi import Request
from fastapi.responses import PlainTextResponse, Response
from nicegui import Client, ui

from perfmodel.errors import PerfModelError
from perfmodel.page import words
from perfmodel.page.layer_view import LayerView
from perfmodel.page.own_texts import OwnTexts
from perfmodel.page.parts import Notice, block, button, text
from perfmodel.page.service_view import ServiceView
from perfmodel.page.state import MOST_ADDRESS, YOURS, PageState, from_query, service_of, to_query

MOST_OPEN, UNCLAIMED_S = 500, 10.0
"""Pages at a time, about half a MB each; seconds after which one that no browser has claimed makes room where they are short."""
THEMES: dict[bool | None, tuple[str, bool | None]] = {
    None: ("brightness_auto", True),
    True: ("dark_mode", False),
    False: ("light_mode", None),
}
"""Icon of each theme, and the theme that comes after it; None follows the system."""


@ui.page("/", title="perfmodel: where the FLOPS go", dark=None)
def index(request: Request) -> Response | None:
    """The page, as its address asks for it; 503 where so many are open that memory would run short."""
    if len(Client.instances) > MOST_OPEN:
        Client.prune_instances(client_age_threshold=UNCLAIMED_S)
    if len(Client.instances) > MOST_OPEN:
        return PlainTextResponse("Too many pages are open. Try again in a minute.\n", 503, {"retry-after": "60"})
    Page(request.query_params)
    return None


class Page:
    """One visitor's page. `state` is all that it shows; whatever changes it goes through `keep`."""

    def __init__(self, query: Mapping[str, str]) -> None:
        problem = ""
        try:
            self.state = from_query(query)
        except PerfModelError as error:
            self.state, problem = PageState(), str(error)
        ui.add_css(files("perfmodel.page").joinpath("style.css").read_text(encoding="utf-8"))
        ui.colors(primary="#1c5d99", accent="#e8590c", dark="#171b21", dark_page="#0f1216")
        self.dark = ui.dark_mode(None)
        self._draw_header()
        with block("div", "content"):
            self.notice = Notice()
            if problem:
                self.notice.show(problem)
            self.verdict = text("p", "", "comparison card").props("aria-live=polite")
            self.texts = OwnTexts(self)
            self.layers = block("div", "layers")
            self.plan = block("div", "plan")
        with block("footer"), block("p"):
            text("span", "1 µs = 10⁻⁶ s, 1 TFLOPS = 10¹² FLOP/s, peaks are dense ones. The same figures come from the ")
            text("a", "HTTP API").props("href=docs")
            text("span", " and from the command perfmodel.")
        self.views: dict[str, LayerView] = {}
        self.service: ServiceView | None = None
        self._draw_views()

    def _draw_header(self) -> None:
        with block("header"):
            with block("div", "brand"):
                text("h1", "perfmodel")
                text("p", "Where the FLOPS of a Mixture-of-Experts layer go", "muted")
            with block("nav").props('aria-label="Views"'):
                self.tabs = ui.toggle({"layer": "One layer", "service": "Whole service"}, value=self.state.view,
                                      on_change=lambda event: self._turn(event.value)).props("no-caps unelevated dense")  # fmt: skip
            with block("div", "tools"):
                self.compare = button("Compare", self._compare, icon="compare_arrows", hint="A second scenario beside this one")
                button("Share", self._share, icon="link", hint="Copy the address, which holds the whole scenario")
                button("YAML", self._save, icon="download", hint="Save the scenario")
                self.theme = button("", self._next_theme, icon="brightness_auto", hint="Follow the system, dark or light")
                self.theme.props('aria-label="Theme: system"')

    def _draw_views(self) -> None:
        """Draw what is not there yet, and show what is asked for."""
        layer = self.state.view == "layer"
        wanted = [side for side in ("a", "b") if side == "a" or self.state.b is not None]
        if layer and list(self.views) != wanted:
            self.layers.clear()
            with self.layers:
                self.views = {side: LayerView(self, side) for side in wanted}
        self.layers.classes(add="two" if self.state.b else "", remove="" if self.state.b else "two")
        if not layer and self.service is None:
            with self.plan:
                self.service = ServiceView(self)
        self.layers.set_visibility(layer)
        self.plan.set_visibility(not layer)
        self.compare.set_visibility(layer)
        self.compare.text = "Compare" if self.state.b is None else "One scenario"
        self.compared()
        self.texts.turn()
        if not layer and self.service is not None:
            ui.timer(0, self.service.ask, once=True)

    def keep(self, **fields: Any) -> None:
        """Change the state, and the address with it."""
        self.state = replace(self.state, **fields)
        query = to_query(self.state)
        if len(query) <= MOST_ADDRESS:
            ui.navigate.history.replace(f"?{query}")

    def uses(self, word: str, *, shown: bool = False) -> bool:
        """Whether some scenario, or the service, is asked with this GPU; where `shown`, one that is shown."""
        layers = [layer.gpu for layer in (self.state.a, self.state.b) if layer is not None]
        service = self.state.service.gpu.split(",") if self.state.service is not None else []
        asked = service if self.state.view == "service" else layers
        return word in (asked if shown else [*layers, *service])

    def use(self, side: str, **fields: str) -> None:
        """Ask with the user's own texts: the scenario `side`, or the service where that is shown; whoever uses the texts asks anew."""
        if self.state.view == "service" and self.service is not None:
            self.service.use(**fields)
            return
        view = self.views.get(side, self.views["a"])
        self.keep(**{view.side: replace(view.state, **fields)})
        for each in self.views.values():
            ui.timer(0, each.ask, once=True)

    def outdate(self, side: str, outdated: bool) -> None:
        """Grey the answers that the wrong text in the editor would have changed: those on the user's own GPU, and of who is edited for."""
        shown: list[LayerView | ServiceView] = [view for view in self.views.values() if view.side == side or view.state.gpu == YOURS]
        shown += [self.service] if self.service is not None and self.state.view == "service" else []
        for part in (part for view in shown for part in (view.result_card, view.body)):
            part.classes(add="stale" if outdated else "", remove="" if outdated else "stale")

    def compared(self) -> None:
        """Say which of two scenarios is faster."""
        rows = [view.row() for view in self.views.values()] if self.state.view == "layer" else []
        both = [row for row in rows if row is not None]
        self.verdict.set_visibility(len(both) == 2)
        if len(both) == 2:
            self.verdict.text = words.comparison(both[0], both[1])

    def _turn(self, view: str) -> None:
        service = service_of(self.state.a, self.state.b) if view == "service" and self.state.service is None else self.state.service
        self.keep(view=view, service=service)
        self._draw_views()

    def _compare(self) -> None:
        self.keep(b=None if self.state.b is not None else self.state.a)
        self._draw_views()

    def _share(self) -> None:
        if len(to_query(self.state)) > MOST_ADDRESS:
            ui.notify("Too long for an address: save the scenario as YAML instead.")
            return
        copied, otherwise = "Address copied: it holds the whole scenario.", "Copy the address of this page: it holds the whole scenario."
        ui.run_javascript("navigator.clipboard?.writeText(location.href)")
        ui.notify(copied if self._secure() else otherwise)

    def _secure(self) -> bool:
        """Whether browsers let this page write to the clipboard."""
        url = ui.context.client.request.url if ui.context.client.request else None
        return url is not None and (url.scheme == "https" or url.hostname in ("localhost", "127.0.0.1", "::1"))

    def _save(self) -> None:
        if self.state.view == "service":
            states: dict[str, Any] = {"service": self.state.service}
        else:
            states = {"a": self.state.a} | ({"b": self.state.b} if self.state.b is not None else {})
        ui.download.content(words.scenario_yaml(states, self.state.spec, self.state.config), "scenario.yaml", "application/yaml")

    def _next_theme(self) -> None:
        theme = THEMES[self.dark.value][1]
        self.dark.value = theme
        self.theme.props(f'icon={THEMES[theme][0]} aria-label="Theme: { {None: "system", True: "dark", False: "light"}[theme] }"')
