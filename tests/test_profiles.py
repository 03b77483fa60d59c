import math
import re

import pytest

from perfmodel.errors import PerfModelError
from perfmodel.formats import format_ids
from perfmodel.hardware import gpu_ids, load_gpu
from perfmodel.ops.fabric import fabric
from perfmodel.ops.launch import launch_modes
from perfmodel.ops.moe_communication import exchange_time
from perfmodel.profiles import load_profile, profile_ids, profiles
from perfmodel.profiles.profile import FOLDER

NAMED = (
    "ideal",
    "generic-fused",
    "generic-unfused",
    "trtllm-cutlass",
    "trtllm-gen",
    "flashinfer-cutlass",
    "flashinfer-cutedsl",
    "deepgemm",
    "vllm-triton",
    "sglang-triton",
    "triton-kernels",
    "marlin",
    "torch-grouped-mm",
)


def test_every_named_profile_is_there():
    assert set(NAMED) <= set(profile_ids())


@pytest.mark.parametrize("profile", profiles(), ids=lambda p: p.id)
def test_every_fit_says_where_it_comes_from_and_names_what_exists(profile):
    architectures = {load_gpu(gpu).architecture for gpu in gpu_ids()}
    for fit in profile.fits:
        assert len(fit.provenance.source) > 20
        assert set(fit.formats) <= {*format_ids(), "any"}
        assert set(fit.architectures) <= architectures
        assert len(type(fit.parameters).model_fields) < 40


@pytest.mark.parametrize("gpu", gpu_ids())
def test_generic_kernels_run_every_format_that_the_gpu_has_units_for(gpu):
    from perfmodel.formats import get_format

    spec = load_gpu(gpu)
    for name in format_ids():
        if set(get_format(name).math) & set(spec.math_types):
            assert load_profile("generic-fused").supports(spec.architecture, name)
            assert load_profile("generic-unfused").supports(spec.architecture, name)


def test_a_profile_of_ones_own(tmp_path):
    import perfmodel

    text = (FOLDER / "trtllm-gen.yaml").read_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text(re.sub(r"bandwidth_efficiency: [0-9.]+", "bandwidth_efficiency: 0.4", text))
    stock, slower = (
        perfmodel.gap("gpt-oss-20b", "b200", format="nvfp4", kernel=k, tokens=64)["rows"][0]["latency_us"]
        for k in ("trtllm-gen", str(mine))
    )
    assert slower > 1.5 * stock


def test_a_fit_is_estimated_on_gpus_that_it_has_not_seen():
    import perfmodel

    here, there = (perfmodel.gap("gpt-oss-20b", gpu, kernel="numba-decode", tokens=8) for gpu in ("h200", "h100"))
    (seen,), (unseen,) = here["rows"], there["rows"]
    assert (seen["kernel_status"], unseen["kernel_status"]) == ("measured", "estimated")
    assert seen["interval_us"][1] / seen["latency_us"] == pytest.approx(1.07)
    assert unseen["interval_us"][1] / unseen["latency_us"] == pytest.approx(math.exp(math.hypot(math.log(1.07), 0.16)))
    note = "numba-decode was measured on h200 only: on h100 it is estimated, with a wider interval"
    assert note in there["notes"]
    assert note not in here["notes"]


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("bandwidth_efficiency: 0.85", "bandwidth_efficiency: 1.85", "bandwidth_efficiency"),
        ("bandwidth_efficiency: 0.85", "bandwidth_eficiency: 0.85", "bandwidth_eficiency"),
        ("launches: 5", "launches: five", "launches"),
        ("kind: measured", "kind: guessed", "kind"),
    ],
)
def test_a_broken_profile_names_file_line_and_field(tmp_path, old, new, field):
    mine = tmp_path / "mine.yaml"
    mine.write_text((FOLDER / "trtllm-gen.yaml").read_text().replace(old, new))
    with pytest.raises(PerfModelError, match=field) as error:
        load_profile(str(mine))
    assert error.value.line is not None


def test_launch_gaps_shrink_from_eager_to_persistent():
    times = [launch_modes()[mode].time(9) for mode in ("eager", "graph", "pdl", "persistent")]
    assert times == sorted(times, reverse=True)


def test_exchange_by_hand():
    import numpy as np

    wires = fabric(load_gpu("h200"))
    one = np.array([1.0])
    # 360 MB over NVLink at 0.8 x 450 GB/s = 1 ms, and 10 us of latency
    assert exchange_time(360e6 * one, 8 * one, 8 * one, wires)[0] == pytest.approx(1.01e-3)
    assert exchange_time(360e6 * one, one, 8 * one, wires)[0] == 0
    assert exchange_time(360e6 * one, 16 * one, 8 * one, wires)[0] > 1.01e-3  # half of it crosses the network
