"""What the page shows, as words that fit into its address: opening the address shows the same again."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar
from urllib.parse import urlencode

from perfmodel.errors import PerfModelError
from perfmodel.files import MAX_YAML

YOURS = "yours"
"""Stands, among GPU and model ids, for the text that the user edited or pasted."""
MOST_ADDRESS = 30_000
"""Characters of an address that servers and browsers take."""


@dataclass(frozen=True)
class LayerState:
    """One scenario of a MoE layer, in the words of `perfmodel gap`; empty stands for the default."""

    model: str = "gpt-oss-20b"
    gpu: str = "b200"
    format: str = "nvfp4"
    kernel: str = "auto"
    routing: str = ""
    ep: str = "1"
    tp: str = "1"
    launch: str = "graph"
    comm: str = "exclude"
    tokens: str = "1,4,16,64,256,1024,4096,16384"
    at: str = "64"
    """The token count that is explained."""


@dataclass(frozen=True)
class ServiceState:
    """A whole service, in the words of `perfmodel plan`; empty stands for no limit."""

    model: str = "gpt-oss-120b"
    gpu: str = "h200,b200"
    format: str = "auto"
    mode: str = "auto"
    isl: str = "4000"
    osl: str = "500"
    ttft_ms: str = ""
    tpot_ms: str = "30"
    gpus: str = ""
    rate: str = "50"


@dataclass(frozen=True)
class PageState:
    """All that is on the page."""

    view: str = "layer"
    a: LayerState = field(default_factory=LayerState)
    b: LayerState | None = None
    """The second scenario, where two are compared."""
    service: ServiceState | None = None
    """The service, once it was looked at."""
    spec: str = ""
    """The user's own GPU specification, YAML."""
    config: str = ""
    """The user's own config.json, or a layer spelled out."""


S = TypeVar("S", LayerState, ServiceState)


def service_of(a: LayerState, b: LayerState | None) -> ServiceState:
    """The service that follows from the layers looked at: of the same model, on the same GPUs."""
    return ServiceState(model=a.model, gpu=",".join(dict.fromkeys(layer.gpu for layer in (a, b) if layer is not None)))


def to_query(state: PageState) -> str:
    """The query of the address, without `?`."""
    words = {"view": state.view, **asdict(state.a)}
    if state.b is not None:
        words |= {f"b.{name}": value for name, value in asdict(state.b).items()}
    if state.view == "service" and state.service is not None:
        words |= {f"plan.{name}": value for name, value in asdict(state.service).items()}
    words |= {name: pack(text) for name, text in (("spec", state.spec), ("config", state.config)) if text}
    return urlencode(words, safe=",:=")


def from_query(query: Mapping[str, str]) -> PageState:
    """The state in an address; what it leaves out is as on a fresh page. Raises PerfModelError for a text that was cut or altered."""
    compared = any(name.startswith("b.") for name in query)
    a = _read(LayerState(), query, "")
    view = "service" if query.get("view") == "service" else "layer"
    planned = view == "service" or any(name.startswith("plan.") for name in query)
    return PageState(
        view=view,
        a=a,
        b=_read(a, query, "b.") if compared else None,
        service=_read(_read(ServiceState(), {name: query[name] for name in ("model", "gpu") if name in query}, ""), query, "plan.")
        if planned
        else None,
        spec=unpack(query.get("spec", ""), "spec"),
        config=unpack(query.get("config", ""), "config"),
    )


def _read(start: S, query: Mapping[str, str], prefix: str) -> S:
    found: dict[str, Any] = {f.name: query[prefix + f.name] for f in fields(start) if prefix + f.name in query}
    return replace(start, **found)


def pack(text: str) -> str:
    """A text as letters, digits, - and _, compressed."""
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def unpack(packed: str, name: str) -> str:
    """What `pack` packed, at most 256 KiB of it. Raises PerfModelError naming the parameter `name`."""
    if not packed:
        return ""
    try:
        raw = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        stream = zlib.decompressobj()
        text = stream.decompress(raw, MAX_YAML)
        if not stream.eof:
            raise ValueError("cut short, or longer than any specification")
        return text.decode()
    except (ValueError, zlib.error) as error:
        raise PerfModelError("cannot be read", field=name, value=packed[:20], mend="Copy the whole address.") from error
