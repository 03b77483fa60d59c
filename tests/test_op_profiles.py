"""The bundled profiles of ops: every file loads, names what its op knows, and is named by the loader."""

import numpy as np
import pytest

from perfmodel.errors import PerfModelError
from perfmodel.formats import get_format
from perfmodel.hardware import load_gpu
from perfmodel.ops.catalog import OPS, get_op, get_op_profile, op_profiles, predict_op
from perfmodel.profiles import op_profile
from perfmodel.profiles.op_profile import load_op_profile, op_profile_ids, pooled_ids
from perfmodel.validation.silicon.names import gemm_protocol, names

MOST_NUMBERS = 40


@pytest.mark.parametrize("name", op_profile_ids())
def test_a_profile_names_only_what_its_op_knows(name):
    profile = get_op_profile(name)
    op = get_op(profile.op)
    pairs = [(arch, form) for fit in profile.fits for arch in fit.architectures for form in fit.formats]
    assert len(pairs) == len(set(pairs))
    for fit in profile.fits:
        assert set(fit.parameters) <= set(op.parameters)
        assert set(fit.menus) <= set(op.menus)
        if op.id in ("gemm", "quantise"):  # others are told apart by more than the format: the cache's, what is reduced
            assert all(get_format(form) for form in fit.formats)
        assert len(fit.parameters) + sum(map(len, fit.menus.values())) < MOST_NUMBERS  # intervals are what those leave over
        if fit.provenance.status == "measured":
            assert fit.provenance.rows
            for parameter, value in fit.parameters.items():
                known = op.parameters[parameter]
                assert known.low * 0.99 <= value <= known.high * 1.01, parameter


def test_parameters_are_expected_within_their_bounds():
    for op in OPS.values():
        for name, parameter in op.parameters.items():
            assert parameter.low <= parameter.expected <= parameter.high, (op.id, name)
            assert parameter.meaning


def test_every_rule_of_an_op_names_a_profile_of_that_op():
    for kind, rules in names().ops.items():
        for rule in rules:
            assert load_op_profile(rule.profile).op.startswith(kind), rule  # prefill and decode are two ops of one table


def test_every_profile_of_an_op_is_named_by_a_rule():
    named = {rule.profile for rules in names().ops.values() for rule in rules}
    assert {profile.id for op in OPS.values() for profile in op_profiles(op)} <= named


def test_protocols_of_measurement():
    assert gemm_protocol("vllm 0.24.0 DeepGemm", "fp8-block").eager
    assert gemm_protocol("vllm 0.24.0 x", "bf16").copies == 6
    assert gemm_protocol("trtllm 1.3.0rc20 torch_flow", "fp8").until_l2
    assert gemm_protocol("trtllm 1.0.0 trt_flow_/x", "int8").copies == 1000


def test_an_op_that_is_not_there_is_told_with_the_nearest():
    with pytest.raises(PerfModelError, match="gemm"):
        get_op("gem")


def test_a_member_of_a_pool_brings_the_others():
    pool = {profile.id for profile in op_profiles(OPS["collectives"]) if profile.pool == load_op_profile("nccl-all-reduce").pool}
    assert len(pool) > 1
    assert set(pooled_ids(["nccl-all-reduce"])) == pool
    assert pooled_ids(["gemm-torch", "nccl-all-reduce"]) == sorted({"gemm-torch", *pool})
    assert pooled_ids([]) == []
    with pytest.raises(PerfModelError, match="nccl-all-reduce"):
        pooled_ids(["nccl-all-reduc"])


GOOD = """op: gemm
name: made
summary: made
fits:
  - architectures: [hopper]
    formats: [bf16]
    menus: {tile_m: [128], tile_n: [128]}
    interval: {low: 0.5, high: 2.0}
    provenance: {status: estimated, source: a test, date: "2026-01-01"}
"""


@pytest.mark.parametrize(
    ("op", "menus", "field"),
    [
        ("gemm", "{tile_m: [128], tile_n: [128]}", None),
        ("gemm", "{tile_m_by_size: [64, 128], tile_n: [128], split: [4, 8]}", None),
        ("gemm", "{tile_n: [128]}", "fits.0.menus.tile_m"),
        ("gemm", "{tile_m: [128]}", "fits.0.menus.tile_n"),
        ("gemm", "{tile_q: [128], tile_m: [128], tile_n: [128]}", "fits.0.menus.tile_q"),
        ("attention-prefill", "{pack: [1]}", "fits.0.menus.tile_q"),
        ("attention-decode", "{}", "fits.0.menus.tile_m"),
        ("collectives", "{own_KiB: [1]}", "fits.0.menus.passes"),
        ("collectives", "{passes: [2], own_KiB: [1, 2]}", "fits.0.menus.own_KiB"),
        ("collectives", "{passes: [2], own_KiB: [1, 2, 3]}", None),
        ("gem", "{}", "op"),
    ],
)
def test_a_menu_that_the_op_needs_is_missed_with_file_line_and_mend(tmp_path, monkeypatch, op, menus, field):
    monkeypatch.setattr(op_profile, "FOLDER", tmp_path)
    name = f"made-{abs(hash((op, menus)))}"  # profiles are read once
    text = GOOD.replace("op: gemm", f"op: {op}").replace("{tile_m: [128], tile_n: [128]}", menus)
    (tmp_path / f"{name}.yaml").write_text(text)
    if field is None:
        assert get_op_profile(name).op == op
        return
    with pytest.raises(PerfModelError) as caught:
        get_op_profile(name)
    error = caught.value
    assert (error.file, error.field) == (tmp_path / f"{name}.yaml", field)
    assert error.mend
    assert op == "gem" or error.line == 7


def test_a_fit_without_its_menus_is_told_when_it_is_used():
    fit = load_op_profile("gemm-torch").find_fit("hopper", "bf16").model_copy(update={"menus": {}})
    ones = dict.fromkeys(OPS["gemm"].sizes, np.ones(1))
    with pytest.raises(PerfModelError, match=r"menus\.tile_m.*Add tile_m or tile_m_by_size"):
        predict_op(OPS["gemm"], load_gpu("h200"), "bf16", fit, ones)
    large = fit.model_copy(update={"menus": {"tile_m": (1024,), "tile_n": (1024,)}})
    with pytest.raises(PerfModelError, match="no tile of the menus fits"):
        predict_op(OPS["gemm"], load_gpu("h200"), "bf16", large, ones)
    deep = fit.model_copy(update={"menus": {"tile_m": (128,), "tile_n": (128,), "split": (8,)}})
    assert np.isfinite(predict_op(OPS["gemm"], load_gpu("h200"), "bf16", deep, ones)).all()
