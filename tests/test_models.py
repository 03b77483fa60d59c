"""Models by their sizes: counts worked out by hand, laws, the bundled files against published figures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import PerfModelError
from perfmodel.workload import load_model, model_ids
from perfmodel.workload.attention import CompressedAttention, Indexer, LatentAttention, SoftmaxAttention, softmax_kind
from perfmodel.workload.layer import MoeLayer
from perfmodel.workload.model import DenseMlp, ModelSpec
from perfmodel.workload.recurrent import GatedDeltaNet, KimiDeltaAttention, Mamba2

PROMISED = [
    *("deepseek-v3", "gpt-oss-20b", "gpt-oss-120b", "qwen3-30b-a3b", "qwen3-235b-a22b", "mixtral-8x7b", "mixtral-8x22b", "kimi-k2"),
    *("llama-4-scout", "llama-4-maverick", "glm-5", "minimax-m2.5"),
]

# Total and active parameters as the model's own card or report gives them, and how far the count may be off. Cards round; most count
# the embedding among the active ones, and those of Llama 4 and Qwen3.5 count the vision encoder.
PUBLISHED = [
    ("deepseek-v3", 671e9, 0.001, 37e9, 0.02),  # arXiv 2412.19437
    ("deepseek-v4-flash", 284e9, 0.005, 13e9, 0.03),
    ("deepseek-v4-pro", 1.6e12, 0.02, 49e9, 0.02),
    ("gpt-oss-120b", 116.83e9, 0.001, 5.13e9, 0.001),  # arXiv 2508.10925, table 1
    ("gpt-oss-20b", 20.91e9, 0.001, 3.61e9, 0.001),
    ("qwen3-235b-a22b", 235e9, 0.002, 22e9, 0.02),  # arXiv 2505.09388
    ("qwen3-30b-a3b", 30.5e9, 0.002, 3.3e9, 0.08),
    ("qwen3.5-397b-a17b", 397e9, 0.005, 17e9, 0.05),
    ("qwen3.5-35b-a3b", 35e9, 0.02, 3e9, 0.05),
    ("mixtral-8x7b", 46.7e9, 0.001, 12.9e9, 0.015),  # arXiv 2401.04088
    ("mixtral-8x22b", 141e9, 0.005, 39e9, 0.005),
    ("kimi-k2", 1.04e12, 0.015, 32.6e9, 0.03),  # arXiv 2507.20534
    ("glm-5", 744e9, 0.001, 40e9, 0.03),
    ("minimax-m2.5", 230e9, 0.01, 10e9, 0.05),
    ("minimax-m3", 428e9, 0.01, 23e9, 0.08),
    ("llama-4-maverick", 400e9, 0.005, 17e9, 0.06),
    ("llama-4-scout", 109e9, 0.015, 17e9, 0.06),
    ("llama-3.1-8b", 8.03e9, 0.001, 7.5e9, 0.01),
    ("llama-3.1-405b", 405.9e9, 0.001, 404e9, 0.01),
    ("nemotron-3-nano", 31.6e9, 0.002, 3.2e9, 0.02),
    ("nemotron-3-super", 120.6e9, 0.002, 12.1e9, 0.02),
    ("nemotron-3-ultra", 550e9, 0.005, 55e9, 0.005),
    ("gemma-4-26b-a4b", 25.2e9, 0.005, 3.8e9, 0.02),
    ("mimo-v2-flash", 309e9, 0.002, 15e9, 0.02),
    ("step-3.7-flash", 196e9, 0.005, 11e9, 0.07),
]


@pytest.mark.parametrize(("model", "total", "total_off", "active", "active_off"), PUBLISHED)
def test_parameters_are_the_published_ones(model: str, total: float, total_off: float, active: float, active_off: float) -> None:
    spec = load_model(model)
    assert spec.params_total == pytest.approx(total, rel=total_off)
    assert spec.params_active == pytest.approx(active, rel=active_off)


def test_deepseek_v3_by_hand() -> None:
    """The sizes of arXiv 2412.19437, section 4.2, multiplied out."""
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    expert = 3 * 7168 * 2048
    moe = 257 * expert + 7168 * 256
    norms = 61 * 2 * 7168 + 7168
    total = 61 * attention + 3 * 3 * 7168 * 18432 + 58 * moe + norms + 2 * 129280 * 7168
    spec = load_model("deepseek-v3")
    assert spec.params_total == total
    assert spec.params_active == total - 58 * 248 * expert - 129280 * 7168


def test_layer_text_is_a_model_of_one_layer() -> None:
    spec = load_model("layer:hidden=7168,inter=2048,experts=256,topk=8,shared=1")
    v3 = load_model("deepseek-v3").moe
    assert v3 is not None
    assert spec.moe == v3.model_copy(update={"n_group": 1, "topk_group": 1})
    assert (spec.layers, spec.moe_layers, spec.attention, spec.attention_kind, spec.vocab) == (1, 1, (), None, None)
    assert spec.params_total == 257 * 3 * 7168 * 2048 + 7168 * 256 + 7168


def test_promised_models_are_bundled() -> None:
    assert set(PROMISED) <= set(model_ids())
    load_model(PROMISED[0])
    for model in PROMISED:
        assert load_model(model).moe is not None


@pytest.mark.parametrize("model", model_ids())
def test_bundled_model_is_whole(model: str) -> None:
    spec = load_model(model)
    assert spec.id == model
    assert spec.source.startswith("https://huggingface.co/")
    assert spec.attention
    assert spec.inter is not None
    assert spec.vocab is not None
    assert spec.params_active <= spec.params_total
    blocks = sum(a.layers for a in spec.attention) + sum(d.layers for d in spec.dense) + spec.moe_layers
    assert blocks in (spec.layers, 2 * spec.layers, 3 * spec.layers)  # Nemotron-H: one block a layer; Gemma 4: MLP beside experts


def test_bundled_formats_are_formats() -> None:
    formats = pytest.importorskip("perfmodel.formats")
    assert {load_model(m).format for m in model_ids()} <= set(formats.format_ids())


def test_unknown_id_names_the_nearest() -> None:
    with pytest.raises(PerfModelError, match=r"MODEL.*gpt-os-20b.*Did you mean gpt-oss-20b"):
        load_model("gpt-os-20b")


@pytest.mark.parametrize("name", ["", " ", "deepseek-v3.yaml", "..", "DEEPSEEK-V33", "x" * 5000, "a\0b", "\n"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(PerfModelError):
        load_model(name)


def test_softmax_attention_by_hand() -> None:
    block = {"layers": 1, "kind": "gqa", "heads": 4, "kv_heads": 2, "head_dim": 3}
    assert SoftmaxAttention(**block).weights(10) == 10 * 12 + 2 * 10 * 6 + 12 * 10
    assert SoftmaxAttention(**block, bias=True).weights(10) == 360 + 12 + 6 + 6 + 10
    assert SoftmaxAttention(**block, output_gate=True).weights(10) == 360 + 120
    assert SoftmaxAttention(**block, shared_kv=True).weights(10) == 360 - 60
    assert SoftmaxAttention(**block, v_head_dim=5).weights(10) == 10 * (12 + 6 + 10) + 20 * 10
    indexer = Indexer(heads=2, head_dim=7, topk=16, block=128)
    assert SoftmaxAttention(**block, indexer=indexer).weights(10) == 360 + 10 * (2 * 7 + 7 + 2)


def test_latent_attention_by_hand() -> None:
    block = {"layers": 1, "kind": "mla", "heads": 2, "kv_lora_rank": 4, "nope_head_dim": 3, "rope_head_dim": 1, "v_head_dim": 5}
    rest = 10 * 5 + 4 * 2 * 8 + 2 * 5 * 10
    assert LatentAttention(**block).weights(10) == 10 * 8 + rest
    assert LatentAttention(**block, q_lora_rank=6).weights(10) == 10 * 6 + 6 * 8 + rest
    assert LatentAttention(**block, output_gate=True).weights(10) == 10 * 8 + rest + 10 * 10
    indexer = Indexer(heads=2, head_dim=3, topk=8)
    with_indexer = LatentAttention(**block, q_lora_rank=6, indexer=indexer).weights(10)
    assert with_indexer == 10 * 6 + 6 * 8 + rest + 6 * 2 * 3 + 10 * 3 + 10 * 2
    shared = indexer.model_copy(update={"shared": True})
    assert LatentAttention(**block, indexer=shared).weights(10) == 10 * 8 + rest


def test_compressed_attention_by_hand() -> None:
    block = {"layers": 1, "kind": "csa", "heads": 4, "head_dim": 8, "q_lora_rank": 6, "o_lora_rank": 5, "o_groups": 2, "window": 128}
    plain = 10 * 6 + 6 * 32 + 10 * 8 + 32 * 5 + 2 * 5 * 10
    assert CompressedAttention(**block).weights(10) == plain
    assert CompressedAttention(**block, compress=128).weights(10) == plain + 2 * 10 * 8 + 128 * 8
    indexer = Indexer(heads=2, head_dim=3, topk=8)
    own = 6 * 2 * 3 + 10 * 2 + 2 * 10 * 6 + 4 * 6
    assert CompressedAttention(**block, compress=4, indexer=indexer).weights(10) == plain + 2 * 10 * 16 + 4 * 16 + own


def test_recurrent_blocks_by_hand() -> None:
    delta = GatedDeltaNet(layers=1, kind="gdn", key_heads=2, value_heads=4, key_head_dim=3, value_head_dim=5, conv_kernel=4)
    assert delta.weights(10) == 10 * (6 + 6 + 20 + 20 + 4 + 4) + (6 + 6 + 20) * 4 + 4 + 4 + 20 * 10
    kimi = {"layers": 1, "kind": "kda", "heads": 2, "head_dim": 3, "conv_kernel": 4}
    low_rank = 10 * 3 + 3 * 6
    assert KimiDeltaAttention(**kimi).weights(10) == 4 * 60 + 2 * low_rank + 10 * 2 + 3 * 6 * 4
    assert KimiDeltaAttention(**kimi, full_rank_gate=True).weights(10) == 5 * 60 + low_rank + 10 * 2 + 3 * 6 * 4
    mamba = Mamba2(layers=1, kind="mamba2", heads=2, head_dim=8, state=5, groups=1, conv_kernel=4)
    assert mamba.weights(10) == 10 * (16 + 16 + 10 + 2) + (16 + 10) * 5 + 3 * 2 + 16 + 16 * 10


def _model(**changes: object) -> ModelSpec:
    fields: dict[str, object] = {
        "id": "m",
        "source": "test",
        "hidden": 8,
        "layers": 2,
        "vocab": 10,
        "attention": [SoftmaxAttention(layers=2, kind="mqa", heads=2, kv_heads=1, head_dim=4)],
        "dense": [DenseMlp(layers=1, inter=16)],
        "moe_layers": 1,
        "moe": MoeLayer(hidden=8, inter=4, experts=6, topk=2, shared=1),
    }
    return ModelSpec.model_validate(fields | changes)


def test_small_model_by_hand() -> None:
    attention, mlp, expert = 8 * 8 + 2 * 8 * 4 + 8 * 8, 3 * 8 * 16, 3 * 8 * 4
    body = 2 * attention + mlp + 7 * expert + 8 * 6 + 5 * 8
    assert _model().params_total == body + 2 * 80
    assert _model(tied_embeddings=True).params_total == body + 80
    assert _model().params_active == _model(tied_embeddings=True).params_active == body - 4 * expert + 80
    latent = MoeLayer(hidden=8, inter=4, experts=6, topk=2, latent=3, gated=False, shared=2, shared_inter=5)
    assert _model(moe=latent).params_total == body + 160 - 7 * expert + 6 * 2 * 3 * 4 + 2 * 2 * 8 * 5 + 2 * 8 * 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moe_layers": 0}, "both or neither"),
        ({"moe": None}, "both or neither"),
        ({"hidden": 16}, "hidden 8 is not the model's 16"),
        ({"layers": 1}, "do not fit"),
        ({"attention": [{"layers": 1, "kind": "gqa", "heads": 2, "kv_heads": 2, "head_dim": 4}]}, "are mha"),
        ({"layers": -1}, "greater than 0"),
        ({"vocab": 1.5}, "integer"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _model(**changes)


def test_attention_kinds() -> None:
    kinds = {
        m: load_model(m).attention_kind for m in ("llama-3.1-8b", "deepseek-v3", "deepseek-v4-pro", "nemotron-3-nano", "qwen3.5-35b-a3b")
    }
    assert list(kinds.values()) == ["gqa", "mla", "csa", "hybrid", "hybrid"]
    assert [softmax_kind(8, k) for k in (8, 2, 1)] == ["mha", "gqa", "mqa"]
    assert softmax_kind(1, 1) == "mha"


sizes = st.integers(min_value=1, max_value=64)


@settings(deadline=None, max_examples=50)
@given(inter=sizes, experts=sizes, topk=sizes, shared=st.integers(0, 3), layers=st.integers(1, 2))
def test_laws_of_counting(inter: int, experts: int, topk: int, shared: int, layers: int) -> None:
    moe = MoeLayer(hidden=8, inter=inter, experts=experts, topk=min(topk, experts), shared=shared)
    model = _model(moe=moe, moe_layers=layers)
    assert model.params_active <= model.params_total
    wider = _model(moe=moe.model_copy(update={"inter": 2 * inter}), moe_layers=layers)
    assert wider.params_total - model.params_total == layers * (experts + shared) * 3 * 8 * inter
    everyone = _model(moe=moe.model_copy(update={"topk": experts}), moe_layers=layers)
    assert everyone.params_active == everyone.params_total - 80


@pytest.mark.parametrize("word", ["GPT-OSS-20b", "openai/gpt-oss-20b", "OpenAI/GPT-OSS-20B"])
def test_ids_of_hugging_face_and_of_any_case_name_bundled_models(word, tmp_path, monkeypatch):
    assert load_model(word).id == "gpt-oss-20b"
    monkeypatch.chdir(tmp_path)
    (tmp_path / word).mkdir(parents=True)
    with pytest.raises(PerfModelError, match="folder without"):  # a folder that is there is meant
        load_model(word)
