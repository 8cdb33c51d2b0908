"""Fits and predictions of published runs: parameters that made rows are found, and nothing of a row
that is left out reaches its prediction."""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from lawful_runs import USABLE, lawful
from recovered import recovery, synthetic
from scipy import stats

from fedray.base.errors import InputError
from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenarios import gboard_fits, gboard_predict
from fedray.scenarios.gboard_fits import (
    EARLIER,
    LATER,
    MODELS,
    PACES,
    SHARES,
    TIMERS,
    WHOLE,
    Evidence,
    Model,
    Point,
    evidence_of,
    intervals,
    place_in,
    predicted,
)
from fedray.scenarios.gboard_predict import LEFT_OUT, NOTHING, fit_renewal, renewal, study_of
from fedray.scenarios.gboard_rows import FITTED_LOCALES, PublishedRun, later_runs, published_runs
from fedray.studies import reach_and_pace, simulated
from fedray.studies.reach_and_pace import (
    Grid,
    Surface,
    cases_of,
    log_probability,
    simulated_surfaces,
    surface_through,
)
from fedray.studies.simulated import StudyCache

ALL = [*published_runs(), *later_runs()]
CONFIGURATIONS = {run.configuration: run for run in reversed(ALL)}


@cache
def surface_of(configuration: str) -> Surface:
    """The surface of the made-up law."""
    run = CONFIGURATIONS[configuration]
    scenario, grid = run.scenario(), LATER if run.earlier else EARLIER
    truths = [lawful(case.scaled(0.01)) for case in cases_of(scenario, grid)]
    return surface_through(scenario, grid, truths)


def evidence_for(runs: Iterable[PublishedRun]) -> list[Evidence]:
    """Evidence of runs on the made-up law's surfaces, one repeat of each configuration."""
    first = {run.configuration: run for run in runs}
    return [evidence_of([run], surface_of(name)) for name, run in first.items()]


@pytest.mark.parametrize(
    ("configuration", "timer", "most"),
    [("nwp-de-DE", 0, 0.032), ("pt-BR-6500", gboard_fits.SAME_TIMER, 0.045)],
    ids=["all min-seps are known", "no device came back in the largest population"],
)
def test_a_surface_follows_the_law_that_made_its_runs(
    configuration: str, timer: int, most: float
) -> None:
    """Between simulated places too: min-sep by the population, or by the pace."""
    run, surface = CONFIGURATIONS[configuration], surface_of(configuration)
    supply = USABLE * run.population / run.report_goal * SHARES[:, None]
    law = np.minimum(supply, 60.0 * run.timer_hours / PACES)
    # The min-seps of small runs are whole numbers, and a law adds 1 to the pace's.
    assert np.abs(surface.log_min_seps[timer] - np.log(law)).max() < most
    assert (surface.log_days[timer] >= np.log(run.rounds * PACES / 1440.0) - 1e-12).all()


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
    assert place_in(SHARES, 1.0) == WHOLE
    assert TIMERS[gboard_fits.SAME_TIMER] == pytest.approx(1.0)


def test_a_run_in_which_no_device_came_back_says_more_than_its_rounds() -> None:
    """And in the likelihood of such a published row, no larger min-sep is worse."""
    run = CONFIGURATIONS["pt-BR-6500"]
    assert run.is_censored
    assert run.min_sep == run.rounds == 2000
    surface = surface_of(run.configuration)
    found = evidence_of([run], surface)
    order = np.argsort(surface.log_min_seps, axis=None)
    assert (np.diff(found.likelihood.ravel()[order]) >= 0).all()
    assert found.likelihood.max() > -0.01
    assert found.likelihood.min() < -10
    assert (found.loss == np.maximum(0.0, math.log(2000) - surface.log_min_seps)).all()


def test_the_probability_between_two_bounds_is_right_far_out_too() -> None:
    for low, high in ((-1.0, 2.0), (3.0, 4.0), (-9.0, -8.0), (20.0, 21.0), (-31.0, -30.0)):
        # By symmetry the lower tail, where scipy's difference keeps its digits.
        a, b = (-high, -low) if low > 0 else (low, high)
        wanted = stats.norm.logcdf(b) + math.log1p(
            -math.exp(stats.norm.logcdf(a) - stats.norm.logcdf(b))
        )
        found = log_probability(np.array(low), np.array(high))
        assert float(found) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_model_finds_rows_that_it_made(model: Model) -> None:
    """Rows by a point of the grid are fitted; those of models without a parameter per locale are
    predicted without themselves too, since all rows have the same parameters."""
    truth = Point(30 if model.has_reach else WHOLE, 45 if model.has_pace else 0)
    evidence = evidence_for(
        synthetic(run, truth, surface_of(name), None) for name, run in CONFIGURATIONS.items()
    )
    for each in evidence:
        # A censored row has no upper end.
        if not each.run.is_censored:
            values = each.surface.log_min_seps
            wanted = truth.of(each.run, values)
            fitted = predicted(model, each.run, evidence)
            assert fitted.of(each.run, values) == pytest.approx(wanted, abs=0.05)
            if model.is_pooled:
                rest = [other for other in evidence if other is not each]
                without = predicted(model, each.run, rest)
                assert without.of(each.run, values) == pytest.approx(wanted, abs=0.05)


def test_nothing_of_rows_left_out_changes_a_prediction() -> None:
    """Wrong figures in the rows that are left out change none of the predictions without them, and
    they do change fits."""
    surfaces = {name: surface_of(name) for name in CONFIGURATIONS}
    true = {row.name: row for row in study_of(ALL, surfaces, 0.01).rows}
    fits_moved = 0
    for left_out, name in (("row", "nwp-de-DE"), ("locale", "otf-pt-PT"), ("paper", "nwp-en-US")):
        shared = LEFT_OUT[left_out]
        (run,) = (each for each in ALL if each.name == name)
        changed = [
            replace(each, rounds_between=2 * each.rounds_between, max_participations=3)
            if shared(each) == shared(run)
            else each
            for each in ALL
        ]
        (row,) = (each for each in study_of(changed, surfaces, 0.01).rows if each.name == name)
        for one, two in zip(row.said[1:], true[name].said[1:], strict=True):
            assert one.min_seps[left_out] == two.min_seps[left_out]
            fits_moved += one.min_seps[NOTHING] != two.min_seps[NOTHING]
    # Three rows, by six models and the renewal formula.
    assert fits_moved >= 18


def test_what_rows_do_not_determine_is_called_so() -> None:
    """A single row may be due to a small reach or to a slow pace: its reach has no upper end, and
    its pace no lower one. Rows with two goals identify the reach, since a pace would give them the
    same min-sep."""

    def found(locale: str, share: int, pace: int):
        runs = [run for run in CONFIGURATIONS.values() if run.locale == locale]
        made = [
            synthetic(run, Point(share, pace), surface_of(run.configuration), None) for run in runs
        ]
        return {each.parameter: each for each in intervals(evidence_for(made))}

    single = found("es-AR", 20, 0)
    assert single["reach"].text.startswith("at least")
    assert single["pace"].text.startswith("at most")
    assert "timer" not in single
    assert found("es-AR", WHOLE, 50)["reach"].text.startswith("at least")
    reach = found("pt-PT", 20, 0)["reach"]
    assert reach.low is not None
    assert reach.high is not None
    assert reach.low <= SHARES[20] <= reach.high


def test_intervals_of_synthetic_runs_contain_their_parameters() -> None:
    """Ten sets: 90 per cent, or more where an end of the grid helps; fewer than the quantile would
    happen once in a thousand."""
    surfaces = {name: surface_of(name) for name in CONFIGURATIONS}
    found = recovery(CONFIGURATIONS, surfaces, 10)
    for parameter, count in found.items():
        assert count.intervals == (30 if parameter == "timer" else 90)
        assert count.covered >= stats.binom.ppf(0.001, count.intervals, 0.9)
        assert 0 < count.called_so <= count.not_identifiable
    assert list(found) == ["reach", "pace", "timer"]


def test_repeats_count_as_one_configuration() -> None:
    study = study_of(ALL, {name: surface_of(name) for name in CONFIGURATIONS}, 0.01)
    assert len(study.rows) == 21
    rows = {row.name: row for row in study.rows}
    assert rows["tree-3000-pt-PT"].said == rows["blt-100-3000-pt-PT"].said
    assert len(study.scores) == len(MODELS) + 2
    assert {each.locale for each in study.intervals} == {run.locale for run in ALL}


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


def test_rows_say_whether_reach_or_pace_was_fitted_on_them() -> None:
    """A locale with a reach below 1 or a pace was fitted on one of its rows, or on all of both
    papers; a locale with neither on none."""
    for locale in dict.fromkeys(run.locale for run in ALL):
        rows = [run for run in ALL if run.locale == locale]
        scenario = rows[0].scenario()
        pace = scenario.rounds.min_minutes_between
        is_default = scenario.population.reach == 1.0 and pace is None
        fitted = sum(run.is_fitted for run in rows)
        allowed = (len(rows),) if locale in FITTED_LOCALES else (0 if is_default else 1,)
        assert fitted in allowed


@pytest.mark.slow
def test_the_command_predicts_published_rows(tmp_path: Path, fedray_command, monkeypatch) -> None:
    monkeypatch.setattr(reach_and_pace, "simulated_limits", lawful)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    given = ("--place", "backend=in-process", "--rows", "nwp-es-AR,pt-PT")
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
    (result,) = gboard_predict.REPRODUCTION.results(
        rows="nwp-es-AR,pt-PT", placement=Placement(backend="in-process")
    )
    assert json.loads(json.dumps(result.to_json())) == document
    # No column is lost, and the first table fits 100 columns.
    for table in result.tables():
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert "without row" in result.tables()[0].text(100)


@pytest.mark.parametrize(
    "given",
    [
        ("gboard-privacy", "--set", "seed=1"),
        ("gboard-privacy", "--place", "shards=2"),
        ("gboard-privacy", "--scale", "0.1"),
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
def test_a_surface_is_through_the_simulated_runs_and_refuses_runs_that_end_early(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    scenario = Scenario.from_tables(
        {
            "name": "small",
            "population": {"devices": 2000},
            "participation": {"timer_hours": 24.0},
            "rounds": {"count": 60, "report_goal": 30},
            "training": {"enabled": False},
        }
    )
    grid = Grid(np.array([0.2, 1.0]), np.array([1.0]))
    where = (1.0, Placement(1, "in-process"), StudyCache(), lambda _: None)
    (found,) = simulated_surfaces([(scenario, grid)], *where)
    # Rounds of 30 among 2000 devices come back after a day at the earliest.
    for share, min_sep in zip(grid.shares, np.exp(found.log_min_seps[0, :, 0]), strict=True):
        assert 1 < min_sep <= share * 2000 / 30 + 1
    # Without a device that came back, the min-sep is more than the number of rounds.
    (once,) = simulated_surfaces([(scenario.with_overrides("rounds.count=3"), grid)], *where)
    assert np.exp(once.log_min_seps.max()) > 3
    with pytest.raises(InputError, match="small: .*max_days"):
        early = scenario.with_overrides("rounds.count=600", "rounds.max_days=1.0")
        simulated_surfaces([(early, grid)], *where)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_predictions_from_runs_on_ray_are_those_from_runs_in_one_process(
    tmp_path: Path, fedray_command, monkeypatch
) -> None:
    """Of three small rows. Both simulate all of them, for nothing is kept from the first to the second."""
    for name, rows in (
        ("published_runs", ("nwp-en-GB", "nwp-pt-PT")),
        ("later_runs", ("tree-3000-pt-PT",)),
    ):
        chosen = tuple(run for run in ALL if run.name in rows)
        monkeypatch.setattr(gboard_predict, name, lambda chosen=chosen: chosen)
    printed = {}
    for place in ("ray", "in-process"):
        processes = tmp_path / f"{place} processes"
        processes.mkdir()

        def simulated_limits(scenario: Scenario, folder: Path = processes) -> simulated.Truth:
            (folder / str(os.getpid())).touch()
            return simulated.simulated_limits(scenario)

        monkeypatch.setattr(reach_and_pace, "simulated_limits", simulated_limits)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
        code, printed[place], told = fedray_command(
            *("reproduce", "gboard-predict", "--place", f"backend={place}"),
            *("--set", "rounds.count=40", "--json"),
        )
        assert code == 0, told
        here = processes / str(os.getpid())
        assert [here.exists(), any(each != here for each in processes.iterdir())] == [
            place == "in-process",
            place == "ray",
        ]
    assert len(json.loads(printed["ray"])["rows"]) == 3
    assert printed["ray"] == printed["in-process"]
