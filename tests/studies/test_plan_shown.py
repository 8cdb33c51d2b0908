"""Plans as they are shown, and two side by side: ticks at the data, names at points, and each row says of which runs it is."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from document_schema import found_keys

from fedray.base.errors import InputError
from fedray.base.rounding import up
from fedray.report.figure import Figure
from fedray.report.files import drawn_figure
from fedray.report.plotly_json import plotly_figure
from fedray.scenario import Scenario
from fedray.studies.plan import Candidate, Plan, PlanTarget
from fedray.studies.plan_page import plan_figures, plan_page
from fedray.studies.plans_compared import KEYS, PlanComparison, compare_plans
from fedray.studies.remedies import DEVICES, HALF_TRADE, NOISE, PERSON, TIMER, TRADE, Remedy
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
    # It joins what has no more device updates, not more noise.
    assert list(zip(line.x.tolist(), line.y.tolist(), strict=True)) == [(1400, 1), (1900, 1)]
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
    assert tables[""].caption.endswith("in 1 run at full size, per device")
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
    place = table.columns.index("would do with fewer devices")
    would_do = ["", "noise multiplier 1.3750 (1.25 times)", "rounds.count 9"]
    assert [row[place] for row in table.rows] == would_do


def test_what_ifs_show_how_often_the_worst_device_came(small) -> None:
    """So that an epsilon that falls with more devices without a timer is seen to follow from it."""
    rows = (
        WhatIf("1 % ignore the timer, no separation rule", 2.0, 1, 45.1, max_participations=300),
        WhatIf("5 % ignore the timer, no separation rule", 2.0, 1, 21.1, max_participations=150),
    )
    plan = replace(met(small), what_ifs=rows)
    (table,) = [each for each in plan.tables() if each.title == "What if"]
    place = table.columns.index("k")
    assert [row[place] for row in table.rows] == ["300", "150"]
    said = "fewer compete for the places of a round, so one of them may come more often"
    assert said in table.notes[1]
    plan = replace(plan, what_ifs=(rows[0], replace(rows[1], epsilon=46.0)))
    (table,) = [each for each in plan.tables() if each.title == "What if"]
    assert said not in " ".join(table.notes)


def test_a_search_of_equal_runs_has_one_subject(small) -> None:
    """Then the caption of the candidates says it."""
    plan = met(small)
    same = replace(plan, best=None, candidates=plan.candidates[:3])
    tables = {each.title: each for each in same.tables()}
    assert tables["Candidates"].caption.endswith("in 2 runs at 0.1 size, per device")


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
    assert rows["target"] == ["met", "missed, nearest miss"]
    assert f"Only {first} meets its target." in found.headline
    assert rows["report goal"] == ["1,100", "1,000"]
    assert rows["epsilon of a device"] == [up(2.95), up(5.0)]
    assert rows["noise on the mean, z over goal"] == ["0.001", "0.001"]
    assert rows["device updates"] == ["13,200", "12,000"]
    assert rows["with 10 % fewer devices"] == ["-", "-"]
    assert "epsilon of a person" not in rows
    # Those with the planned limits as rules.
    assert rows["days"] == ["3.5", "3.0"]
    assert rows["runs"] == ["1 run at full size", "2 runs at 0.1 size"]
    # A report goal is what a plan finds itself.
    assert differing.rows == (
        ("population.devices", "20000", "14000"),
        ("target epsilon", "3.0", "2.5"),
    )
    said = "The plans differ in population.devices, target epsilon."
    assert found.headline.endswith(said)
    # What misses its target wins nothing.
    assert "Least" not in found.headline
    code, out, err = fedray_command("compare", str(first), str(second))
    assert (code, err) == (0, "")
    assert "Settings that differ" in out
    code, out, _ = fedray_command("compare", str(first), str(second), "--json")
    document = json.loads(out)
    assert code == 0
    assert [each["report_goal"] for each in document["plans"]] == [1100, 1000]
    found_keys(document, PlanComparison)


def test_of_plans_that_meet_their_target_the_least_is_named_in_each_figure(
    small, fedray_command, tmp_path: Path
) -> None:
    """The second has less epsilon by more noise; the first starves with 10 % fewer devices, and its person misses."""
    owners = small("population.owners={mean_devices=1.4, most_devices=3}")
    fragile = (WhatIf("as planned", 3.0, 7), WhatIf("population -10 %", starves_at=9))
    one = replace(met(small), scenario=owners, what_ifs=fragile)
    one = replace(one, best=replace(one.best, rho=0.1))
    noisy = replace(TARGET, noise_per_report=0.002)
    best = replace(one.best, target=noisy, epsilon=1.4, enforced_days=5.0, rho=0.02)
    robust = (fragile[0], WhatIf("population -10 %", 3.0, 6, 1.4))
    other = replace(one, target=noisy, best=best, what_ifs=robust)
    paths = [written(each, tmp_path / name) for each, name in ((one, "one"), (other, "other"))]
    found = compare_plans(paths)
    for said in (
        f"Least epsilon of a device: {paths[1]} ({up(1.4)}, else {up(2.95)}).",
        f"Least noise on the mean: {paths[0]} (0.001, else 0.002).",
        f"Fewest days: {paths[0]} (3.5, else 5.0).",
        f"Starve with 10 % fewer devices: {paths[0]}, and not {paths[1]}.",
        f"{up(one.best.epsilon_of_person(3))} of a person with 3 devices, for 3, met for a device and "
        "missed for a person.",
    ):
        assert said in found.headline
    # Their updates are equal.
    assert "updates:" not in found.headline
    # The noise was given, so it is a setting, with its factor.
    assert f"{paths[1]} has 2.00 times the noise on the mean of {paths[0]}." in found.headline
    assert found.headline.endswith("The plans differ in noise on the mean.")
    assert found.tables()[1].rows == (("noise on the mean", "0.001", "0.002"),)
    (figure,) = found.figures()
    assert [(each.at, each.text) for each in figure.marks] == [(3.0, "target 3")]
    assert figure.y.title == "epsilon of a device"
    page = tmp_path / "page.html"
    code, _, err = fedray_command("compare", *map(str, paths), "--page", str(page))
    assert (code, err) == (0, "")
    assert "Least noise on the mean" in page.read_text()


def test_plans_for_a_person_are_compared_by_the_epsilon_of_a_person(small, tmp_path: Path) -> None:
    one = of_owners(small, 0.02)
    target = replace(TARGET, unit="person")
    noisy = replace(target, noise_per_report=0.003)
    plans = [
        replace(one, target=each, best=replace(one.best, target=each, devices_of_unit=2, rho=rho))
        for each, rho in ((target, 0.02), (noisy, 0.002))
    ]
    found = compare_plans([written(e, tmp_path / n) for e, n in zip(plans, "ab", strict=True)])
    (figure,) = found.figures()
    assert figure.y.title == "epsilon of a person"
    shown = [float(each.y[0]) for each in figure.series]
    assert shown == [each.epsilon_of_person for each in plans]
    assert "met for a device" not in found.headline
    assert "for 3 of a person, met." in found.headline
    assert "3 of a person" in {cell for row in found.tables()[0].rows for cell in row}
    of_device = replace(one, target=replace(TARGET, unit="device"))
    mixed = [written(plan, tmp_path / name) for plan, name in ((of_device, "c"), (plans[0], "d"))]
    mixed = compare_plans(mixed)
    cells = {cell for row in mixed.tables()[0].rows for cell in row}
    assert {"3 of a device", "3 of a person"} <= cells
    assert "for 3 of a device, met" in mixed.headline
    # A reader of the comparison on a phone sees no heading that is empty.
    assert 'data-label=""' not in found.page()


def of_owners(small, rho: float | None) -> Plan:
    plan = met(small)
    scenario = small("population.owners={mean_devices=1.4, most_devices=2}")
    best = replace(plan.best, rho=rho)
    z = 2 * best.noise_multiplier
    remedies = (Remedy(PERSON, 1.2, 1.0, 3.5, noise_multiplier=z),)
    return replace(plan, scenario=scenario, best=best, remedies=remedies)


def test_a_target_that_a_person_misses_is_not_shown_as_met(small) -> None:
    plan = of_owners(small, 0.2)
    epsilon = up(plan.best.epsilon_of_person(2))
    assert float(epsilon) > 3.0
    said = f"A device meets epsilon 3, and a person with 2 devices misses it ({epsilon}): "
    assert plan.headline.startswith(said)
    assert "can be met" not in plan.headline
    page = plan_page(plan)
    assert '<div class="verdict open">' in page
    assert f"of a device, {epsilon} of a person: met only for a device" in page
    answer, remedies, *_ = plan.tables()
    assert (
        dict(zip(answer.columns, answer.rows[0], strict=True))["epsilon of a person with 2 devices"]
        == epsilon
    )
    assert remedies.title == "What would do for a person"
    assert remedies.rows[0][0] == "noise multiplier 2.2000, for a person"


def test_a_target_that_a_person_meets_too_is_met(small) -> None:
    plan = replace(of_owners(small, 0.001), remedies=())
    assert plan.headline.startswith("Epsilon 3 of a device can be met: ")
    said = f"A person with 2 devices has {up(plan.best.epsilon_of_person(2))}, which meets 3."
    assert said in plan.headline
    assert '<div class="verdict holds">' in plan_page(plan)
    assert "a person" not in met(small).headline


def test_an_epsilon_of_a_person_that_is_not_known_is_not_compared_with_the_target(small) -> None:
    plan = of_owners(small, None)
    said = "A device meets epsilon 3, and that of a person with 2 devices is not known: "
    assert plan.headline.startswith(said)
    near = replace(plan.best, epsilon=4.0)
    missed = replace(plan, candidates=(near,), best=None, remedies=())
    assert "The epsilon of a person with 2 devices is not known." in missed.headline


def test_a_pace_that_is_not_kept_is_said_with_its_waits(small) -> None:
    """12 rounds in 3.5 days, where one every 30 minutes was asked for."""
    plan = met(small)
    best = replace(plan.best, median_gap_minutes=30.2, longest_gap_minutes=860.4)
    paced = replace(plan, scenario=small("rounds.min_minutes_between=30"), best=best)
    said = "every 30 minutes is not kept: 3.4 rounds a day in place of 48, a median of 30 minutes"
    assert said in paced.headline
    assert "and 860 at the longest" in paced.headline
    answer = paced.tables()[0]
    cells = dict(zip(answer.columns, answer.rows[0], strict=True))
    assert cells["minutes between rounds, median"] == "30, at most 860"
    kept = replace(best, days=0.25, enforced_days=None, longest_gap_minutes=31.0)
    assert "is not kept" not in replace(paced, best=kept).headline
    assert "is not kept" not in replace(plan, best=best).headline


def test_steps_from_own_settings_name_the_mechanism_as_a_step(small) -> None:
    """Here it is the largest: 16 to 7, where the timer is 7 to 5."""
    plan = failed(small)
    own = candidate(1000, 16.0, 12.0)
    scenario = small("privacy.mechanism={kind='tree'}")
    plan = replace(plan, own=own, made=candidate(1000, 7.0, 12.0), scenario=scenario)
    (table,) = [each for each in plan.tables() if each.title.startswith("From your settings")]
    assert [(row[0], row[2]) for row in table.rows] == [
        ("your settings, mechanism tree, as privacy.mechanism says", up(16.0)),
        ("mechanism: a BLT made for them", up(7.0)),
        ("then timer 24 h: the nearest miss", up(5.0)),
    ]
    assert f"{up(7.0)} with a BLT made for them" in plan.headline
    default = replace(plan, scenario=Scenario.from_tables(without_mechanism(small)))
    (table,) = [each for each in default.tables() if each.title.startswith("From your settings")]
    assert table.rows[0][0] == "your settings, mechanism blt, the default"


def without_mechanism(small) -> dict[str, Any]:
    tables = small().to_tables()
    del tables["privacy"]["mechanism"]
    return tables


def test_a_goal_that_starves_says_how_far_it_got_and_why(small) -> None:
    note = (
        "starved: rounds.max_days=22 ran out with 9 of 12 rounds committed; too few devices "
        "checked in, so lower rounds.report_goal=2000 or raise rounds.max_days"
    )
    starved = candidate(2000, None, 48.0, note=note, committed=9)
    plan = replace(met(small), candidates=(candidate(700, 4.4), starved))
    (table,) = [each for each in plan.tables() if each.title == "Candidates"]
    assert (
        "Timer 48 h, goal 2,000: starves (1 tried). Goal 2,000 got to 9 of 12 rounds within "
        f"rounds.max_days={plan.scenario.rounds.max_days:g}: too few devices checked in."
    ) in table.notes


def test_the_nearest_miss_is_explained_where_another_has_less(small) -> None:
    near, least = candidate(1000, 3.3390, days=2.0), candidate(1000, 3.3092, 48.0, days=9.0)
    plan = replace(failed(small), candidates=(near, least))
    (table,) = [each for each in plan.tables() if each.title == "Candidates"]
    assert any(
        each.startswith(f"Nearest miss: of those within a tenth of the least epsilon ({up(3.3092)}")
        for each in table.notes
    )
    alone = replace(plan, candidates=(near,))
    (table,) = [each for each in alone.tables() if each.title == "Candidates"]
    assert not any(each.startswith("Nearest miss") for each in table.notes)


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
