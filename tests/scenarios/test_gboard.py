"""The published runs: their scenarios, and a small version of their reproduction."""

import json
from pathlib import Path

import pytest

from fedray.runtime.placement import Placement
from fedray.scenario import Scenario
from fedray.scenarios import gboard
from fedray.scenarios.cells import read_cells
from fedray.scenarios.gboard import Compared, ReproducedRun
from fedray.scenarios.gboard_rows import later_runs, published_runs, select


def test_every_published_run_has_its_scenario() -> None:
    """The scenario files say what the table says."""
    runs = published_runs()
    assert len(runs) == 13
    for run in runs:
        scenario = Scenario.from_toml(run.file)
        assert scenario.population.devices == run.population
        assert (scenario.rounds.count, scenario.rounds.report_goal) == (run.rounds, run.report_goal)
        assert scenario.participation.timer_hours == run.timer_hours
        assert scenario.privacy.noise_multiplier == run.noise_multiplier
        assert scenario.privacy.mechanism.kind == "tree"
        same_locale = [
            Scenario.from_toml(other.file).population.reach
            for other in runs
            if other.locale == run.locale
        ]
        assert set(same_locale) == {scenario.population.reach}
    assert [run.name for run in select("en-gb,nwp-de-DE", runs)] == [
        "nwp-de-DE",
        "nwp-en-GB",
        "otf-en-GB",
    ]


def test_a_published_min_sep_is_a_gap_of_one_more() -> None:
    """Rounds 3 and 7 have three rounds strictly between them and are four apart; tables, descriptions and rows say so."""
    between = len(range(3 + 1, 7))
    assert between + 1 == 7 - 3
    for run in published_runs():
        assert run.min_sep == run.rounds_between + 1
        described = Scenario.from_toml(run.file).description
        assert (
            f"published MinS {run.rounds_between}, which is a min-sep of {run.min_sep};"
            in described
        )


def test_rows_of_the_later_paper_have_its_rounds_and_goals_and_the_population_of_the_earlier() -> (
    None
):
    """All but id-ID, whose population is not printed; repeats share a configuration."""
    runs = later_runs()
    locales = [row["locale"] for row in read_cells("gboard/later")[1]]
    assert [run.locale for run in runs] == [each for each in locales if each != "id-ID"]
    assert len({run.name for run in (*published_runs(), *runs)}) == 21
    assert len({run.configuration for run in runs}) == 5
    for run in runs:
        scenario = run.scenario(["seed=5"])
        assert (scenario.rounds.count, scenario.rounds.report_goal) == (run.rounds, run.report_goal)
        assert scenario.population.devices == run.population
        assert scenario.seed == 5
    # 2000 rounds without a device that came back: a min-sep of at least 2000.
    assert [run.min_sep for run in runs if run.is_censored] == [2000, 2000]


def test_k_says_between_how_many_days_a_published_run_took() -> None:
    """pt-BR: k = 3 and a timer of 6 days."""
    (run,) = select("nwp-pt-BR", published_runs())
    assert run.days == (12.0, 18.0)


def test_a_row_is_fitted_as_long_as_its_scenario_has_the_reach_that_was_fitted_on_it() -> None:
    """A twentieth of the rounds, a hundredth of the devices; another reach was fitted on nothing."""
    small = ["population.devices=8300", "rounds.report_goal=65", "rounds.count=30"]
    here = Placement(1, "in-process")
    found = [
        next(
            gboard.REPRODUCTION.results(rows="nwp-pt-PT", overrides=[*small, *more], placement=here)
        )
        for more in ([], ["population.reach=0.5"])
    ]
    assert [each.to_json()["runs"][0]["is_fitted"] for each in found] == [True, False]


def test_a_run_in_which_no_device_comes_twice_is_compared_with_nothing() -> None:
    once = Compared(None, 227)
    assert once.relative_difference is None
    run = ReproducedRun(
        *("nwp-en-GB", 1.0, False, once, Compared(1, 4), once, once, 0.1, 2.0, (9.0, 12.0)),
        *("completed", "", 1.0),
    )
    result = gboard._reproduced([run])
    assert "none (k = 1) / 227" in result.tables()[0].rows[0]
    assert not result.figures()[0].series[1].x.size
    assert result.verdict.startswith("Of 1 runs, 0 have a min-sep within 10% of the published")


def test_repeats_of_a_configuration_share_a_run_and_have_their_own_printed_figures() -> None:
    small = ["population.devices=8300", "rounds.report_goal=65", "rounds.count=30"]
    rows = "tree-3000-pt-PT,blt-100-3000-pt-PT"
    *_, last = gboard.REPRODUCTION.results(
        rows=rows, overrides=small, placement=Placement(1, "in-process")
    )
    one, two = last.to_json()["runs"]
    assert one["digest"] == two["digest"]
    assert [each["min_sep"]["published"] for each in (one, two)] == [92, 93]
    assert one["min_sep"]["observed"] == two["min_sep"]["observed"]
    assert one["rho"]["published"] is None


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_reproduce_writes_table_json_and_page(fedray_command, tmp_path: Path) -> None:
    """Some hundredths of the size: what is printed, written and shown is the same."""
    small = [
        word
        for key in ("population.devices=2400", "rounds.report_goal=33", "rounds.count=120")
        for word in ("--set", key)
    ]
    given = ("--out", str(tmp_path / "g"), "--figures", str(tmp_path / "f"))
    code, out, _ = fedray_command(
        "reproduce", "gboard", "--rows", "en-GB", *small, *given, "--json"
    )
    assert code == 0
    assert {file.name for file in (tmp_path / "f").iterdir()} == {
        "min-sep.svg",
        "min-sep.csv",
        "rho.svg",
        "rho.csv",
    }
    runs = json.loads(out)["runs"]
    assert [run["name"] for run in runs] == ["nwp-en-GB", "otf-en-GB"]
    assert json.loads(out) == json.loads((tmp_path / "g" / "results.json").read_text())
    assert [run["is_fitted"] for run in runs] == [False, False]
    assert runs[0]["min_sep"]["published"] == 227
    difference = runs[0]["min_sep"]["observed"] / 227 - 1
    assert runs[0]["min_sep"]["relative_difference"] == pytest.approx(difference)
    assert runs[0]["published_days"] == [9.0, 12.0]
    page = (tmp_path / "g" / "report.html").read_text()
    assert f"{runs[0]['days']:.1f} / 9 to 12" in page
    assert "predicted" in page
    assert f"{runs[0]['min_sep']['observed']:.0f} / 227" in page
    assert f"{100 * difference:+.1f} %" in page
    assert (tmp_path / "g" / "nwp-en-GB" / "run.json").exists()
