"""`calibrate --op serving`: the engine and the offsets that a fifth of the measured configurations gives, as the file engines.yaml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np

from perfmodel.serving.engine import Calibration
from perfmodel.validation.serving.fit import chosen_rows, fit_serving
from perfmodel.validation.serving.flags import flag_services
from perfmodel.validation.serving.predict import Services
from perfmodel.validation.serving.rows import read_services
from perfmodel.validation.serving.validate import ServingValidation, interval_factors, predict_services

HEAD = """# How serving engines run a step, and what groups of services differ from that.
# Written by `perfmodel calibrate --op serving --write`; engine.py says what each number is.
"""


def calibrate_serving(heard: Callable[[str], None]) -> tuple[Calibration, dict[str, Any]]:
    """The calibration with its intervals, and where it comes from. Raises MissingRequirementError without the data."""
    rows = read_services()
    services, flags = Services.of(rows), flag_services(rows)
    used = chosen_rows(rows, np.array([not flag for flag in flags], bool))
    calibration = fit_serving(services, np.flatnonzero(used), heard)
    ttft, tpot = predict_services(services, calibration)
    held = ServingValidation(services, flags, ttft, tpot, used, 0.0)
    intervals = {name: (pair[0], pair[1]) for name, pair in interval_factors(held).items()}
    about = {
        "status": "measured",
        "date": date.today().isoformat(),
        "dataset": "aiconfigurator-core 0.12.0, silicon_sample.csv (Apache-2.0; public InferenceMAX / InferenceX runs)",
        "rows": int(used.sum()),
        "source": "perfmodel calibrate --op serving: robust least squares and ridge regression on a fifth of the configurations",
    }
    return replace(calibration, interval=intervals), about


def as_json(calibration: Calibration) -> dict[str, Any]:
    """All numbers of a calibration, rounded to four digits."""
    return {
        "engine": {name: _short(value) for name, value in vars(calibration.engine).items()},
        "backends": {backend: {name: _short(value) for name, value in own.items()} for backend, own in calibration.backends.items()},
        "offsets": {figure: dict(found) for figure, found in calibration.offsets.items()},
        "interval": {figure: list(pair) for figure, pair in calibration.interval.items()},
    }


def engine_text(calibration: Calibration, about: Mapping[str, Any]) -> str:
    """The file engines.yaml."""
    import io

    from ruamel.yaml import YAML

    yaml, stream = YAML(), io.StringIO()
    yaml.width = 140
    yaml.dump(as_json(calibration) | {"provenance": dict(about)}, stream)
    return HEAD + stream.getvalue()


def _short(value: float) -> float:
    return float(f"{value:.4g}")
