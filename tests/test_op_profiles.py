"""The bundled profiles of ops: every file loads, names what its op knows, and is named by the loader."""

import pytest

from perfmodel.errors import PerfModelError
from perfmodel.formats import get_format
from perfmodel.ops.catalog import OPS, get_op, op_profiles
from perfmodel.profiles.op_profile import load_op_profile, op_profile_ids, pooled_ids
from perfmodel.validation.silicon.names import gemm_protocol, names

MOST_NUMBERS = 40


@pytest.mark.parametrize("name", op_profile_ids())
def test_a_profile_names_only_what_its_op_knows(name):
    profile = load_op_profile(name)
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
