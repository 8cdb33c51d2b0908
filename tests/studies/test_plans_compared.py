"""Two plans side by side: `fedray compare PLAN1 PLAN2`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from document_schema import found_keys
from made_up_plans import TARGET, failed, met

from fedray.base.errors import InputError
from fedray.base.rounding import up
from fedray.studies.plan import Plan
from fedray.studies.plans_compared import PlanComparison, compare_plans


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
    assert not plans.mixed
    rows = [dict(zip(plans.columns, row, strict=True)) for row in plans.rows]
    assert [each["population"] for each in rows] == [
        "small (20,000 devices)",
        "small (14,000 devices)",
    ]
    assert [each["met"] for each in rows] == ["yes", "no, nearest miss"]
    assert [each["report goal"] for each in rows] == ["1,100", "1,000"]
    assert [each["epsilon"] for each in rows] == [up(2.95), up(5.0)]
    # Those with the planned limits as rules.
    assert [each["days"] for each in rows] == ["3.5", "3.0"]
    assert [each["runs"] for each in rows] == ["1 run at full size", "2 runs at 0.1 of the size"]
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
    for arguments, expected in (
        ((str(plan),), "must be at least two"),
        ((str(plan), str(tmp_path / "claim.json")), "is no plan of this version"),
        ((str(plan), str(plan), "--reach", "0.4"), "is for trained runs, not plans"),
    ):
        code, out, err = fedray_command("compare", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert expected in err
    with pytest.raises(InputError, match="cannot be read"):
        compare_plans([plan, tmp_path / "nothing.json"])
