"""The scoreboard: for each kind of measurement how far predictions are off, computed by the functions behind `perfmodel validate`.

The figures are kept in scoreboard.json, so that documents and tests can use them without the minutes that they take.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import Field

from perfmodel.validated import Strict
from perfmodel.validation.runs.validate import validate_runs
from perfmodel.validation.serving.validate import validate_serving
from perfmodel.validation.silicon.sample import SAMPLE
from perfmodel.validation.silicon.used import rows_used
from perfmodel.validation.silicon.validate import SiliconValidation, validate_silicon
from perfmodel.validation.targets import TABLES, validate_file, validate_tables

SCHEMA = "perfmodel.scoreboard/1"
FILE = Path(__file__).parent / "scoreboard.json"
PACKAGES = ("perfmodel", "aiconfigurator-core", "numpy")
DIGITS = 6
"""Of the shares that are kept."""


class Line(Strict):
    """One line. Shares are of 1."""

    name: str
    command: str
    """What prints it."""
    scored: int
    median_ape: float | None
    mape: float | None
    coverage80: float | None
    """Of the measurements, inside the 80 % interval; None where there is no interval."""
    fitted_on: float | None
    """Rows (of services configurations) that fits were made with, of those that they were drawn from; None where nobody looked."""
    unseen: bool = False
    """Whether the scored rows are none of those that the fitted ones were drawn from."""


class Scoreboard(Strict):
    """All lines, with the day and the versions that they were computed with."""

    schema_: str = Field(default=SCHEMA, alias="schema")
    date: str
    versions: Mapping[str, str]
    lines: tuple[Line, ...] = Field(strict=False)

    def as_json(self) -> dict[str, Any]:
        """The object that is written and printed."""
        return self.model_dump(by_alias=True, mode="json")


@dataclass(frozen=True)
class Step:
    """Some lines that are computed together."""

    name: str
    compute: Callable[[], list[Line]]


def steps() -> list[Step]:
    """What there is to compute, in the order of the table; the first ones take minutes."""
    unseen = partial(
        _unseen, "MoE layers: B200 and GB200, fitted without them", "--leave-out-gpu b200,gb200", leave_out_gpu=("b200", "gb200")
    )
    older = partial(
        _unseen, "MoE layers: Blackwell, fitted on older architectures", "--leave-out-arch blackwell", leave_out_arch="blackwell"
    )
    ops = {
        "gemm": "Dense GEMM",
        "attention": "Attention",
        "quantise": "Quantisation",
        "collectives": "Collectives",
        "a2a": "Expert-parallel all-to-all",
    }
    return [
        Step("MoE layers", _layers),
        Step("B200 and GB200 left out", unseen),
        Step("Blackwell left out", older),
        *(Step(name, partial(_op, name, op)) for op, name in ops.items()),
        Step("services", _services),
        Step("services of unseen pairs", partial(_services, unseen_pairs=True)),
        Step("our own kernels", _runs),
        Step("published tables", _tables),
        *([Step("the committed sample", lambda: [sample_line()])] if SAMPLE.is_file() else []),
    ]


def scoreboard(lines: Sequence[Line]) -> Scoreboard:
    """These lines, as of today."""
    return Scoreboard(schema=SCHEMA, date=date.today().isoformat(), versions=_versions(), lines=tuple(lines))


def load_scoreboard(path: Path = FILE) -> Scoreboard:
    """The scoreboard as it was last written."""
    return Scoreboard.model_validate(json.loads(path.read_text(encoding="utf-8")))


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _line(name: str, target: str, score: Mapping[str, Any], fitted_on: float | None, *, unseen: bool = False) -> Line:
    errors = {key: None if score.get(key) is None else round(score[key], DIGITS) for key in ("median_ape", "mape", "coverage80")}
    share = None if fitted_on is None else round(fitted_on, DIGITS)
    return Line(name=name, command=f"perfmodel validate {target}", scored=score["scored"], fitted_on=share, unseen=unseen, **errors)


def _layers() -> list[Line]:
    outcome = validate_silicon()
    summary = outcome.summary()
    whole = _line("MoE layers", "silicon", summary["overall"], summary["calibration"]["fraction_used"])
    return [whole, nvfp4_line(outcome, summary["families"])]


def nvfp4_line(outcome: SiliconValidation, families: Sequence[Mapping[str, Any]]) -> Line:
    """Families in NVFP4: means of their figures, by scored rows."""
    there = [family for family in families if family["format"] == "nvfp4" and family["scored"]]
    scored = sum(family["scored"] for family in there)
    means: dict[str, Any] = {"scored": scored}
    for name in ("median_ape", "mape", "coverage80"):
        means[name] = sum(family[name] * family["scored"] for family in there) / scored if scored else None
    used, of = rows_used(outcome.rows, outcome.rows.labels["format"].where("nvfp4"))
    return _line("MoE layers: NVFP4, mean of the families' medians", "silicon", means, used / of if of else None)


def _unseen(name: str, options: str, **left_out: Any) -> list[Line]:
    summary = validate_silicon(**left_out).summary()
    return [_line(name, f"silicon {options}", summary["overall"], summary["calibration"]["fraction_used"], unseen=True)]


def _op(name: str, op: str) -> list[Line]:
    summary = validate_silicon(op).summary()
    return [_line(name, f"silicon --op {op}", summary["overall"], summary["calibration"]["fraction_used"])]


def _services(unseen_pairs: bool = False) -> list[Line]:
    """TPOT and TTFT of rows whose configuration was not fitted; or TPOT of all, each pair of model and GPU by fits without it."""
    held = validate_serving(unseen_pairs=unseen_pairs)
    summary = held.summary()
    chosen = summary["overall"] if unseen_pairs else summary["not_fitted"]
    if unseen_pairs:
        lines = [("tpot", "Services: TPOT, pair of model and GPU unseen", "serving --unseen-pairs")]
    else:
        lines = [("tpot", "Services: TPOT", "serving"), ("ttft", "Services: TTFT", "serving")]
    share = summary["calibration"]["fraction_used"]
    own = {} if unseen_pairs else {"coverage80": None}  # the interval is drawn from these very rows
    return [
        _line(name, command, chosen[figure] | {"scored": chosen["scored"]} | own, share, unseen=True) for figure, name, command in lines
    ]


def _runs() -> list[Line]:
    """Times of our kernels, of which the fitted rows are not scored, and DRAM bytes, which nothing was fitted on."""
    summary = validate_runs().summary()
    times = _line("Our own kernels on an H200", "runs", summary["overall"], summary["calibration"]["fraction_used"], unseen=True)
    return [times, _line("DRAM bytes, by hardware counters", "runs", summary["dram_bytes"], 0.0)]


def _tables() -> list[Line]:
    return [_line("Bundled tables: published layers, GEMMs on an H200", TABLES, validate_tables().summary()["overall"], None)]


def sample_line(path: Path = SAMPLE) -> Line:
    """Of the sample that a checkout holds: what a machine without the measurements can check in seconds."""
    return _line("A sample of the MoE layers, kept here", f"tests/data/{path.name}", validate_file(path).summary()["overall"], None)
