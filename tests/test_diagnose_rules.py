"""What each rule of a diagnosis says and saves, worked out by hand."""

import pytest

from perfmodel.diagnose.bounds import active, bound_of
from perfmodel.diagnose.expected import Asked, expect
from perfmodel.diagnose.facts import Expected, Facts
from perfmodel.diagnose.findings import findings
from perfmodel.hardware import load_gpu

H200 = load_gpu("h200")
TIME = 1e-4
WAITS = {"stall_long_scoreboard": 9.0, "stall_wait": 1.0}


def found(*, kind="elementwise", expected=None, **c):
    """Cause -> finding of a kernel of 100 us with these counters."""
    c = {"duration": TIME, "dram": 0.3, "compute": 0.2} | c
    return {one.cause: one for one in findings(Facts(kind, c, bound_of(c), H200, expected))}


def test_idle_sms_cost_the_time_in_which_they_are_idle():
    idle = {"sm_active": 700.0, "sm_elapsed": 1000.0}
    assert found(**idle)["SMs idle at the start or the end"].saves == pytest.approx(0.3 * TIME)
    assert found(**idle, grid=60.0, sms=132.0)["too few CTAs"].saves == pytest.approx(0.3 * TIME)
    assert found(**idle, waves=2.5)["tail wave"].saves == pytest.approx(0.3 * TIME)
    assert not found(sm_active=950.0, sm_elapsed=1000.0, waves=2.5)  # SMs are active: there is no tail
    assert active({"sm_active": 1010.0, "sm_elapsed": 1000.0}, 0.5) == 1.0


def test_low_occupancy_names_what_limits_it_and_saves_up_to_the_busiest_units_best():
    limits = {"limit_registers": 2.0, "limit_shared": 4.0, "limit_warps": 8.0}
    one = found(occupancy_limit=0.25, **limits)["low occupancy"]
    assert "limited by registers, and" in one.evidence
    assert one.saves == pytest.approx(TIME * (1 - 0.3 / 0.93))
    assert "low occupancy" not in found(occupancy_limit=0.25, dram=0.7, **limits)


@pytest.mark.parametrize(("reductions", "named"), [(24.0, False), (26.0, True)])
def test_atomics_are_named_from_a_quarter_of_the_sectors(reductions, named):
    assert ("atomics stand in line" in found(reductions=reductions, sectors=100.0, **WAITS)) == named


def test_atomics_that_nothing_waits_for_are_not_named():
    assert "atomics stand in line" not in found(reductions=90.0, sectors=100.0, stall_barrier=1.0)


def test_slower_than_the_model_costs_the_difference():
    assert found(expected=Expected("down", 0.6 * TIME, None))["slower than the model expects"].saves == pytest.approx(0.4 * TIME)
    assert not found(expected=Expected("down", 0.8 * TIME, None))


def test_bank_conflicts_save_only_where_l1_bounds():
    shared = {"wavefronts": 100.0, "wavefronts_ideal": 50.0, "sm_active": 1.0, "sm_elapsed": 1.0}
    cause = "bank conflicts in shared memory"
    assert found(dram=0.7, **shared)[cause].saves is None
    assert found(l1=0.9, **shared)[cause].saves == pytest.approx(TIME * (1 - 0.9 / 0.97))


def test_a_compute_bound_kernel_does_not_wait_for_sectors():
    wide = {"sectors": 100.0, "sectors_ideal": 25.0}
    assert "uncoalesced accesses" in found(**wide)
    assert "uncoalesced accesses" not in found(compute=0.9, **wide)


def test_a_cache_that_bounds_saves_up_to_its_best():
    assert found(l2=0.9)["L2 busiest"].saves == pytest.approx(TIME * (1 - 0.9 / 0.97))


def test_no_kernel_gets_shorter_than_an_empty_one():
    one = found(duration=2e-6, sm_active=1.0, sm_elapsed=100.0)
    assert max(each.saves or 0.0 for each in one.values()) == pytest.approx(0.4e-6)


def test_operands_of_w4a8_are_a_byte_in_and_two_out():
    layer = "layer:hidden=7168,inter=2048,experts=16,topk=1"
    down = expect(Asked(layer, 1024, "mxfp4-w4a8", "numba-wgmma", "balanced", ops=("down",)), H200).gemms[0]
    assert down.bytes == pytest.approx(16 * 7168 * 2048 * 4.25 / 8 + 1024 * (2048 * 1 + 7168 * 2), rel=0.02)  # scales of tokens besides
