"""Predictions of published runs: nothing of a locale reaches its own prediction"""

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from lawful_runs import lawful

from fedray.base.errors import InputError
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenarios import gboard_predict, small_runs
from fedray.scenarios.gboard_predict import (
    PACE,
    REACHES,
    Curve,
    curve_through,
    fit_renewal,
    predict,
    scores_of,
)
from fedray.scenarios.gboard_rows import FITTED_ROWS, published_runs
from fedray.scenarios.small_runs import Outcome, outcome_of


@cache
def lawful_curves() -> dict[str, Curve]:
    """The curves of the made-up law by the name of the row, one seed each."""
    return {
        run.name: curve_through(
            [[lawful(run.scenario((PACE, f"population.reach={reach}")))] for reach in REACHES]
        )
        for run in published_runs()
    }


def curves_of(runs):
    """The same of runs whose published min-sep and k may be others; curves do not depend on
    them."""
    return {run: lawful_curves()[run.name] for run in runs}


def test_a_curve_gives_back_what_it_goes_through_and_its_inverse() -> None:
    curve = Curve(
        log_reaches=tuple(math.log(reach) for reach in REACHES),
        log_min_seps=(math.log(50), math.log(100), math.log(100)),
        log_days=(3.0, 2.0, 2.0),
        seed_variance=0.0,
    )
    for reach, min_sep in zip(REACHES, (50, 100, 100), strict=True):
        assert math.exp(curve.min_sep(math.log(reach))) == pytest.approx(min_sep)
    # A power of the reach between two of them, and below the least.
    assert math.exp(curve.min_sep(math.log(0.35))) == pytest.approx(70)
    assert math.exp(curve.min_sep(math.log(0.1))) == pytest.approx(20)
    for min_sep in (20, 70, 99):
        needed = curve.needed_log_reach(min_sep)
        assert needed is not None
        assert math.exp(curve.min_sep(needed)) == pytest.approx(min_sep)
    # Where more reach gives no more, the least that suffices; and none for more than there is.
    level = curve.needed_log_reach(100)
    assert level is not None
    assert math.exp(level) == pytest.approx(0.5)
    assert curve.needed_log_reach(101) is None


def test_seeds_spread_and_one_alone_does_not() -> None:
    runs = [Outcome(100, 3, 10.0), Outcome(200, 3, 12.0)]
    two, one = curve_through([runs] * len(REACHES)), curve_through([runs[:1]] * len(REACHES))
    assert two.seed_variance == pytest.approx(math.log(2) ** 2 / 2)
    assert one.seed_variance == 0.0


@pytest.mark.slow
def test_a_law_that_holds_in_all_locales_is_found_from_the_others() -> None:
    """Min-seps and k by the law at reach 0.5 are predicted to a per cent, from the published
    figures of other locales only."""
    made = []
    for run in published_runs():
        truth = lawful(run.scenario((PACE, "population.reach=0.5")))
        k = math.ceil(truth.days * 24.0 / run.timer_hours)
        made.append(replace(run, rounds_between=truth.min_sep - 1, max_participations=max(2, k)))
    curves = curves_of(made)
    found = [predict(run, made, curves) for run in made]
    for run, prediction in zip(made, found, strict=True):
        assert prediction.min_sep == pytest.approx(run.min_sep, rel=0.02)
        assert prediction.reach == pytest.approx(0.5, rel=0.02)
        assert prediction.low <= run.min_sep <= prediction.high
    assert all(score.error < 0.02 for score in scores_of(found)[1:])


@pytest.mark.slow
def test_what_is_published_of_a_locale_changes_no_prediction_of_it() -> None:
    runs = published_runs()
    for place, run in enumerate(runs):
        changed = [
            replace(each, rounds_between=2 * each.rounds_between, max_participations=3)
            if each.locale == run.locale
            else each
            for each in runs
        ]
        # The sibling row may move the transfer, and nothing else.
        one = predict(run, runs, curves_of(runs))
        two = predict(changed[place], changed, curves_of(changed))
        for field in ("reach", "min_sep", "low", "high", "days", "renewal"):
            assert getattr(one, field) == getattr(two, field)


def test_the_renewal_formula_is_recovered() -> None:
    runs = [
        replace(
            run,
            rounds_between=round(
                0.5 * run.population / run.report_goal * run.timer_hours / (run.timer_hours + 40)
            )
            - 1,
        )
        for run in published_runs()
    ]
    share, wait_hours = fit_renewal(runs)
    assert share == pytest.approx(0.5, rel=0.05)
    assert wait_hours == pytest.approx(40, abs=8)


def test_rows_say_whether_their_reach_was_fitted_on_them() -> None:
    runs = published_runs()
    assert {run.name for run in runs if run.is_fitted} == set(FITTED_ROWS)
    for run in runs:
        # A locale with reach 1 was not fitted, and at most one row of a locale was.
        reach = run.scenario().population.reach
        rows = [other.is_fitted for other in runs if other.locale == run.locale]
        assert sum(rows) == (reach < 1)


@pytest.mark.slow
def test_the_command_predicts_published_rows(tmp_path: Path, fedray_command, monkeypatch) -> None:
    monkeypatch.setattr(small_runs, "outcome_of", lawful)
    given = ("--place", "backend=in-process", "--seeds", "1", "--rows", "nwp-es-AR")
    code, out, err = fedray_command(
        "reproduce", "gboard-predict", *given, "--out", str(tmp_path / "o"), "--json"
    )
    assert code == 0, err
    document = json.loads(out)
    assert document == json.loads((tmp_path / "o" / "results.json").read_text())
    (row,) = document["predictions"]
    assert (row["name"], row["transferred"]) == ("nwp-es-AR", None)
    assert row["low"] < row["min_sep"] < row["high"]
    assert {score["runs"] for score in document["scores"]} == {13, 8}
    page = (tmp_path / "o" / "report.html").read_text()
    assert "nwp-es-AR" in page
    assert "Leave one locale out" in page
    (result,) = gboard_predict.run("nwp-es-AR", seeds=1, placement=Placement(backend="in-process"))
    assert json.loads(json.dumps(result.to_json())) == document
    tables = result.tables()
    assert [row[0] for row in tables[0].rows] == ["nwp-es-AR"]
    assert result.verdict.startswith("Of 1 runs")
    # No column is lost, and a table of 13 rows fits 100 columns.
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert table.rows[0][1] in table.text(100).splitlines()[3]


@pytest.mark.parametrize(
    "given",
    [
        ("gboard-privacy", "--set", "seed=1"),
        ("gboard-privacy", "--place", "shards=2"),
        ("gboard-privacy", "--seeds", "3"),
        ("gboard-predict", "--seeds", "0"),
        ("gboard-predict", "--scale", "2"),
        ("gboard", "--scale", "0.1"),
    ],
)
def test_stray_and_impossible_options_are_refused_in_one_line(
    fedray_command, given: tuple[str, ...]
) -> None:
    code, out, err = fedray_command("reproduce", *given)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert given[1] in err


@pytest.mark.slow
def test_an_outcome_is_that_of_the_run_and_refuses_runs_without_a_gap() -> None:
    scenario = Scenario.from_tables(
        {
            "name": "small",
            "population": {"devices": 2000},
            "participation": {"timer_hours": 24.0},
            "rounds": {"count": 60, "report_goal": 30},
            "training": {"enabled": False},
        }
    )
    found = outcome_of(scenario)
    # Rounds of 30 among 2000 devices come back after a day at the earliest.
    assert 1 < found.min_sep <= 2000 / 30
    assert found.max_participations <= math.floor(found.days) + 1
    with pytest.raises(InputError, match="no device took part twice"):
        outcome_of(scenario.with_overrides("rounds.count=3"))
    with pytest.raises(InputError, match="max_days"):
        outcome_of(scenario.with_overrides("rounds.count=600", "rounds.max_days=1.0"))
