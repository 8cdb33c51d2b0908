"""Availability models on phones: moments against a slow twin, and a study of phones whose model is known."""

import os
from pathlib import Path

import numpy as np
import pytest
from small_phones import written_phones

from fedray.base.errors import InputError
from fedray.scenarios import flash
from fedray.scenarios.flash import Phones, moments_of, read_phones

SHARED = Path(os.environ.get("FEDRAY_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
REAL = SHARED / "flash723.npz"
OWN = "by the phone's days"
needs_data = pytest.mark.skipif(
    not REAL.exists(), reason=f"{REAL} is missing; FEDRAY_SHARED_DATA names its folder"
)


def drawn_phones(seed: int = 1, phones: int = 60, days: int = 4) -> Phones:
    """Phones that are eligible by night, each with a rate of its own, and have gaps."""
    draws = np.random.default_rng(seed)
    step = np.arange(48 * days)
    rates = draws.uniform(0.05, 0.95, (phones, 1)) * np.where(step % 48 < 16, 0.9, 0.15)
    eligible = draws.random(rates.shape) < rates
    known = draws.random(rates.shape) < 0.8
    return Phones(eligible & known, known, step < 48 * (days - 2))


def slow_moments(phones: Phones) -> dict[str, float]:
    """Phone by phone and half hour by half hour."""
    count, steps = phones.known.shape
    on = looks = before = before_looks = day_on = day_looks = none = every = 0
    by_hours, by_hours_looks = [0] * 6, [0] * 6
    runs, pairs, totals, own, earlier = [], [], [], [], []
    for phone in range(count):
        days_seen, days_on, run, mine, mine_looks, past, past_looks = set(), set(), 0, 0, 0, 0, 0
        for step in range(steps):
            known, is_on = phones.known[phone, step], phones.eligible[phone, step]
            if known and phones.is_fitted[step]:
                past, past_looks = past + is_on, past_looks + 1
            counts = known and not phones.is_fitted[step]
            if counts:
                mine, mine_looks = mine + is_on, mine_looks + 1
                by_hours[step % 48 // 8] += is_on
                by_hours_looks[step % 48 // 8] += 1
                days_seen.add(step // 48)
                if is_on:
                    days_on.add(step // 48)
                if step >= 48 and phones.known[phone, step - 48]:
                    pairs.append((is_on, phones.eligible[phone, step - 48]))
            if counts and is_on:
                run += 1
            elif run:
                runs.append(run / 2)
                run = 0
        runs += [run / 2] if run else []
        on, looks, before, before_looks = (
            on + mine,
            looks + mine_looks,
            before + past,
            before_looks + past_looks,
        )
        day_on, day_looks = day_on + len(days_on), day_looks + len(days_seen)
        none += not days_on
        every += days_on == days_seen
        totals.append(mine)
        own.append(mine / mine_looks)
        earlier.append(past / past_looks)
    shares = [a / b for a, b in zip(by_hours, by_hours_looks, strict=True)]
    top = sorted(totals)[-(count // 10) :]
    return {
        "mean share eligible": on / looks,
        "mean share over that of fitted days": on / looks / (before / before_looks),
        "most over fewest of four hours": max(shares) / min(shares),
        "phones eligible on a day": day_on / day_looks,
        "phones eligible on no day": none / count,
        "phones eligible on every day": every / count,
        "mean hours of a run": sum(runs) / len(runs),
        "hours of a run, 90 % quantile": float(np.quantile(runs, 0.9)),
        "correlation with 24 hours earlier": float(
            np.corrcoef(np.array(pairs).T.astype(float))[0, 1]
        ),
        "correlation of phones with fitted days": float(np.corrcoef(own, earlier)[0, 1]),
        "share held by a tenth of the phones": sum(top) / sum(totals),
    }


def test_moments_are_those_of_a_slow_twin() -> None:
    phones = drawn_phones()
    assert moments_of(*phones) == pytest.approx(slow_moments(phones), rel=1e-9)


def test_phones_are_predicted_by_simulated_ones_that_were_eligible_alike(monkeypatch) -> None:
    monkeypatch.setattr(flash, "NEAREST", 5)
    steps = np.arange(96)
    nights = np.tile(steps % 48 < 12, (20, 1))
    evenings = np.tile(steps % 48 >= 36, (20, 1))
    known = np.ones((2, 96), np.bool_)
    # The second phone's night is unknown, so nothing but its evening speaks for it.
    known[1, :12] = False
    phones = Phones(np.stack([nights[0], evenings[0]]) & known, known, steps < 48)
    states = np.concatenate([nights, evenings, np.zeros_like(nights)])
    found = flash._predictions(phones, {"model": states})
    assert found["model by the time of day"].shape == (96,)
    own = found[f"model {OWN}"][:, 48:]
    # The mean of 20 copies is added to 20 phones alike.
    assert own[0, :12].min() == pytest.approx((20 + 20 * (20 / 61)) / 40, abs=0.02)
    assert own[0, 36:].max() < 0.2 < own[1, 36:].min()
    assert own[1, :12].max() < 0.2


@pytest.mark.slow
def test_a_change_that_no_model_makes_is_named_and_no_other() -> None:
    """Days of which half of the eligibility is lost, beside models that know only the days before."""
    phones = drawn_phones(1, 300)
    same = {name: full(seed) for name, seed in (("a", 2), ("b", 3))}
    assert flash._study(phones, same, 1).unexplained == ()
    lost = np.random.default_rng(4).random(phones.known.shape) < 0.5
    fewer = phones.eligible & ~(lost & ~phones.is_fitted)
    study = flash._study(phones._replace(eligible=fewer), same, 1)
    assert {"mean share eligible", "mean share over that of fitted days"} <= set(study.unexplained)
    # The hours of the day do not change where half of all is lost.
    assert "most over fewest of four hours" not in study.unexplained


def full(seed: int) -> np.ndarray:
    """The same phones without gaps, as a model simulates them."""
    draws = np.random.default_rng(seed)
    step = np.arange(48 * 4)
    rates = draws.uniform(0.05, 0.95, (300 * flash.COPIES, 1)) * np.where(step % 48 < 16, 0.9, 0.15)
    return draws.random(rates.shape) < rates


def test_files_are_read_by_whole_days(tmp_path: Path) -> None:
    file = written_phones(tmp_path, phones=30)
    phones = read_phones(file, "1,3")
    assert phones.known.shape == phones.eligible.shape == (30, 240)
    assert np.flatnonzero(phones.is_fitted.reshape(5, 48).all(axis=1)).tolist() == [0, 2]
    assert phones.is_fitted.sum() == 96
    assert not (phones.eligible & ~phones.known).any()
    assert 0.05 < 1.0 - phones.known.mean() < 0.5


@pytest.mark.parametrize("fitted", ["", "0,1", "1,2,3,4,5", "1,6", "one", "1,2,"])
def test_days_that_leave_nothing_to_fit_or_to_score_are_refused(
    tmp_path: Path, fitted: str
) -> None:
    with pytest.raises(InputError, match=r"some of the days 1 to 5"):
        read_phones(written_phones(tmp_path, phones=10), fitted)


def test_data_that_is_missing_or_of_another_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no zip")
    np.savez(tmp_path / "other.npz", shape=np.array([48, 1]), known=np.zeros((6, 1), np.uint8))
    np.savez(
        tmp_path / "floats.npz",
        shape=np.array([48, 1]),
        known=np.zeros((6, 1)),
        eligible=np.zeros((6, 1)),
    )
    for data in (None, tmp_path, tmp_path / "none.npz", *sorted(tmp_path.glob("*.npz"))):
        with pytest.raises(InputError, match="cannot be read") as caught:
            read_phones(data, "1")
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(
    "FEDRAY_ALL_SEEDS" not in os.environ, reason="four fits; `make fits` has it, the suite one fit"
)
def test_the_model_that_made_the_phones_predicts_them_best_and_explains_them(
    tmp_path: Path,
) -> None:
    """Conditions can imitate these habits and may come as near; a Poisson process, a replay and the
    shares of the phones themselves cannot."""
    (found,) = flash.REPRODUCTION.results(data=written_phones(tmp_path))
    behind = found.document["behind"]
    assert next(iter(found.document["log_likelihood"])) == f"habit {OWN}"
    for name in (f"replay {OWN}", f"poisson {OWN}", f"shares {OWN}", "habit by the time of day"):
        assert behind[name]["low"] > 0.005, name
    observed, simulated = found.document["observed"], found.document["simulated"]
    outside = {
        model: [n for n, x in observed.items() if not x["low"] <= own[n] <= x["high"]]
        for model, own in simulated.items()
    }
    # Two of eleven intervals of 95 % miss by chance in 1 of 10 studies.
    assert len(outside["habit"]) <= 2
    assert len(outside["poisson"]) >= 4
    assert found.document["unexplained"] == []
    assert "No model explains: nothing." in found.verdict


@needs_data
def test_the_file_of_flash_is_as_it_is_described() -> None:
    phones = read_phones(REAL, "1,2,3")
    assert phones.known.shape == (723, 240)
    assert 1.0 - phones.known.mean() == pytest.approx(0.19, abs=0.005)
    assert phones.eligible.sum() / phones.known.sum() == pytest.approx(0.081, abs=0.0005)


@needs_data
@pytest.mark.skipif(
    "FEDRAY_ALL_SEEDS" not in os.environ, reason="half a minute; `make fits` has it"
)
def test_published_figures_of_flash_are_those_that_the_study_finds() -> None:
    """The order of predictions in docs/published.md, with seed 1."""
    (found,) = flash.REPRODUCTION.results(data=REAL)
    values, behind = found.document["log_likelihood"], found.document["behind"]
    assert values["shares by the time of day"] == pytest.approx(-0.2611, abs=0.0001)
    assert {*list(values)[:2]} == {f"habit {OWN}", f"conditions {OWN}"}
    for name in (f"shares {OWN}", f"replay {OWN}", f"poisson {OWN}", "habit by the time of day"):
        assert behind[name]["low"] > 0.0, name
    assert found.document["observed"]["mean share eligible"]["mean"] == pytest.approx(
        0.0734, abs=1e-4
    )
    assert "mean share over that of fitted days" in found.document["unexplained"]
