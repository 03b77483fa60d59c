"""The controls of a layer scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.errors import PerfModelError
from perfmodel.formats import format_ids, get_format
from perfmodel.hardware.catalog import gpu_ids
from perfmodel.page.inputs import gpu_of
from perfmodel.page.parts import block, button, choice, entry
from perfmodel.page.state import YOURS
from perfmodel.profiles import profiles
from perfmodel.workload import model_ids

if TYPE_CHECKING:
    from perfmodel.page.layer_view import LayerView

ROUTINGS = {"": "as the model does", "balanced": "balanced", "uniform": "uniform", "powerlaw:1.2": "power law 1.2", "zipf:1": "Zipf 1"}
LAUNCHES = {"eager": "one by one", "graph": "CUDA graph", "pdl": "graph and PDL", "persistent": "one persistent kernel"}
COMMS = {"exclude": "left out", "include": "counted"}


class LayerControls:
    """What a scenario is asked with; `refresh` offers what fits the chosen GPU, `show` what fits the answer."""

    def __init__(self, view: LayerView) -> None:
        self.view = view
        state, change = view.state, view.change
        with block("div", "fields"):
            self.model = choice("Model", model_ids(), state.model, lambda v: change(model=v))
            self.gpu = choice("GPU", gpu_ids(), state.gpu, lambda v: change(gpu=v, **self.fallbacks(v)))
            with block("div", "links"):
                button("Paste a config.json", view.page.texts.open_config, icon="content_paste")
                button("Edit the GPU", lambda: view.page.texts.open_spec(view.state.gpu), icon="tune")
            self.format = choice("Format of the weights", {}, state.format, lambda v: change(format=v))
            self.kernel = choice("Kernel", {}, state.kernel, lambda v: change(kernel=v))
            self.tokens = entry("Token counts", state.tokens, lambda v: change(tokens=v), numeric=False,
                                hint="Tokens entering the layer over the expert-parallel group, such as 1,64,4096")  # fmt: skip
            self.at = choice("Explain at (tokens)", {}, state.at, lambda v: change(at=v))
            entry("Expert parallel (ep)", state.ep, lambda v: change(ep=v), unit="GPUs", hint="Ranks that share the experts")
            entry("Tensor parallel (tp)", state.tp, lambda v: change(tp=v), unit="GPUs", hint="Ranks that split each expert")
            choice("Routing", ROUTINGS, state.routing, lambda v: change(routing=v))
            choice("Launch", LAUNCHES, state.launch, lambda v: change(launch=v))
            choice("Communication", COMMS, state.comm, lambda v: change(comm=v), hint="Dispatch, combine and all-reduce between GPUs")

    def refresh(self) -> None:
        """Offer the user's own texts, and the formats and kernels that the GPU runs; what is chosen stays, right or wrong."""
        page, state = self.view.page.state, self.view.state
        _offer(self.model, _named(model_ids(), "your model", page.config), state.model)
        _offer(self.gpu, _named(gpu_ids(), "your GPU", page.spec), state.gpu)
        try:
            gpu = gpu_of(state.gpu, page.spec)
        except PerfModelError:
            return
        runs = [f for f in format_ids() if set(get_format(f).math) & set(gpu.math_types)]
        _offer(self.format, {"": "as the model's weights", **{f: f for f in runs}}, state.format)
        able = [p.id for p in profiles() if not p.ungated_only and (not state.format or p.supports(gpu.architecture, state.format))]
        _offer(self.kernel, {"auto": "auto: the fastest measured", **{k: k for k in sorted(able)}}, state.kernel)

    def fallbacks(self, gpu: str) -> dict[str, str]:
        """What of the scenario cannot stay on another GPU: a format that it has no units for, a kernel that does not run there."""
        state = self.view.state
        try:
            spec = gpu_of(gpu, self.view.page.state.spec)
            runs = not state.format or set(get_format(state.format).math) & set(spec.math_types)
            kernel = next((p for p in profiles() if p.id == state.kernel), None)
        except PerfModelError:
            return {}
        left = {} if runs else {"format": ""}
        if kernel is not None and not kernel.supports(spec.architecture, state.format if runs else "any"):
            left["kernel"] = "auto"
        return left

    def show(self, result: dict[str, Any], row: dict[str, Any]) -> None:
        """Offer the token counts of the answer."""
        _offer(self.at, {str(r["tokens"]): f"{r['tokens']:,}" for r in result["rows"]}, str(row["tokens"]))


def _named(ids: list[str], own: str, text: str) -> dict[str, str]:
    return ({YOURS: own} if text else {}) | {name: name for name in ids}


def _offer(box: Any, options: dict[str, str], value: str) -> None:
    """Change what a choice offers, and what it shows, without asking anew."""
    offered = options | ({} if value in options else {value: value})
    if box.options != offered or box.value != value:
        box.set_options(offered, value=value)
