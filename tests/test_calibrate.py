"""Calibration, held against times that a profile itself made: the fit has to find its way back."""

import numpy as np
import pytest

from perfmodel.profiles import load_profile
from perfmodel.profiles.profile import FOLDER
from perfmodel.validation import fitting
from perfmodel.validation.calibrate import Batch, Family, families, fit_family, refitted, shape_share
from perfmodel.validation.fitting import shares
from perfmodel.validation.measurements import Labels, Measurements
from perfmodel.validation.profile_text import profile_text

FAMILY = Family("deepgemm", "blackwell", "fp8-block")


def layers(count=3000, seed=0) -> Measurements:
    """Random layers of DeepGEMM on a B200, not timed yet: 150 shapes of 20 token counts."""
    rng = np.random.default_rng(seed)
    shapes = count // 20
    one = {
        "hidden": rng.choice([2048, 4096, 6144, 7168], shapes),
        "inter": rng.choice([768, 1024, 1536, 2048, 3072], shapes),
        "topk": rng.choice([2, 4, 6, 8], shapes),
        "num_experts": rng.choice([64, 128, 160, 256], shapes),
        "tp": rng.choice([1, 2], shapes),
        "ep": rng.choice([1, 2, 4, 8], shapes),
    }
    sizes = {"num_tokens": np.tile(2 ** np.arange(20) // 2 % 32768 + 1, shapes)} | {name: np.repeat(v, 20) for name, v in one.items()}
    texts = {
        "gpu": "b200",
        "kernel": "deepgemm",
        "format": "fp8-block",
        "routing": "balanced",
        "gated": "true",
        "source": "",
        "launch": "",
        "caches": "cold",
    }
    return Measurements(
        kind="layer",
        file="made.csv",
        lines=np.arange(count) + 2,
        labels={name: Labels.of([text] * count) for name, text in texts.items()},
        sizes={name: column.astype(np.int64) for name, column in sizes.items()},
        latency=np.ones(count),
    )


def timed(rows: Measurements, noise: float) -> Measurements:
    """The rows with the times of the bundled profile, times a log-normal noise."""
    batch = Batch(rows, np.arange(len(rows)), load_profile("deepgemm"))
    rows.latency[:] = batch.predict(load_profile("deepgemm").fit("blackwell", "fp8-block").parameters)
    rows.latency[:] *= np.exp(np.random.default_rng(1).normal(0, noise, len(rows)))
    return rows


def test_a_fit_finds_the_times_that_made_the_rows(monkeypatch):
    monkeypatch.setattr(fitting, "MOST_SHARE", 300)
    rows = timed(layers(), noise=0.02)
    share = shape_share(rows)
    fitted = fit_family(rows, np.arange(len(rows)), share, FAMILY, load_profile("deepgemm"))
    unseen = np.flatnonzero(share >= 450)
    error = np.abs(Batch(rows, unseen, load_profile("deepgemm")).predict(fitted.fit.parameters) / rows.latency[unseen] - 1)
    assert np.median(error) < 0.03  # of which the noise is 0.013
    assert fitted.rows < 0.55 * len(rows)
    assert fitted.errors["bandwidth_efficiency"] < 0.1
    assert 0.85 < fitted.fit.interval.low < 1 < fitted.fit.interval.high < 1.15


def test_wild_rows_do_not_bend_a_fit(monkeypatch):
    monkeypatch.setattr(fitting, "MOST_SHARE", 300)
    rows = timed(layers(), noise=0.02)
    rows.latency[np.random.default_rng(2).random(len(rows)) < 0.1] *= 5
    share = shape_share(rows)
    fitted = fit_family(rows, np.arange(len(rows)), share, FAMILY, load_profile("deepgemm"))
    unseen = np.flatnonzero(share >= 450)
    error = np.abs(Batch(rows, unseen, load_profile("deepgemm")).predict(fitted.fit.parameters) / rows.latency[unseen] - 1)
    assert np.median(error) < 0.04


def test_too_few_rows_give_no_fit():
    rows = timed(layers(40), noise=0.0)
    assert fit_family(rows, np.arange(len(rows)), shape_share(rows), FAMILY, load_profile("deepgemm")) is None


def test_a_shape_is_on_one_side_whatever_its_tokens():
    rows = layers()
    share = shape_share(rows).reshape(-1, 20)
    assert (share == share[:, :1]).all()
    assert (shape_share(rows.take(np.arange(40, 80))) == share[2:4].ravel()).all()  # and whatever else is there
    assert 0.3 < (share < 500).mean() < 0.7


@pytest.mark.parametrize("rows", [1, 5_000, 30_000, 100_000, 1_000_000])
def test_small_families_give_a_larger_share_and_large_ones_a_small_one(rows):
    fit, both = shares(rows)
    assert fitting.LEAST_SHARE <= fit <= fitting.MOST_SHARE
    assert fit < both <= 1.5 * fit
    assert shares(2 * rows)[0] <= fit


def test_families_are_kernel_architecture_and_format():
    rows = layers(40)
    rows.labels["gpu"] = Labels.of(["b200", "gb200", "h200", "h100"] * 10)
    found = families(rows, np.arange(40) > 3)
    assert {(family.architecture, len(index)) for family, index in found.items()} == {("blackwell", 18), ("hopper", 18)}


@pytest.mark.parametrize("name", ["deepgemm", "trtllm-gen", "marlin", "sglang-triton"])
def test_a_profile_written_is_the_profile_read(name, tmp_path):
    profile, before = load_profile(name), (FOLDER / f"{name}.yaml").read_text()
    path = tmp_path / f"{name}.yaml"
    path.write_text(profile_text(profile, before))
    again = load_profile(str(path))
    assert again.fits == profile.fits
    assert path.read_text().partition("\nfits:\n")[0] == before.partition("\nfits:\n")[0]


def test_a_new_fit_takes_the_place_of_its_own_family_alone():
    rows = timed(layers(6000), noise=0.02)
    fitted = fit_family(rows, np.arange(len(rows)), shape_share(rows), FAMILY, load_profile("deepgemm"))
    before, after = load_profile("deepgemm"), refitted(load_profile("deepgemm"), [fitted])
    assert after.fit("blackwell", "fp8-block") == fitted.fit
    for fit in before.fits:
        for architecture in fit.architectures:
            for form in fit.formats:
                assert after.supports(architecture, form)
                if (architecture, form) != ("blackwell", "fp8-block"):
                    assert after.fit(architecture, form).parameters == fit.parameters
