"""The measured services as rows: each distinct measurement once, in this project's words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfModelError
from perfmodel.hardware import load_gpu
from perfmodel.serving.parallel import Parallel
from perfmodel.validated import Strict, load_model
from perfmodel.validation.silicon.parts import data_folder

FILE = "silicon_sample.csv"


class Names(Strict):
    """The file names.yaml."""

    models: dict[str, str]
    gpus: dict[str, str]
    flags: dict[str, str]
    """Flag -> why such rows are not scored."""


@dataclass(frozen=True)
class Service:
    """One measured configuration under one load. `ttft` and `tpot` in seconds, means over the requests."""

    line: int
    model: str
    gpu: str
    backend: str
    version: str
    precision: str
    """bf16, fp8, fp4 or int4."""
    mode: str
    """aggregated or disaggregated."""
    prompt: int
    """Most tokens of a prompt; they are uniform in 0.8 to 1.0 of it."""
    output: int
    clients: int
    decode: Parallel
    """Of the instances that decode, and of those that do all."""
    decoders: int | None
    prefill: Parallel | None
    prefillers: int | None
    ttft: float
    tpot: float
    origin: str
    """Which of the collections the row is from: dump, dated, gap."""
    measured: str
    """Date, or "" where it is not said."""

    @property
    def configuration(self) -> tuple[Any, ...]:
        """All but the load."""
        return (
            self.model, self.gpu, self.backend, self.precision, self.mode, self.decode, self.decoders, self.prefill, self.prefillers,
        )  # fmt: skip

    @property
    def family(self) -> tuple[str, ...]:
        """What configurations of one kind have in common: model, GPU, backend, precision, mode."""
        return self.model, self.gpu, self.backend, self.precision, self.mode

    @property
    def words(self) -> dict[str, str]:
        """What offsets know a service by."""
        return {
            "backend": self.backend, "architecture": _architecture(self.gpu), "precision": self.precision, "model": self.model,
            "gpu": self.gpu, "mode": self.mode,
        }  # fmt: skip

    @property
    def pair(self) -> tuple[str, str]:
        """Model and GPU."""
        return self.model, self.gpu


@cache
def _architecture(gpu: str) -> str:
    return load_gpu(gpu).architecture


@cache
def names() -> Names:
    """The bundled names."""
    return load_model(Names, Path(__file__).parent / "names.yaml")


def read_services() -> list[Service]:
    """Every distinct measurement; of twins the one whose source tells most. Raises MissingRequirementError without the data."""
    import pyarrow.csv as reader

    table = reader.read_csv(data_folder().parent / FILE)
    found: dict[tuple[float, ...], Service] = {}
    for line, row in enumerate(table.to_pylist(), start=2):
        service = _service(row, line)
        key = (service.prompt, service.output, service.clients, round(service.tpot, 6), round(service.ttft, 4))
        if key not in found or _tells(service) > _tells(found[key]):
            found[key] = service
    return sorted(found.values(), key=lambda service: service.line)


def _tells(service: Service) -> int:
    return ("gap", "dated", "dump").index(service.origin)


def _service(row: dict[str, Any], line: int) -> Service:
    source = dict(part.split("=", 1) for part in row["silicon_data_source"].split("; ") if "=" in part)
    file = source.get("source_file", "")
    decoding = row["mode"] == "disagg"
    gpu = names().gpus.get(row["system"])
    model = names().models.get(row["model_path"])
    if gpu is None or model is None:
        raise PerfModelError("is not known here", file=FILE, line=line, value=row["model_path"], mend="Add it to names.yaml.")
    return Service(
        line=line, model=model, gpu=gpu, backend=row["backend"], version=row["backend_version"],
        precision=_precision(row), mode="disaggregated" if decoding else "aggregated",
        prompt=row["isl"], output=row["osl"], clients=_clients(row, source),
        decode=_parallel(row, "decode_" if decoding else ""), decoders=row["decode_num_workers"],
        prefill=_parallel(row, "prefill_") if decoding else None, prefillers=row["prefill_num_workers"],
        ttft=row["silicon_ttft_ms"] / 1e3, tpot=row["silicon_tpot_ms"] / 1e3,
        measured=source.get("measured", "")[:10],
        origin="dump" if not file else "dated" if re.match(r"\d{4}-", file) else "gap",
    )  # fmt: skip


def _clients(row: dict[str, Any], source: dict[str, str]) -> int:
    """Requests at a time: said, or what the batches of all instances add up to."""
    if "silicon_concurrency" in source:
        return int(float(source["silicon_concurrency"]))
    return int(row["batch_size"] or row["decode_batch_size"] * (row["decode_num_workers"] or 1))


def _precision(row: dict[str, Any]) -> str:
    return row["precision"] or ("fp8" if row["model_path"].endswith("FP8") else "bf16")


def _parallel(row: dict[str, Any], prefix: str) -> Parallel:
    """What a row says of its ranks; `tp_size` beyond the expert ranks is tp x ep in some rows."""
    tp, dp = row[f"{prefix}tp_size"] or 1, row[f"{prefix}attention_dp_size"] or 1
    moe_tp, ep = row[f"{prefix}moe_tp_size"] or 1, row[f"{prefix}moe_ep_size"] or 1
    if ep > 1 and moe_tp == ep and tp * dp == ep * ep:  # tp x ep, where ranks are meant
        tp, dp = (ep, 1) if dp == 1 else (1, ep)
    elif tp == dp > 1 and ep == tp * dp:  # tp, of which each is an attention rank, counted twice
        tp, ep = 1, dp
    elif moe_tp * ep > tp * dp:  # attention ranks that the row forgot
        dp = moe_tp * ep // tp
    if (tp * dp) % ep:
        ep = 1
    return Parallel(tp=tp, dp=dp, ep=ep, pp=row[f"{prefix}pp_size"] or 1)
