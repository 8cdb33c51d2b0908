"""Plans as they are shown, and two side by side: ticks at the data, names at points, and each row says of which runs it is."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from document_schema import found_keys

from fedray.base.errors import InputError
from fedray.base.rounding import up
from fedray.report.figure import Figure
from fedray.report.files import drawn_figure
from fedray.report.plotly_json import plotly_figure
from fedray.studies.plan import Candidate, Plan, PlanTarget
from fedray.studies.plan_page import plan_figures, plan_page
from fedray.studies.plans_compared import KEYS, PlanComparison, compare_plans
from fedray.studies.remedies import DEVICES, HALF_TRADE, NOISE, TIMER, TRADE, Remedy
from fedray.studies.what_ifs import WhatIf

TARGET = PlanTarget(epsilon=3.0, noise_per_report=0.001)


def candidate(goal: int, epsilon: float | None, hours: float = 24.0, **others) -> Candidate:
    given = {
        "min_seps": (7, 8),
        "max_participations": (2, 2),
        "planned_min_sep": 6,
        "planned_max_participations": 2,
        "days": 2.0 + goal / 1000,
    }
    if epsilon is None:
        given = {"min_seps": (), "max_participations": (), "note": "no devices"}
    keys = {"scale": 0.1, **given, **others}
    return Candidate(TARGET, 12, goal, hours, population_over_goal=9, epsilon=epsilon, **keys)


def met(small) -> Plan:
    """Goals from 700 to 1,150 of two timers; 2,000 starves at 48 h, where 24 h meets the target at 2,200."""
    best = candidate(1100, 2.95, 48.0, scale=1.0, min_seps=(7,), enforced_days=3.5)
    candidates = (
        *(candidate(700, 4.4), candidate(1150, 3.5), candidate(2200, 2.1)),
        *(candidate(700, 4.0, 48.0), candidate(1100, 2.9, 48.0), best),
        *(candidate(2000, None, 48.0), candidate(4400, None), candidate(5000, None, 48.0)),
    )
    rows = (
        WhatIf("as planned", 3.0, 7, 2.9),
        WhatIf(
            "population -10 %, no separation or cap", 3.0, 6, 3.3, needed_noise_multiplier=1.375
        ),
        WhatIf("population -30 %", starves_at=9, rounds=9),
    )
    return Plan(TARGET, small(), 2, 0.1, best, candidates, what_ifs=rows)


def failed(small) -> Plan:
    """Remedies of goals from 1,000 to 1,900, of which two have the same goal and noise."""
    near = candidate(1000, 5.0)
    remedies = (
        Remedy(NOISE, 3.0, 0.1, 3.0, noise_multiplier=1.75),
        Remedy(HALF_TRADE, 2.9, 0.1, 2.0, 1.4, 6, 1400),
        Remedy(TRADE, 2.9, 0.1, 2.5, 1.9, 5, 1900),
        Remedy(TIMER, 2.9, 0.1, 9.0, timer_hours=96.0),
        Remedy(DEVICES, 2.9, 0.05, 2.2, devices=60_000),
    )
    return Plan(TARGET, small(), 2, 0.1, None, (near, candidate(500, 8.0)), remedies=remedies)


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


def test_a_timer_that_was_cut_short_is_above_a_goal_that_missed_and_not_one_that_starved(
    small,
) -> None:
    plan = met(small)
    rest = tuple(each for each in plan.candidates if each.report_goal != 2200)
    plan = replace(plan, candidates=rest, cut_short=(24.0,))
    (table,) = [each for each in plan.tables() if each.title == "What a longer timer costs"]
    assert [row[:2] for row in table.rows] == [("24 h", "above 1,150"), ("48 h", "1,100")]
    assert "Above: the search of this timer ended there" in table.notes[1]


def test_the_plan_at_full_size_is_named_apart_from_the_search(small) -> None:
    for figure in plan_figures(met(small)):
        *lines, star = figure.series
        assert [each.name for each in lines] == ["timer 24 h", "timer 48 h"]
        assert star.name == "plan, 1 run at full size"
        assert star.labels == ("1,100",)
        assert figure.subject.runs == "2 runs at 0.1 size or more of each goal"


def test_remedies_of_one_goal_and_noise_are_one_point_with_all_names(small) -> None:
    noise, *_ = plan_figures(failed(small))
    assert noise.name == "noise"
    assert not noise.y.is_log
    line, *points = noise.series
    named = {(float(e.x[0]), float(e.y[0])): e.labels[0] for e in points}
    assert named == {
        (1000.0, 1.75): "more noise",
        (1400.0, 1.0): "6 rounds",
        (1900.0, 1.0): "5 rounds",
        (1000.0, 1.0): "96 h or 3 x devices",
    }
    assert np.all(np.diff(line.x) > 0)
    assert points[-1].name == "timer 96 h or 3 times the devices (60,000)"
    assert plotly_figure(noise)["data"][-1]["text"] == ["96 h or 3 x devices"]
    assert len({each.name for each in points}) == len(points)


def test_rows_of_other_runs_say_so(small) -> None:
    plan = met(small)
    tables = {each.title: each for each in plan.tables()}
    candidates = tables["Candidates"]
    assert not candidates.mixed
    place = candidates.columns.index("runs")
    runs = {row[place] for row in candidates.rows}
    assert runs == {"2 runs at 0.1 size", "1 run at full size"}
    assert tables[""].caption.endswith("in 1 run at full size")
    assert "in 1 run at 0.1 size" in tables["What if"].caption
    remedies = failed(small).tables()[0]
    assert not remedies.mixed
    assert {each.runs for each in remedies.row_subjects} == {
        "2 runs at 0.1 size",
        "2 runs at 0.05 size",
    }


def test_remedies_and_their_commands_name_days(small) -> None:
    plan = failed(small)
    assert "with 1.75 times the noise on the mean in 3.0 days" in plan.headline
    assert "with the same noise: 5 rounds, goal 1,900 in 2.5 days." in plan.headline
    commands = [f"fedray plan {number}" for number in range(5)]
    page = plan_page(plan, "fedray plan", commands)
    assert "timer 96 h in 9.0 days" in page


def test_what_would_do_for_fewer_devices_is_a_column(small) -> None:
    (table,) = [each for each in met(small).tables() if each.title == "What if"]
    place = table.columns.index("would do")
    assert [row[place] for row in table.rows] == ["", "z 1.3750 (1.25 times)", "9 rounds"]


def test_a_search_of_equal_runs_has_one_subject(small) -> None:
    """Then the caption of the candidates says it."""
    plan = met(small)
    same = replace(plan, best=None, candidates=plan.candidates[:3])
    tables = {each.title: each for each in same.tables()}
    assert tables["Candidates"].caption.endswith("in 2 runs at 0.1 size")


def written(plan: Plan, directory: Path) -> Path:
    directory.mkdir()
    (directory / "plan.json").write_text(json.dumps({**plan.to_json(), "command": "fedray plan"}))
    return directory


def test_two_plans_stand_side_by_side_with_what_differs(
    small, fedray_command, tmp_path: Path
) -> None:
    """A directory, and the output of --json; the second has fewer devices and meets nothing."""
    one = met(small)
    fewer = small("population.devices=14000", "rounds.report_goal=77")
    other = replace(failed(small), scenario=fewer, target=replace(TARGET, epsilon=2.5))
    first = written(one, tmp_path / "first")
    second = tmp_path / "second.json"
    second.write_text(json.dumps(other.to_json()))
    found = compare_plans([first, second])
    plans, differing = found.tables()
    assert plans.columns == ("", str(first), str(second))
    assert plans.subject.population == "small (20,000 devices) and small (14,000 devices)"
    rows = {name: cells for name, *cells in plans.rows}
    assert rows["population"] == ["small (20,000 devices)", "small (14,000 devices)"]
    assert rows["met"] == ["yes", "no, nearest miss"]
    assert rows["report goal"] == ["1,100", "1,000"]
    assert rows["epsilon"] == [up(2.95), up(5.0)]
    # Those with the planned limits as rules.
    assert rows["days"] == ["3.5", "3.0"]
    assert rows["runs"] == ["1 run at full size", "2 runs at 0.1 size"]
    # A report goal is what a plan finds itself.
    assert differing.rows == (
        ("population.devices", "20000", "14000"),
        ("target.epsilon", "3.0", "2.5"),
    )
    assert found.headline.endswith("The plans differ in population.devices, target.epsilon.")
    code, out, err = fedray_command("compare", str(first), str(second))
    assert (code, err) == (0, "")
    assert "Settings that differ" in out
    code, out, _ = fedray_command("compare", str(first), str(second), "--json")
    document = json.loads(out)
    assert code == 0
    assert [each["report_goal"] for each in document["plans"]] == [1100, 1000]
    found_keys(document, PlanComparison)


def test_equal_plans_differ_in_nothing(small, tmp_path: Path) -> None:
    directories = [written(met(small), tmp_path / name) for name in ("a", "b")]
    found = compare_plans(directories)
    assert found.differing == ()
    assert [each.title for each in found.tables()] == ["Plans"]
    assert "same settings" in found.headline


def test_what_is_no_plan_is_refused_in_one_line(small, fedray_command, tmp_path: Path) -> None:
    plan = written(met(small), tmp_path / "a")
    (tmp_path / "claim.json").write_text('{"epsilon": 3}')
    whole = json.loads((plan / "plan.json").read_text())
    # Neither lacks a key that says what a file is, but something that is read.
    few = {"best": None, "target": {}, "settings": {}, "of": {}}
    broken = [few, {**whole, "target": {}}, {**whole, "of": {"place": "x"}}, {**whole, "best": 3}]
    broken += [{key: each for key, each in whole.items() if key != left} for left in sorted(KEYS)]
    files = [tmp_path / f"{number}.json" for number in range(len(broken))]
    for file, document in zip(files, broken, strict=True):
        file.write_text(json.dumps(document))
    for arguments, expected in (
        ((str(plan),), "must be at least two"),
        ((str(plan), str(tmp_path / "claim.json")), "is no plan of this version"),
        ((str(plan), str(plan), "--reach", "0.4"), "is for trained runs, not plans"),
        *(((str(plan), str(file)), "is no plan of this version") for file in files),
    ):
        code, out, err = fedray_command("compare", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert expected in err
    with pytest.raises(InputError, match="cannot be read"):
        compare_plans([plan, tmp_path / "nothing.json"])
