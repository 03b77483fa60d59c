"""Attention in prefill and decode: hand-computed FLOPs and bytes, laws of the mask, of windows and of shared KV heads, and the loader."""

import numpy as np
import pytest

from perfmodel.errors import PerfModelError
from perfmodel.hardware import load_gpu
from perfmodel.ops.attention import Shapes, attention_format, byte_time, exponential_rate, floor_time, masked_pairs
from perfmodel.ops.attention_decode import DECODE
from perfmodel.ops.attention_prefill import PREFILL, Tiling, tile_keys
from perfmodel.ops.catalog import OPS, op_profiles, predict_op
from perfmodel.ops.op import Use
from perfmodel.profiles.op_profile import load_op_profile

H200 = load_gpu("h200")
ALONE = {"tile_q": (128,)}


def sizes(**given):
    """One row or several: Llama's attention of one sequence, 1024 tokens, unless said otherwise."""
    usual = {"batch": 1, "context": 1024, "prefix": 0, "heads": 32, "kv_heads": 8, "key_dim": 128, "value_dim": 128, "window": 0} | given
    usual.setdefault("cache_dim", np.add(usual["key_dim"], usual["value_dim"]))
    count = max(np.size(value) for value in usual.values())
    return {name: np.broadcast_to(np.asarray(value, float), (count,)).copy() for name, value in usual.items()}


def prefill(menus=ALONE, gpu=H200, form="bf16", parameters=None, **given):
    return PREFILL.time(Use(gpu, form, menus), sizes(**given), PREFILL.complete(parameters or {}))


def decode(tile=64, gpu=H200, form="bf16", parameters=None, **given):
    return DECODE.time(Use(gpu, form, {"tile_m": (tile,)}), sizes(**given), DECODE.complete(parameters or {}))


@pytest.mark.parametrize(
    ("queries", "context", "window"), [(1, 7, np.inf), (7, 7, np.inf), (4, 9, np.inf), (7, 7, 3), (4, 9, 6), (4, 9, 2), (5, 5, 99)]
)
def test_pairs_of_the_mask_are_those_that_are_counted_one_by_one(queries, context, window):
    one_by_one = sum(min(context - queries + i + 1, window) for i in range(queries))
    assert masked_pairs(np.array([queries], float), np.array([context], float), np.array([window], float)) == [one_by_one]


def test_flops_and_bytes_by_hand():
    shapes = Shapes.of(sizes(batch=2, context=100, heads=32, kv_heads=8), np.array([100.0]))
    assert shapes.flops() == [2 * 32 * (100 * 101 / 2) * 2 * (128 + 128)]
    assert shapes.cache_elements() == [2 * 8 * 100 * 256]
    assert shapes.query_elements() == [2 * 100 * 32 * 256]


def test_the_cache_of_mla_is_one_latent_vector_a_token():
    mla = {"heads": 128, "kv_heads": 1, "key_dim": 576, "value_dim": 512, "cache_dim": 576}
    shapes = Shapes.of(sizes(batch=4, context=1000, **mla), np.ones(1))
    assert shapes.cache_elements() == [4 * 1000 * 576]
    assert shapes.flops() == [4 * 128 * 1000 * 2 * (576 + 512)]


def test_a_causal_mask_is_half_of_the_square():
    shapes = Shapes.of(sizes(context=8192), np.array([8192.0]))
    walked, longest = tile_keys(shapes, Tiling.of(shapes, 128.0, pack=False), shapes.window)
    assert walked == [128 * 64 * 65 / 2]
    assert longest == [8192]
    assert walked / (64 * 8192) == pytest.approx([0.5], abs=0.01)


def test_the_last_tile_stops_where_the_context_does():
    shapes = Shapes.of(sizes(context=160), np.array([160.0]))
    walked, longest = tile_keys(shapes, Tiling.of(shapes, 128.0, pack=False), shapes.window)
    assert walked == [128 + 192]  # 160 keys in blocks of 64
    assert longest == [192]


def test_packed_heads_fill_tiles_together():
    shapes = Shapes.of(sizes(context=16, heads=32, kv_heads=8), np.array([16.0]))
    alone, packed = Tiling.of(shapes, 64.0, pack=False), Tiling.of(shapes, 64.0, pack=True)
    assert (alone.tiles * alone.heads, packed.tiles * packed.heads) == ([32.0], [8.0])
    assert packed.span == [16.0]
    short = {"context": 16, "batch": 64}
    assert prefill({"tile_q": (64,), "pack": (1,)}, **short).total < prefill({"tile_q": (64,)}, **short).total


def test_a_long_prefill_takes_its_flops_at_the_rate_of_the_profile():
    given = {"compute_efficiency": 0.5, "exponentials": 0.2, "softmax_exponent": 20.0, "overlap_exponent": 30.0}
    time = prefill(context=65536, parameters=given)
    flops = 32 * 65536**2 / 2 * 2 * 256
    assert time.total == pytest.approx(flops / (0.5 * H200.peak_flops("bf16")), rel=0.02)
    assert time.regime() == [1]


def test_exponentials_bound_narrow_heads():
    slow, fast = ({"exponentials": one, "softmax_exponent": 20.0} for one in (8.0, 0.2))
    narrow, wide = {"context": 32768, "key_dim": 64, "value_dim": 64}, {"context": 32768, "key_dim": 256, "value_dim": 256}
    pairs = 32 * 32768**2 / 2
    assert prefill(parameters=slow, **narrow).compute == pytest.approx(pairs * 8 / (132 * exponential_rate(H200)), rel=0.02)
    assert prefill(parameters=slow, **narrow).total > 2 * prefill(parameters=fast, **narrow).total
    assert prefill(parameters=slow, **wide).total < 2 * prefill(parameters=fast, **wide).total


def test_blackwell_ultra_has_twice_the_exponentials():
    assert exponential_rate(load_gpu("b300")) == pytest.approx(2 * exponential_rate(load_gpu("b200")), rel=0.01)


def test_decode_streams_the_cache_at_the_bandwidth_of_the_profile():
    time = decode(batch=256, context=16384, parameters={"bandwidth_efficiency": 0.9, "overlap_exponent": 30.0, "sm_bandwidth_GBps": 400.0})
    cache = 256 * 16384 * 8 * 256 * 2.0
    assert time.total == pytest.approx(cache / (0.9 * H200.dram_bandwidth), rel=0.02)
    assert time.regime() == [2]


def test_a_cache_in_fp8_takes_half_and_a_quarter_of_the_heads_a_quarter():
    long = {"batch": 64, "context": 16384, "parameters": {"compute_efficiency": 1.0, "exponentials": 0.1, "sm_bandwidth_GBps": 400.0}}
    whole = decode(**long).total
    assert decode(form="bf16-fp8kv", **long).total / whole == pytest.approx([0.5], abs=0.1)
    assert decode(kv_heads=2, **long).total / whole == pytest.approx([0.25], abs=0.1)


def test_query_heads_that_stand_alone_read_the_cache_each():
    long = {"batch": 8, "context": 16384}
    assert decode(tile=1, **long).compute > 3 * decode(tile=64, **long).compute


def test_small_caches_come_from_l2_and_large_ones_from_dram():
    known = {"bandwidth_efficiency": 0.9, "l2_efficiency": 0.5, "l2_kept": 0.5}
    small, large = byte_time(np.array([1e6, 1e9]), H200, known)
    assert small == pytest.approx(1 / (0.5 * H200.l2_bandwidth))
    assert large == pytest.approx(1 / (0.9 * H200.dram_bandwidth))


@pytest.mark.parametrize("name", ["batch", "context", "heads"])
@pytest.mark.parametrize("time", [prefill, decode])
def test_more_is_never_faster(time, name):
    steps = np.unique(np.geomspace(1, 4096, 60).round()) * (8 if name == "heads" else 1)
    totals = time(**{name: steps}).total
    assert (np.diff(totals) >= -1e-12).all()


@pytest.mark.parametrize("time", [prefill, decode])
def test_a_window_is_never_slower_and_wide_ones_are_none(time):
    free = {"window_us": 0.001, "window_waste": 1e-6}
    windows = np.array([16, 128, 1024, 4096, 16384])
    totals = time(context=8192, window=windows, batch=16, parameters=free).total
    assert (np.diff(totals) >= -1e-12).all()
    assert totals[-1] == pytest.approx(time(context=8192, batch=16, parameters=free).total[0], rel=1e-3)
    assert totals[0] < 0.3 * totals[-1]


def test_a_kernel_that_wastes_windows_gains_nothing_by_them():
    wasteful = {"window_waste": 1.0, "window_us": 0.001}
    for time in (prefill, decode):
        assert time(context=8192, window=128, parameters=wasteful).total == pytest.approx(time(context=8192).total, rel=0.01)


def test_a_cached_prefix_leaves_the_new_queries_alone():
    whole, rest = prefill(context=8192), prefill(context=8192, prefix=6144)
    assert rest.total < 0.6 * whole.total
    pairs = masked_pairs(np.array([2048.0]), np.array([8192.0]), np.array([np.inf]))
    assert rest.floor == pytest.approx(pairs * 32 * 512 / H200.peak_flops("bf16"))


def test_nothing_is_below_the_floor_which_l2_may_lower():
    grid = {"batch": [1, 64, 1024], "context": [131072, 4096, 64]}
    for op, time in ((PREFILL, prefill), (DECODE, decode)):
        cheap = ("_us", "_ns", "_bytes", "tail", "exponentials", "waste")
        best = {name: one.low if name.endswith(cheap) else one.high for name, one in op.parameters.items()}
        found = time(parameters=best, **grid)
        assert (found.total >= found.floor).all()
    small = Shapes.of(sizes(), np.ones(1))
    assert floor_time(small, attention_format("bf16"), H200) == pytest.approx(small.flops() / H200.peak_flops("bf16"))


def test_a_format_that_attention_lacks_is_named():
    with pytest.raises(PerfModelError, match="no such format"):
        decode(form="fp8kv")


@pytest.mark.parametrize("op", ["attention-prefill", "attention-decode"])
def test_every_profile_predicts_with_an_interval_above_the_floor(op):
    gpus = {"ampere": "a100-80gb", "hopper": "h200", "blackwell": "b200", "ada": "l40s", "blackwell-rtx": "rtx-pro-6000"}
    known = op_profiles(OPS[op])
    assert len(known) > 15
    for profile in known:
        for fit in profile.fits:
            assert len(fit.parameters) < 40
            given = {name: sizes(context=[16, 2048])[name] for name in OPS[op].sizes}
            middle, floor, low, high = predict_op(OPS[op], load_gpu(gpus[fit.architectures[0]]), fit.formats[0], fit, given)
            assert (np.diff([floor, low, middle, high], axis=0) >= 0).all(), profile.id


def test_decode_of_the_bundled_profile_is_near_a_measured_row():
    """B200, vLLM 0.24, trtllm-gen: batch 32, 32 / 8 heads of 128, 8192 cached tokens in bf16 took 157 us (aiconfigurator-core 0.12.0)."""
    fit = load_op_profile("attention-vllm-flashinfer-decode").find_fit("blackwell", "bf16")
    given = {name: sizes(batch=32, context=8192)[name] for name in DECODE.sizes}
    middle = predict_op(DECODE, load_gpu("b200"), "bf16", fit, given)[0]
    assert middle == pytest.approx([157e-6], rel=0.15)
