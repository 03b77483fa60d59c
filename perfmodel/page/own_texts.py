"""The user's own GPU specification, in an editor with its errors beside it, and a pasted config.json."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nicegui import ui

from perfmodel.errors import PerfModelError
from perfmodel.files import MAX_YAML, read_text
from perfmodel.hardware import GpuSpec
from perfmodel.hardware.catalog import bundled_gpu, gpu_ids
from perfmodel.hardware.editing import differences
from perfmodel.page.inputs import SPEC_NAME, gpu_of, read_config, read_spec
from perfmodel.page.parts import block, button, choice, text
from perfmodel.page.state import YOURS
from perfmodel.page.words import said
from perfmodel.page.work import compute

if TYPE_CHECKING:
    from perfmodel.page.view import Page

MOST_SHOWN = 8
"""Changed fields that are listed."""


class OwnTexts:
    """Two cards that open when they are asked for; their texts are the page's `spec` and `config`."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.editor: ui.codemirror | None = None
        self.side = "a"
        """The scenario that asked, and that is asked with the text."""
        self.text = self.untouched = page.state.spec
        """What the editor holds, and what it held before the user changed anything."""
        self.spec = block("section", "card own").props('aria-label="Your own GPU"')
        self.config = block("section", "card own").props('aria-label="Your own model"')
        self.config.set_visibility(False)
        with self.config:
            self._draw_config()
        self.opened = bool(page.state.spec)
        """Whether the user wants the editor, where it has to do with what is shown."""
        self.spec.set_visibility(False)
        if page.state.spec:
            self._draw_spec()
            ui.timer(0, self._judge, once=True)

    def _draw_spec(self) -> None:
        """The editor, which is large to load: only for those who ask for it."""
        with self.spec:
            with block("div", "cardhead"):
                text("h3", "Your own GPU")
                button("YAML", self._save, icon="download", hint="Save the specification")
                button("Close", self._close_spec, icon="close")
            text("p", "Change any figure; the answers follow. Tab indents here: press Escape, then Tab to leave the editor.", "muted")
            with block("div", "editing"):
                with block("div", "editor"):
                    self.start = choice("Start from", gpu_ids(), self._origin(), self._restart)
                    self.editor = ui.codemirror(self.page.state.spec, language="YAML", theme="basicLight", indent="  ", line_wrapping=True,
                                                on_change=lambda event: self._edited(event.value))  # fmt: skip
                    self.editor.props('aria-label="GPU specification, YAML"')
                self.verdict = block("div", "verdict").props("aria-live=polite")

    def _origin(self) -> str:
        """The bundled GPU whose id the text has, right or wrong as the rest of it is."""
        found = re.search(r"^id:\s*([\w.-]+)", self.page.state.spec, re.MULTILINE)
        return found[1] if found and found[1] in gpu_ids() else "b200"

    def _draw_config(self) -> None:
        with block("div", "cardhead"):
            text("h3", "Your own model")
            button("Close", lambda: self.config.set_visibility(False), icon="close")
        text(
            "p",
            "The config.json of a model on Hugging Face, or one layer spelled out: layer:hidden=7168,inter=2048,experts=256,topk=8",
            "muted",
        )
        self.paste = ui.textarea("config.json", value=self.page.state.config).props("outlined input-class=mono rows=9 debounce=300")
        with block("div", "links"):
            button("Use it", self._use_config, icon="check")
        self.config_verdict = block("div").props("aria-live=polite")

    def open_config(self, side: str) -> None:
        """Show the card of the model, for a scenario."""
        self.side = side
        self.config.set_visibility(True)
        self.paste.run_method("focus")

    def open_spec(self, gpu: str, side: str) -> None:
        """Show the editor, for a scenario, with the text of a bundled GPU unless the user has a text already."""
        self.side = side
        if self.editor is None:
            self._draw_spec()
        self.opened = True
        self.spec.set_visibility(True)
        if not self.page.state.spec:
            self._restart(gpu if gpu in gpu_ids() else "b200")

    def _close_spec(self) -> None:
        self.opened = False
        self.spec.set_visibility(False)

    def turn(self) -> None:
        """Another view is shown, or another GPU chosen: the editor stays where what is shown is asked with the user's own."""
        self.spec.set_visibility(self.opened and self.page.uses(YOURS, shown=True))

    def _restart(self, gpu: str) -> None:
        if gpu not in gpu_ids() or self.editor is None:
            return
        self.start.value = gpu
        lines = read_text(bundled_gpu(gpu)).splitlines(keepends=True)
        self.untouched = "".join(line for line in lines if not line.startswith("# yaml-language-server"))
        self.editor.value = self.untouched

    async def _edited(self, value: str) -> None:
        """A change in the editor: judged at once; where it is right and the user's doing, the scenario is asked with it."""
        if value == self.text:
            return
        self.text = value[: MAX_YAML + 1]  # the reader says of one character more that it is too long
        asked = self.text != self.untouched or self.page.uses(YOURS)
        if asked:
            self.page.keep(spec=self.text)
        if await self._judge() and asked:
            self.page.use(self.side, gpu=YOURS)

    async def _judge(self) -> bool:
        """Say below or beside the editor what is wrong, with its line, or what differs from the GPU it started from."""
        value = self.text
        try:
            gpu, changed = await compute(lambda: (read_spec(value), _changed(read_spec(value))))
        except PerfModelError as error:
            if value == self.text:
                self._show_error(error)
                self.page.outdate(self.side, True)
            return False
        if value == self.text:
            self._mark(None)
            self.page.outdate(self.side, False)
            self.verdict.clear()
            with self.verdict:
                _changes(gpu, changed)
        return True

    def _show_error(self, error: PerfModelError) -> None:
        lines = self.text.count("\n") + 1
        self._mark(error.line if error.line is not None and 1 <= error.line <= lines else None)
        self.verdict.clear()
        with self.verdict, block("div", "notice").props("role=alert"):
            text("p", f"Line {error.line}" if error.line else "Not valid", "where")
            text("p", said(error, where=False))
            text("p", "Until this is mended, the answers below are those of the last valid text.")

    def _mark(self, line: int | None) -> None:
        """Mark the wrong line, and bring it into sight when the mistake is new: the editor stays where the user corrects it."""
        marks: list[dict[str, Any]] = [{"kind": "line", "line": line, "class": "wrongline"}] if line else []
        if self.editor is not None and self.editor.decorations != marks:
            self.editor.decorations = marks
            if line:
                self.editor.reveal_line(line)

    def _save(self) -> None:
        ui.download.content(self.text, SPEC_NAME, "application/yaml")

    async def _use_config(self) -> None:
        value = str(self.paste.value or "")[: MAX_YAML + 1]
        self.config_verdict.clear()
        try:
            model = await compute(lambda: read_config(value))
        except PerfModelError as error:
            with self.config_verdict, block("div", "notice").props("role=alert"):
                text("p", said(error))
            return
        with self.config_verdict:
            moe = f"{model.moe.experts} experts, top-{model.moe.topk}" if model.moe else "no experts"
            text("p", f"Understood: {model.layers} layers, hidden size {model.hidden:,}, {moe}.", "good")
            for note in model.notes:
                text("p", note, "muted")
        self.page.keep(config=value)
        self.page.use(self.side, model=YOURS)


def _changed(gpu: GpuSpec) -> list[tuple[str, str, str]] | None:
    """(field, there, here) of what differs from the bundled GPU with the same id; None where there is none."""
    if gpu.id not in gpu_ids():
        return None
    pairs = [(d.field, _brief(d.first), _brief(d.second)) for d in differences(gpu_of(gpu.id, ""), gpu)]
    return [(field, first, second) for field, first, second in pairs if first != second]


def _changes(gpu: GpuSpec, changed: list[tuple[str, str, str]] | None) -> None:
    if not changed:
        text("p", f"Valid: {gpu.name}." if changed is None else f"Valid, and the same as the bundled {gpu.id}.", "good")
        return
    text("p", f"Valid. Against the bundled {gpu.id}:", "good")
    with block("ul", "changes"):
        for field, first, second in changed[:MOST_SHOWN]:
            with block("li"):
                text("code", field)
                text("span", f"{first} → {second}")
        if len(changed) > MOST_SHOWN:
            text("li", f"and {len(changed) - MOST_SHOWN} more")


def _brief(value: object) -> str:
    value = getattr(value, "value", value)
    return "absent" if value is None else f"{value:,.6g}" if isinstance(value, int | float) else str(value)[:60]
