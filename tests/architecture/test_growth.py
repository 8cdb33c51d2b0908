"""Packages grow only in commits that say what for, and every source file belongs to exactly one capability."""

import json

import growth


def test_every_package_is_within_its_limits_and_every_file_in_one_capability() -> None:
    """Take something out, or raise the limits (`growth.py --freeze`) in a commit that says what for."""
    grown = growth.growths(growth.today(), json.loads(growth.LIMITS.read_text()))
    if len(grown) > 3:
        grown[3:] = [f"and {len(grown) - 3} more, which growth.py prints"]
    problems = grown + growth.misplaced(growth.capabilities(), growth.lines_today())
    assert not problems, "\n".join(["", *problems])


def test_growth_and_lost_comments_are_found_the_largest_first() -> None:
    limits = {"a": {"lines": 10, "comments %": 4.0}}
    assert growth.growths({"a": {"lines": 10, "comments %": 4.0}}, limits) == []
    assert growth.growths({"a": {"lines": 9, "comments %": 5.0}}, limits) == []
    found = {"a": {"lines": 11, "comments %": 3.0}, "b": {"lines": 1}}
    assert growth.growths(found, limits) == [
        "b: lines 1, limit 0",
        "a: comments % 3, limit 4",
        "a: lines 11, limit 10",
    ]


def test_lost_files_entries_without_a_file_and_repeats_are_found() -> None:
    known = {"a": {"files": ["a.py"]}, "b": {"files": ["a.py", "c.py"]}}
    assert growth.misplaced(known, ["a.py", "b.py"]) == [
        "b.py: no capability has it",
        "c.py: no such file",
        "a.py: in 2 capabilities",
    ]
    known["b"]["files"] = ["b.py"]
    assert growth.misplaced(known, ["a.py", "b.py"]) == []
