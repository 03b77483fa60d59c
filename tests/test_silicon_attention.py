"""The loader of measured attention, on small files of the same layout."""

import numpy as np
import pytest

from perfmodel.validation.silicon import attention, parts
from perfmodel.validation.silicon.validate import validate_silicon

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(folder, table, gpu, framework, version, rows):
    path = folder / gpu / table.split("/")[0] / framework / version / f"{table.split('/')[1]}_perf.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def dense(kernel, batch, isl, step, heads, kv_heads, ms, *, dim=128, attn="bfloat16", kv="bfloat16", **more):
    shape = {"batch_size": batch, "isl": isl, "step": step, "num_heads": heads, "num_key_value_heads": kv_heads, "head_dim": dim}
    return {"kernel_source": kernel, "attn_dtype": attn, "kv_cache_dtype": kv, "beam_width": 1, "latency": ms} | shape | more


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Prefill with a window column and without, decode, and MLA in both phases."""
    rows = [dense("torch_flow", 2, 512, 0, 32, 8, 0.05, window_size=128), dense("torch_flow", 2, 1, 0, 8, 8, 0.02, window_size=0)]
    write(tmp_path, "attention/context_attention", "h200_sxm", "trtllm", "1.3.0rc20", rows)
    old = [dense("flash_attention", 1, 64, 0, 40, 40, 0.02, dim=64)]
    write(tmp_path, "attention/context_attention", "a100_sxm", "sglang", "0.5.10", old)
    rows = [
        dense("torch_flow", 4, 1, 1023, 64, 8, 0.02, kv="fp8", window_size=0),
        dense("torch_flow", 4, 1, 1023, 8, 8, 0.02, window_size=0),
        dense("unheard_of", 4, 1, 1023, 64, 1, 0.02, window_size=0),
    ]
    write(tmp_path, "attention/generation_attention", "h200_sxm", "trtllm", "1.3.0rc20", rows)
    latent = {"kernel_source": "default", "mla_dtype": "bfloat16", "kv_cache_dtype": "fp8", "num_heads": 16, "tp_size": 8, "batch_size": 2}
    write(tmp_path, "mla/context_mla", "b200_sxm", "trtllm", "1.3.0rc20", [latent | {"isl": 256, "step": 0, "latency": 0.05}])
    write(tmp_path, "mla/generation_mla", "b200_sxm", "trtllm", "1.3.0rc20", [latent | {"isl": 1, "step": 255, "latency": 0.01}])
    monkeypatch.setattr(parts, "data_folder", lambda: tmp_path)
    return attention.read_attention()


def column(rows, name):
    return [rows.labels[name][i] for i in range(len(rows))]


def test_rows_are_told_in_our_words(data):
    assert data.kind == "attention"
    assert column(data, "gpu") == ["a100-80gb", "h200", "h200", "h200", "h200", "h200", "b200", "b200"]
    assert column(data, "format") == ["bf16", "bf16", "bf16", "bf16-fp8kv", "bf16", "bf16", "bf16-fp8kv", "bf16-fp8kv"]
    assert data.latency[0] == pytest.approx(20e-6)


def test_sources_hold_what_libraries_choose_a_kernel_by(data):
    assert column(data, "source") == [
        "sglang 0.5.10 prefill flash_attention mha full d64",
        "trtllm 1.3.0rc20 prefill torch_flow few window d128",
        "trtllm 1.3.0rc20 prefill1 torch_flow mha full d128",
        "trtllm 1.3.0rc20 decode torch_flow gqa full d128",
        "trtllm 1.3.0rc20 decode torch_flow mha full d128",
        "trtllm 1.3.0rc20 decode unheard_of wide full d128",
        "trtllm 1.3.0rc20 mla-prefill default mha full d192",
        "trtllm 1.3.0rc20 mla-decode default gqa full d576",
    ]


def test_kernels_become_profiles(data):
    assert column(data, "kernel") == [
        "attention-sglang-fa-prefill",
        "attention-trtllm-prefill",
        "attention-trtllm-prefill",
        "attention-trtllm-decode",
        "attention-trtllm-mmha-decode",
        "decode unheard_of wide full d128",
        "attention-trtllm-mla-prefill",
        "attention-trtllm-mla-decode",
    ]


def test_sizes_of_prefill_and_decode(data):
    assert data.sizes["context"].tolist() == [64, 512, 1, 1024, 1024, 1024, 256, 256]
    assert data.sizes["window"].tolist() == [0, 128, 0, 0, 0, 0, 0, 0]
    assert data.sizes["kv_heads"].tolist() == [40, 8, 8, 8, 8, 1, 16, 1]
    assert data.sizes["cache_dim"].tolist() == [128, 256, 256, 256, 256, 256, 320, 576]
    assert data.sizes["key_dim"].tolist()[-2:] == [192, 576]
    assert data.sizes["value_dim"].tolist()[-2:] == [128, 512]
    assert (data.tokens == data.sizes["context"]).all()


def test_they_are_scored_where_there_is_a_profile(data):
    found = validate_silicon("attention")
    overall = found.summary()["overall"]
    assert (overall["n"], overall["scored"], overall["flagged_by"]) == (8, 7, {"no-profile": 1})
    assert np.isfinite(found.held.predicted[found.held.flags.codes == 0]).all()
