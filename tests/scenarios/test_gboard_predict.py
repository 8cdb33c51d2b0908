"""Fits and predictions of published runs: parameters that made rows are found, and nothing of a row
that is left out reaches its prediction."""

import itertools
import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from lawful_runs import USABLE, lawful
from scipy import stats

from fedray.base.errors import InputError
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenarios import gboard_fits, gboard_predict, gboard_surfaces, small_runs
from fedray.scenarios.gboard_fits import (
    MODELS,
    WHOLE,
    Model,
    Point,
    fit,
    locale_likelihood,
    log_likelihood,
    predicted,
    profiles,
    recovery,
)
from fedray.scenarios.gboard_predict import fit_renewal, renewal, study_of
from fedray.scenarios.gboard_rows import FITTED_ROWS, PublishedRun, later_runs, published_runs
from fedray.scenarios.gboard_surfaces import (
    PACES,
    SHARES,
    SIMULATED_LOADS,
    SIMULATED_SHARES,
    TIMERS,
    Surface,
    surface_through,
)
from fedray.scenarios.small_runs import outcome_of

ALL = [*published_runs(), *later_runs()]
REACH = Model("reach per locale", "locale", "default")


@cache
def surface_of(configuration: str) -> Surface:
    """The surface of the made-up law."""
    run = next(each for each in ALL if each.configuration == configuration)
    cases = itertools.product(gboard_surfaces._timers(run), SIMULATED_SHARES, SIMULATED_LOADS)
    return surface_through(
        run, [lawful(gboard_surfaces._scenario(run, *case, ()).scaled(0.01)) for case in cases]
    )


def by_configuration(runs: list[PublishedRun]) -> dict[str, PublishedRun]:
    return {run.configuration: run for run in reversed(runs)}


def likelihoods_of(runs: list[PublishedRun]):
    return {
        name: log_likelihood([run], surface_of(name))
        for name, run in by_configuration(runs).items()
    }


def test_a_surface_follows_the_law_that_made_its_runs() -> None:
    """Between simulated places too: min-sep by the population, or by the pace."""
    run = next(each for each in ALL if each.name == "nwp-de-DE")
    surface = surface_of(run.configuration)
    supply = USABLE * run.population / run.report_goal * SHARES[:, None]
    law = np.minimum(supply, 60.0 * run.timer_hours / PACES)
    # The min-seps of small runs are whole numbers, and a law adds 1 to the pace's.
    assert np.abs(surface.log_min_seps[0] - np.log(law)).max() < 0.032
    assert (surface.log_days[0] >= np.log(run.rounds * PACES / 1440.0) - 1e-12).all()


def test_a_later_surface_has_the_timer_of_each_factor() -> None:
    run = next(each for each in ALL if each.configuration == "pt-PT-3000")
    surface = surface_of("pt-PT-3000")
    assert surface.log_min_seps.shape == (len(TIMERS), len(SHARES), len(PACES))
    # The made-up law's days are proportional to the timer, where supply decides.
    days = surface.log_days[:, WHOLE, 0]
    assert np.diff(days) == pytest.approx(np.diff(np.log(TIMERS)), abs=1e-9)
    assert run.timer_hours == 48.0


def test_the_grids_have_the_values_that_models_keep() -> None:
    assert SHARES[WHOLE] == pytest.approx(1.0, abs=1e-3)
    assert TIMERS[gboard_fits.SAME_TIMER] == pytest.approx(1.0)


def test_a_run_in_which_no_device_came_back_says_more_than_its_rounds() -> None:
    """And in the likelihood of such a published row, no larger min-sep is worse."""
    run = next(each for each in ALL if each.is_censored)
    assert run.min_sep == run.rounds == 2000
    surface = surface_of(run.configuration)
    values = log_likelihood([run], surface)
    order = np.argsort(surface.log_min_seps, axis=None)
    assert (np.diff(values.ravel()[order]) >= 0).all()
    assert values.max() > -0.01
    assert values.min() < -10


def test_the_probability_between_two_bounds_is_right_far_out_too() -> None:
    for low, high in ((-1.0, 2.0), (3.0, 4.0), (-9.0, -8.0), (20.0, 21.0), (-31.0, -30.0)):
        # By symmetry the lower tail, where scipy's difference keeps its digits.
        a, b = (-high, -low) if low > 0 else (low, high)
        wanted = stats.norm.logcdf(b) + math.log1p(
            -math.exp(stats.norm.logcdf(a) - stats.norm.logcdf(b))
        )
        found = gboard_fits._log_within(np.array(low), np.array(high))
        assert float(found) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_model_finds_rows_that_it_made(model: Model) -> None:
    """Rows by a point of the grid are fitted; those of models without a parameter per locale are
    predicted without themselves too, since all rows have the same parameters."""
    truth = Point(30 if model.share != "default" else WHOLE, 45 if model.pace != "default" else 0)
    made = [
        gboard_fits._synthetic(run, truth, surface_of(name), None)
        for name, run in by_configuration(ALL).items()
    ]
    runs, likelihoods = by_configuration(made), likelihoods_of(made)
    points = fit(model, runs, likelihoods)
    for name, run in runs.items():
        values = surface_of(name).log_min_seps
        wanted = truth.of(run, values)
        found = points[run.locale].of(run, values)
        rest = {other: each for other, each in likelihoods.items() if other != name}
        without = predicted(model, run, runs, rest).of(run, values)
        # A censored row has no upper end.
        if not run.is_censored:
            assert found == pytest.approx(wanted, abs=0.05)
            if "locale" not in (model.share, model.pace):
                assert without == pytest.approx(wanted, abs=0.05)


def test_nothing_of_rows_left_out_changes_a_prediction() -> None:
    for left_out, shared in gboard_predict.LEFT_OUT.items():
        if left_out == gboard_predict.NOTHING:
            continue
        for run in by_configuration(ALL).values():
            changed = [
                replace(each, rounds_between=2 * each.rounds_between, max_participations=3)
                if shared(each) == shared(run)
                else each
                for each in ALL
            ]
            for model in (MODELS[0], MODELS[-1]):
                one, two = (
                    predicted(
                        model,
                        run,
                        by_configuration(runs),
                        {
                            name: each
                            for name, each in likelihoods_of(runs).items()
                            if shared(by_configuration(runs)[name]) != shared(run)
                        },
                    )
                    for runs in (ALL, changed)
                )
                assert one == two


def test_what_rows_do_not_determine_is_called_so() -> None:
    """A single row may be due to a small reach or to a slow pace: its reach has no upper end, and
    its pace no lower one. Rows with two goals identify the reach, since a pace would give them the
    same min-sep."""

    def found(locale: str, share: int, pace: int):
        runs = {name: run for name, run in by_configuration(ALL).items() if run.locale == locale}
        likelihoods = {}
        for name, run in runs.items():
            made = gboard_fits._synthetic(run, Point(share, pace), surface_of(name), None)
            likelihoods[name] = log_likelihood([made], surface_of(name))
        return profiles(*locale_likelihood(locale, runs, likelihoods))

    single = found("es-AR", 20, 0)
    assert single["reach"].text.startswith("at least")
    assert single["pace"].text.startswith("at most")
    assert "timer" not in single
    assert found("es-AR", WHOLE, 50)["reach"].text.startswith("at least")
    two_goals = found("pt-PT", 20, 0)
    assert two_goals["reach"].is_identified
    assert two_goals["reach"].low <= SHARES[20] <= two_goals["reach"].high


def test_intervals_of_synthetic_runs_contain_their_parameters() -> None:
    """Ten sets of 30 intervals and more: 90 per cent, or more where an end of the grid helps; fewer
    than 80 per cent of 90 would happen once in a thousand."""
    runs = by_configuration(ALL)
    surfaces = {name: surface_of(name) for name in runs}
    found = recovery(runs, surfaces, 10)
    assert [each.parameter for each in found] == ["reach", "pace", "timer"]
    for each in found:
        assert each.intervals == (30 if each.parameter == "timer" else 90)
        assert each.covered >= stats.binom.ppf(0.001, each.intervals, 0.9)
        assert 0 < each.called_so <= each.not_identifiable
    assert found == recovery(runs, surfaces, 10)


def test_repeats_count_as_one_configuration() -> None:
    study = study_of(ALL, {name: surface_of(name) for name in by_configuration(ALL)}, 1)
    assert len(study.rows) == 21
    rows = {row.name: row for row in study.rows}
    assert rows["tree-3000-pt-PT"].said == rows["blt-100-3000-pt-PT"].said
    assert {(each.locale, each.goals) for each in study.ratios} == {
        ("pt-BR", (6500, 12000)),
        ("pt-PT", (3000, 6000)),
    }
    printed = {each.locale: each.published for each in study.ratios}
    assert printed["pt-PT"] == pytest.approx(92 / 50)
    assert printed["pt-BR"] == pytest.approx(2000 / 1182)


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
    assert renewal(runs[0], share, wait_hours) == pytest.approx(runs[0].min_sep, rel=0.03)


def test_rows_say_whether_their_reach_was_fitted_on_them() -> None:
    runs = published_runs()
    assert {run.name for run in ALL if run.is_fitted} == set(FITTED_ROWS)
    for run in runs:
        # A locale with reach 1 was not fitted, and at most one row of a locale was.
        reach = run.scenario().population.reach
        rows = [other.is_fitted for other in runs if other.locale == run.locale]
        assert sum(rows) == (reach < 1)


@pytest.mark.slow
def test_the_command_predicts_published_rows(tmp_path: Path, fedray_command, monkeypatch) -> None:
    monkeypatch.setattr(small_runs, "outcome_of", lawful)
    given = ("--place", "backend=in-process", "--sets", "1", "--rows", "nwp-es-AR,pt-PT")
    code, out, err = fedray_command(
        "reproduce", "gboard-predict", *given, "--out", str(tmp_path / "o"), "--json"
    )
    assert code == 0, err
    document = json.loads(out)
    assert document == json.loads((tmp_path / "o" / "results.json").read_text())
    names = [row["name"] for row in document["rows"]]
    assert names[:3] == ["nwp-pt-PT", "nwp-es-AR", "otf-pt-PT"]
    assert len(names) == 6
    assert len(document["scores"]) == len(MODELS) + 2
    page = (tmp_path / "o" / "report.html").read_text()
    assert "blt-100-6000-pt-PT" in page
    (result,) = gboard_predict.run(
        "nwp-es-AR,pt-PT", sets=1, placement=Placement(backend="in-process")
    )
    assert json.loads(json.dumps(result.to_json())) == document
    # No column is lost, and the first table fits 100 columns.
    for table in result.tables():
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert "without paper" in result.tables()[0].text(100)


@pytest.mark.parametrize(
    "given",
    [
        ("gboard-privacy", "--set", "seed=1"),
        ("gboard-privacy", "--place", "shards=2"),
        ("gboard-privacy", "--sets", "3"),
        ("gboard-predict", "--sets", "0"),
        ("gboard-predict", "--seeds", "2"),
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
def test_an_outcome_is_that_of_the_run_and_refuses_runs_that_end_early() -> None:
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
    # Without a device that came back, the min-sep is at least the number of rounds.
    once = outcome_of(scenario.with_overrides("rounds.count=3"))
    assert (once.min_sep, once.max_participations) == (3, 1)
    with pytest.raises(InputError, match="max_days"):
        outcome_of(scenario.with_overrides("rounds.count=600", "rounds.max_days=1.0"))
