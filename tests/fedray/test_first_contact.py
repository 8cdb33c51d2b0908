"""What a new user sees first: the README, and `fedray` without arguments."""

from pathlib import Path

from fedray.cli import FIRST


def test_readme_has_five_commands_and_a_picture_before_any_explanation() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    head = readme.partition("\n## ")[0].splitlines()
    commands = [each.partition("#")[0].strip() for each in head if each.startswith("fedray ")]
    assert commands[1:] == [each.partition("#")[0].strip() for each in FIRST.splitlines()]
    assert any(each.startswith("![") for each in head)
    assert len(head) <= 20
