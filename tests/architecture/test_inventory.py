"""Every source file belongs to exactly one capability, and their sum grows only in commits that say why."""

import inventory


def test_every_file_has_one_capability_and_their_sum_does_not_grow() -> None:
    """Name the file's capability in capabilities.json; a new one names in its commit the one that pays."""
    assert inventory.problems(inventory.capabilities(), inventory.lines_today()) == []


def test_lost_files_entries_without_a_file_repeats_and_growth_are_found() -> None:
    known = {"a": {"lines": 5, "files": ["a.py"]}, "b": {"lines": 5, "files": ["a.py", "c.py"]}}
    assert inventory.problems(known, {"a.py": 8, "b.py": 3}) == [
        "b.py: no capability has it",
        "c.py: no such file",
        "a.py: in 2 capabilities",
        "11 lines, limit 10: a +3, b +3",
    ]
    known["b"]["files"] = ["b.py"]
    assert inventory.problems(known, {"a.py": 8, "b.py": 2}) == []
