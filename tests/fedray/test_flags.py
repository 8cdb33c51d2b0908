"""What the library says of arguments, the command says of flags."""

import pytest
import typer.main

from fedray.base.errors import InputError
from fedray.cli import app
from fedray.commands.flags import OTHER_NAMES, check_numbers, in_flags

COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("command", "message", "said"),
    [
        ("run", "give trust_code=True if you trust it", "give --trust-code if you trust it"),
        (
            "audit",
            "leave digests unchecked (verify=False)",
            "leave digests unchecked (--no-verify)",
        ),
        ("import", "memory_mebibytes=5 is little", "--memory=5 is little"),
        ("import", "say it by time_unit='seconds'", "say it by --time-unit='seconds'"),
        ("import", "ceil(rounds / min_sep)", "ceil(rounds / min_sep)"),
        ("import", "rounds=9, but the rounds are 8", "--rounds=9, but the rounds are 8"),
        ("import", "column 'time_unit' is not there", "column 'time_unit' is not there"),
        ("fit", "timer_hours=None must be given", "--timer must be given"),
        ("fit", "participation.timer_hours=0.0 is low", "participation.timer_hours=0.0 is low"),
        ("optimize", "targets file 't': min_sep=0 is low", "targets file 't': min_sep=0 is low"),
        ("audit", "min_sep=0 is low", "min_sep=0 is low"),
        ("scenarios", "rounds=0 is low", "rounds=0 is low"),
    ],
)
def test_a_message_has_the_flags_of_its_command(command: str, message: str, said: str) -> None:
    assert in_flags(message, COMMANDS[command].params) == said


def test_every_other_name_is_of_a_parameter_that_a_command_has() -> None:
    parameters = {each.name for command in COMMANDS.values() for each in command.params}
    assert set(OTHER_NAMES) <= parameters


def test_a_command_that_is_refused_names_its_flags(fedray_command) -> None:
    code, _, stderr = fedray_command("fit", "--population", "9", "--rounds", "9", "--min-sep", "2")
    assert (code, stderr) == (2, "fedray: --timer must be given, or a scenario file\n")


@pytest.mark.parametrize(
    ("typed", "rule"),
    [
        # Read as 400 by some releases of typer, and meant as 400,000.
        (("plan", "--population", "400.000"), "a whole number, in digits alone, such as 400000"),
        (("plan", "--population=1,500"), "a whole number, in digits alone, such as 1500"),
        (("plan", "--population", "1.5"), "a whole number, in digits alone, such as 1000"),
        (("plan", "--epsilon", "3,5"), "a number, with a decimal point if any, such as 3.5"),
        (("plan", "--epsilon=viel"), "a number, with a decimal point if any, such as 0.5"),
    ],
)
def test_an_option_that_is_no_number_is_told_with_what_may_be_meant(
    fedray_command, typed: tuple[str, ...], rule: str
) -> None:
    code, stdout, stderr = fedray_command(*typed)
    flag, _, value = " ".join(typed[1:]).replace("=", " ").partition(" ")
    assert (code, stdout) == (2, "")
    assert stderr == f"fedray: {flag}={value!r} must be {rule}\n"


def test_annotations_of_every_command_can_be_read_for_numbers() -> None:
    found: dict[str, set[str]] = {}
    for name, command in COMMANDS.items():
        for each in command.params:
            flag = each.opts[0]
            try:
                check_numbers([flag, "x"], command.callback, command.params)
            except InputError:
                found.setdefault(name, set()).add(flag)
    assert {"--rounds", "--delta", "--bands"} <= found["optimize"]
    assert "--out" not in found["optimize"]
    assert "--checkpoint-seconds" in found["run"]
