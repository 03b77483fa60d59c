"""The controls of a layer scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfmodel.hardware.catalog import gpu_ids
from perfmodel.page.answers import Offers
from perfmodel.page.parts import block, button, choice, entry
from perfmodel.page.state import YOURS
from perfmodel.workload import moe_ids

if TYPE_CHECKING:
    from perfmodel.page.layer_view import LayerView

ROUTINGS = {"": "as the model does", "balanced": "balanced", "uniform": "uniform", "powerlaw:1.2": "power law 1.2", "zipf:1": "Zipf 1"}
LAUNCHES = {"eager": "one by one", "graph": "CUDA graph", "pdl": "graph and PDL", "persistent": "one persistent kernel"}
COMMS = {"exclude": "left out", "include": "counted"}


class LayerControls:
    """What a scenario is asked with; `refresh` offers what runs on the chosen GPU, `show` the token counts of the answer."""

    def __init__(self, view: LayerView) -> None:
        self.view = view
        state, change = view.state, view.change
        with block("div", "fields"):
            self.model = choice("Model", moe_ids(), state.model, lambda v: change(model=v))
            self.gpu = choice("GPU", gpu_ids(), state.gpu, lambda v: change(gpu=v))
            with block("div", "links"):
                button("Paste a config.json", lambda: view.page.texts.open_config(view.side), icon="content_paste")
                button("Edit the GPU", lambda: view.page.texts.open_spec(view.state.gpu, view.side), icon="tune")
            self.format = choice("Format of the weights", {}, state.format, lambda v: change(format=v))
            self.kernel = choice("Kernel", {}, state.kernel, lambda v: change(kernel=v))
            tokens = entry("Token counts", state.tokens, lambda v: change(tokens=v), numeric=False,
                                hint="Tokens entering the layer over the expert-parallel group, such as 1,64,4096")  # fmt: skip
            self.tokens = tokens.classes("whole")
            self.at = choice("Explain at (tokens)", {}, state.at, lambda v: change(at=v))
            entry("Expert parallel (ep)", state.ep, lambda v: change(ep=v), unit="GPUs", hint="Ranks that share the experts")
            entry("Tensor parallel (tp)", state.tp, lambda v: change(tp=v), unit="GPUs", hint="Ranks that split each expert")
            choice("Routing", ROUTINGS, state.routing, lambda v: change(routing=v))
            choice("Launch", LAUNCHES, state.launch, lambda v: change(launch=v))
            choice("Communication", COMMS, state.comm, lambda v: change(comm=v), hint="Dispatch, combine and all-reduce between GPUs")

    def refresh(self, offers: Offers | None) -> None:
        """Offer the user's own texts, and the formats and kernels that the GPU runs; what is chosen stays, right or wrong."""
        page, state = self.view.page.state, self.view.state
        _offer(self.model, _named(moe_ids(), "your model", page.config), state.model)
        _offer(self.gpu, _named(gpu_ids(), "your GPU", page.spec), state.gpu)
        formats, kernels = (offers.formats, offers.kernels) if offers else ((), ())
        _offer(self.format, {"": "as the model's weights"} | {name: name for name in formats}, state.format)
        _offer(self.kernel, {"auto": "auto: the fastest measured"} | {name: name for name in kernels}, state.kernel)

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
