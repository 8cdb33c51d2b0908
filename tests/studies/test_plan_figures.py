"""Figures and tables of a plan: ticks at the data, names at points, and each row says of which runs it is."""

from dataclasses import replace

import numpy as np
import pytest
from made_up_plans import failed, met

from fedray.report.figure import Figure
from fedray.report.files import drawn_figure
from fedray.report.plotly_json import plotly_figure
from fedray.studies.plan_page import plan_figures, plan_page


def x_ticks(figure: Figure) -> list[float]:
    return plotly_figure(figure)["layout"]["xaxis"]["tickvals"]


@pytest.mark.parametrize("make", [met, failed])
def test_ticks_of_report_goals_are_goals_on_pages_and_in_files(small, make) -> None:
    figures = plan_figures(make(small))
    assert figures
    for figure in figures:
        goals = {x for each in figure.series for x in each.x.tolist()}
        ticks = x_ticks(figure)
        assert len(ticks) >= 2
        assert set(ticks) <= goals
        axes = drawn_figure(figure).axes[0]
        assert axes.get_xticks().tolist() == ticks
        # Both axes have numbers to read.
        low, high = sorted(axes.get_ylim())
        assert sum(low <= each <= high for each in axes.get_yticks()) >= 2


def test_no_point_lies_in_the_zone_that_starves(small) -> None:
    """It begins beyond the goals that do not starve, whatever their timer."""
    for figure in plan_figures(met(small)):
        (zone,) = [each for each in figure.marks if each.until is not None]
        assert zone.text == "starves (24, 48 h)"
        assert (zone.at, zone.until) == (4400, 5000)
        assert not any(zone.at <= x <= zone.until for each in figure.series for x in each.x)


def test_the_plan_at_full_size_is_named_apart_from_the_search(small) -> None:
    for figure in plan_figures(met(small)):
        *lines, star = figure.series
        assert [each.name for each in lines] == ["timer 24 h", "timer 48 h"]
        assert star.name == "plan, 1 run at full size"
        assert star.labels == ("plan",)
        assert figure.subject.runs == "2 runs at 0.1 of the size of each goal"


def test_remedies_of_one_goal_and_noise_are_one_point_with_all_names(small) -> None:
    noise, *_ = plan_figures(failed(small))
    assert noise.name == "noise"
    assert not noise.y.is_log
    line, *points = noise.series
    named = {(float(e.x[0]), float(e.y[0])): e.labels[0] for e in points}
    assert named == {
        (1000.0, 1.8): "more noise",
        (1400.0, 1.0): "6 rounds",
        (1900.0, 1.0): "5 rounds",
        (1000.0, 1.0): "96 h or 3 x devices",
    }
    assert np.all(np.diff(line.x) > 0)
    drawn = {e["name"]: e.get("text") for e in plotly_figure(noise)["data"]}
    assert drawn["96 h or 3 x devices"] == ["96 h or 3 x devices"]


def test_rows_of_other_runs_say_so(small) -> None:
    plan = met(small)
    tables = {each.title: each for each in plan.tables()}
    candidates = tables["Candidates"]
    assert not candidates.mixed
    place = candidates.columns.index("runs")
    runs = {row[place] for row in candidates.rows}
    assert runs == {"2 runs at 0.1 of the size", "1 run at full size"}
    assert tables[""].caption.endswith("in 1 run at full size")
    assert "in 1 run at 0.1 of the size" in tables["What if"].caption
    remedies = failed(small).tables()[0]
    assert not remedies.mixed
    assert {each.runs for each in remedies.row_subjects} == {
        "2 runs at 0.1 of the size",
        "2 runs at 0.05 of the size",
    }


def test_remedies_and_their_commands_name_days(small) -> None:
    plan = failed(small)
    assert "with 1.80 times the noise on the mean in 3.0 days" in plan.headline
    assert "with the same noise: 5 rounds, goal 1,900 in 2.5 days." in plan.headline
    commands = [f"fedray plan {number}" for number in range(5)]
    page = plan_page(plan, "fedray plan", commands)
    assert "timer 96 h in 9.0 days" in page


def test_what_would_do_for_fewer_devices_is_a_column(small) -> None:
    (table,) = [each for each in met(small).tables() if each.title == "What if"]
    place = table.columns.index("would do")
    assert [row[place] for row in table.rows] == ["", "z 1.2100 (1.10 times)", "9 rounds"]


def test_a_search_of_equal_runs_has_one_subject(small) -> None:
    """Then the caption of the candidates says it."""
    plan = met(small)
    same = replace(plan, best=None, candidates=plan.candidates[:3])
    tables = {each.title: each for each in same.tables()}
    assert tables["Candidates"].caption.endswith("in 2 runs at 0.1 of the size")
