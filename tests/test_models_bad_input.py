"""Broken configs: always a PerfModelError that names the file and the field, whatever is in it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfmodel.errors import PerfModelError
from perfmodel.report.models import model_data
from perfmodel.workload import load_model
from perfmodel.workload.model import ModelSpec

GOOD: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 96,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "hidden_act": "silu",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
SAID_ELSEWHERE: dict[str, Any] = {
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "head_dim": 16,
    "layer_types": ["full_attention", "linear_attention", "sliding_attention"] * 2,
    "sliding_window": 128,
    "compress_ratios": [0, 4, 128, 4, 128, 4],
    "index_n_heads": 4,
    "index_head_dim": 8,
    "index_topk": 8,
    "indexer_types": ["full", "shared"] * 3,
    "linear_attn_config": {"kda_layers": [1, 2], "num_heads": 8, "head_dim": 8, "short_conv_kernel_size": 4},
    "hybrid_override_pattern": "MEM*-E",
    "block_configs": [{"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.5}}] * 6,
    "sparse_attention_config": {
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 8,
        "sparse_topk_blocks": 4,
        "sparse_block_size": 64,
        "sparse_attention_freq": [0, 1] * 3,
    },
    "mlp_layer_types": ["dense", "sparse"] * 3,
    "shared_expert_intermediate_size": 48,
    "moe_latent_size": 16,
    "text_config": GOOD,
    "ffn_config": {"ffn_hidden_size": 32},
    "moe_layers_enum": "1,2,3",
    "attention_chunk_size": 64,
    "interleave_moe_layer_step": 2,
}


def _refused(tmp_path: Path, content: str | bytes) -> PerfModelError:
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PerfModelError) as caught:
        load_model(path)
    assert "config.json" in str(caught.value)
    assert len(str(caught.value)) < 600
    return caught.value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("{\n'hidden_size': 1}", ":2: is not JSON"),
        ("[1, 2]", "no JSON object"),
        ("null", "no JSON object"),
        ("[" * 100_000, "too deep"),
        ('{"hidden_size": 1' + "0" * 5000 + "}", "too long"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ("{}", "num_hidden_layers"),
        ('{"text_config": {}}', "num_hidden_layers"),
        (" " * (17 * 2**20), "larger than 16 MiB"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: str | bytes, message: str) -> None:
    assert message in str(_refused(tmp_path, content))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("hidden_size", None, "hidden_size: is missing"),
        ("hidden_size", -64, "between 0 and"),
        ("hidden_size", 10**12, "between 0 and"),
        ("hidden_size", float("nan"), "whole number"),
        ("hidden_size", float("inf"), "whole number"),
        ("hidden_size", 64.5, "whole number"),
        ("hidden_size", True, "whole number"),
        ("hidden_size", "wide", "whole number"),
        ("hidden_size", {"a": 1}, "whole number"),
        ("hidden_size", [64, 32], "differs from layer to layer"),
        ("hidden_size", 65, "head_dim: is missing"),
        ("num_hidden_layers", 100_000, "at most 1,000"),
        ("vocab_size", 0, "vocab_size: is missing"),
        ("num_key_value_heads", 3, "must divide the 8 heads"),
        ("num_key_value_heads", [8, 0, 8, 8, 8, 8], "num_key_value_heads.1: is missing"),
        ("num_experts_per_tok", None, "num_experts_per_tok: is missing"),
        ("num_experts_per_tok", 17, "topk 17 is over the 16 experts"),
        ("n_group", 5, "do not split"),
        ("topk_group", None, "topk_group: is missing"),
        ("num_experts", 32, "contradict each other"),
        ("moe_layer_freq", [1, 1], "2 entries for 6 layers"),
        ("mlp_layer_types", ["dense", "mixed", "sparse", "sparse", "sparse", "sparse"], "sparse or dense"),
        ("layer_types", "full_attention", "must be a list"),
        ("tie_word_embeddings", "yes", "true or false"),
        ("hybrid_override_pattern", "MEX*-E", "not understood"),
        ("hybrid_override_pattern", "MEM*-EE", "7 blocks for 6 layers"),
        ("hidden_act", 7, "must be text"),
        ("quantization_config", [1], "must be a table"),
        ("block_configs", [1] * 6, "block_configs.0: must be a table"),
        ("moe_layers_enum", "1;2", "layer numbers"),
    ],
)
def test_fields_that_cannot_be(tmp_path: Path, field: str, value: object, message: str) -> None:
    drop = {"mlp_layer_types": "moe_layer_freq", "moe_layers_enum": "moe_layer_freq"}.get(field)
    config = {k: v for k, v in GOOD.items() if k != drop}
    assert message in str(_refused(tmp_path, json.dumps(config | {field: value})))


def test_misspelt_size_is_recognised(tmp_path: Path) -> None:
    config = {k: v for k, v in GOOD.items() if k != "hidden_size"} | {"hiden_size": 64}
    assert "Did you mean hiden_size" in str(_refused(tmp_path, json.dumps(config)))


def test_deeply_nested_value_in_a_size(tmp_path: Path) -> None:
    nested = "[" * 900 + "]" * 900
    _refused(tmp_path, json.dumps(GOOD).replace('"hidden_size": 64', f'"hidden_size": {{"a": {nested}}}'))


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    for path in (
        "/",
        str(tmp_path),
        str(tmp_path / "none.json"),
        str(tmp_path / "a\0b" / "c"),
        "./" + "x" * 5000,
        "/dev/null",
        "/dev/zero",
    ):
        with pytest.raises(PerfModelError):
            load_model(path)
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    with pytest.raises(PerfModelError):
        load_model(locked / "config.json")
    locked.chmod(0o700)
    broken = tmp_path / "X_config.json"
    broken.write_text(json.dumps(GOOD))
    (tmp_path / "X_hf_quant_config.json").write_text("{")
    with pytest.raises(PerfModelError, match=r"X_hf_quant_config\.json"):
        load_model(broken)


def test_notes_hold_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"bad\xffname_config.json")
    path.write_text(json.dumps(GOOD | {"model_type": "\x1b[2J\ud800", "evil\x1b\n_size": 5}))
    spec = load_model(path)
    for text in (*spec.notes, spec.id, spec.source):
        assert text.isprintable()
        text.encode()


def _outcome(config: object) -> None:
    """A model or a PerfModelError; a model can be printed as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(config))
        try:
            spec = load_model(path)
        except PerfModelError:
            return
    assert isinstance(spec, ModelSpec)
    assert 0 < spec.params_active <= spec.params_total
    json.dumps(model_data(spec), allow_nan=False)


scalars = st.none() | st.booleans() | st.integers() | st.integers(-3, 12) | st.floats() | st.text(max_size=6)
junk = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=6), inner, max_size=4), max_leaves=12
)
plausible = st.sampled_from(list(SAID_ELSEWHERE.values()) + list(GOOD.values()))


@st.composite
def mangled(draw: st.DrawFn) -> dict[str, Any]:
    """A valid config with fields of others added, some dropped, some with the value of another field or with junk."""
    config = GOOD | draw(st.fixed_dictionaries({}, optional={k: st.just(v) for k, v in SAID_ELSEWHERE.items()}))
    for name in draw(st.lists(st.sampled_from(sorted(config)), max_size=4)):
        config.pop(name, None)
    names = st.sampled_from(sorted(GOOD | SAID_ELSEWHERE))
    return config | draw(st.dictionaries(names, junk | plausible, max_size=3))


@settings(deadline=None, max_examples=400)
@given(mangled())
def test_mangled_configs_end_in_a_model_or_a_named_mistake(config: dict[str, Any]) -> None:
    _outcome(config)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(sorted(SAID_ELSEWHERE)), st.data())
def test_mangled_tables_and_lists(name: str, data: st.DataObject) -> None:
    value = SAID_ELSEWHERE[name]
    if isinstance(value, list):
        at = data.draw(st.integers(0, len(value) - 1))
        value = [*value[:at], data.draw(junk | plausible), *value[at + 1 :]]
    elif isinstance(value, dict):
        value = value | {data.draw(st.sampled_from(sorted(value))): data.draw(junk | plausible)}
    _outcome(GOOD | {name: value})


@settings(deadline=None, max_examples=200)
@given(junk)
@example({"text_config": {"text_config": {"text_config": {"text_config": {"text_config": GOOD}}}}})
@example(GOOD | {"quantization_config": {"quant_algo": "MIXED_PRECISION", "quantized_layers": {"a.experts": 3}}})
@example(GOOD | {"compress_ratios": [], "block_configs": [None] * 6})
@example(GOOD | {"quantization_config": {"config_groups": {"g": {"weights": {"num_bits": -4}}}}})
def test_any_json_at_all(config: object) -> None:
    _outcome(config)
