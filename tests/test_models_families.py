"""Families whose configs come with no package: the sizes in their published config.json give their published parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.files import load_yaml
from perfmodel.workload import load_model

FAMILIES = load_yaml(Path(__file__).parent / "data" / "model_families.yaml")


@pytest.mark.parametrize("family", FAMILIES)
def test_published_parameters(family: str, tmp_path: Path) -> None:
    known = FAMILIES[family]
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family, "torch_dtype": "bfloat16", "tie_word_embeddings": False} | known["config"]))
    spec = load_model(path)
    assert spec.params_total == pytest.approx(known["total"] * 1e9, rel=known["off"])
    assert spec.notes == ()
